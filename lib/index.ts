export { AgentSessionLifetimes, type AgentSessionClaims, type AgentSessionHolder } from './agent-lifetimes.ts';
export { AgentSessionSetupError, type AgentSessionHooks, type AgentSessionsOptions } from './agent-hooks.ts';
export { AgentSessions } from './agent-sessions.ts';
export { ClosedResourcesSessionRecords } from './closed-records.ts';
export { SessionClaims, type Claims, type ClaimsOptions, type SessionClaimsOptions } from './claims.ts';
export { refusalHandler, SessionRoutingError, type RefusalCode, type RefusalFormat, type Refused } from './errors.ts';
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
export { agent, resources, web, type AgentOptions, type ResourcesOptions, type WebOptions } from './session-kinds.ts';
export type { BodyReader, HeadReader, SessionKind, SessionRestart, SessionTokenPlaces } from './session-kind.ts';
export {
  firstOf,
  fromBody,
  fromCookie,
  fromFunction,
  fromHeader,
  fromPath,
  fromQuery,
  type BodySourceOptions,
  type FunctionSourceOptions,
  type QuerySourceOptions,
  type SessionIdSource,
  type SourceRequest,
} from './session-sources.ts';
export { sessionKind, type SessionKindOptions, type SessionRecordOptions } from './custom-kind.ts';
export { mcpHandle, mcpSessions, type McpHandleOptions, type McpSessionsOptions } from './mcp-kinds.ts';
export { NamedSessionLifetimes, type NamedSessionLifetimesOptions } from './named-lifetimes.ts';
export { SessionTokens, type SessionToken } from './session-token.ts';
export { sessionRouting, type ListenTarget, type SessionRouting } from './session-routing.ts';
