export { ClosedResourcesSessionRecords } from './closed-records.ts';
export { SessionClaims, type Claims, type ClaimsOptions, type SessionClaimsOptions } from './claims.ts';
export { SessionRoutingError, type RefusalCode } from './errors.ts';
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
export { resources, web, type ResourcesOptions, type SessionKind, type WebOptions } from './session-kinds.ts';
export { sessionRouting, type ListenTarget, type SessionRouting } from './session-routing.ts';
