export { AgentSessionLifetimes, type AgentSessionClaims, type AgentSessionHolder } from './agent-lifetimes.ts';
export { AgentSessionSetupError, type AgentSessionHooks, type AgentSessionsOptions } from './agent-hooks.ts';
export { AgentSessions } from './agent-sessions.ts';
export { ClosedResourcesSessionRecords } from './closed-records.ts';
export { SessionClaims, type Claims, type ClaimsOptions, type SessionClaimsOptions } from './claims.ts';
export { refusalHandler, SessionRoutingError, type RefusalCode } from './errors.ts';
export {
  ResourcesSessionLifetimes,
  WebSessionLifetimes,
  type ResourcesSessionLifetimesOptions,
  type SessionLifetimes,
  type SessionRequest,
  type WebSessionLifetimesOptions,
} from './lifetimes.ts';
export type { SessionRoutingOptions } from './options.ts';
export type { RoutedServer } from './routed-servers.ts';
export type { Middleware, RoutedSessionOptions } from './session-cookie.ts';
export {
  agentSessionCloseSchema,
  agentSessionResultSchema,
  agentSessionSeedSchema,
  bodyIssues,
  episodeIdSchema,
  integerSchema,
  sandboxAccessSchema,
  taskIdSchema,
  toolAccessSchema,
  type AgentSessionClose,
  type AgentSessionReceipt,
  type AgentSessionResult,
  type AgentSessionSeed,
  type BodyIssue,
  type EpisodeId,
} from './protocol.ts';
export {
  agent,
  resources,
  web,
  type AgentOptions,
  type ResourcesOptions,
  type SessionKind,
  type WebOptions,
} from './session-kinds.ts';
export { sessionRouting, type ListenTarget, type SessionRouting } from './session-routing.ts';
