export { AgentSession, type AgentSessionOptions } from './client-agent-session.ts';
export { Cleanup, CleanupError, type CleanupOptions, type CleanupStep, type CleanupWork } from './client-cleanup.ts';
export type { Episode, EpisodeOutcome } from './client-episode.ts';
export { runEpisodes, type EpisodesProgress, type RunEpisodesOptions } from './client-episodes.ts';
export { SessionClientError, type SessionServer, type SessionStage } from './client-errors.ts';
export type {
  CallOptions,
  RepeatableCallOptions,
  ReplyInfo,
  SessionClientOptions,
  TypedCallOptions,
} from './client-options.ts';
export type {
  AgentCloseReply,
  McpServerMetadata,
  ResourcesCloseReply,
  SandboxAccess,
  ToolAccess,
  ToolAccessInput,
  VerifyReply,
} from './client-replies.ts';
export { type VerifyOptions } from './client-resources-calls.ts';
export {
  ResourcesSession,
  UntypedResourcesSession,
  type ResourcesSessionOptions,
  type UntypedResourcesSessionOptions,
} from './client-resources-session.ts';
export type { RetryOptions } from './client-retries.ts';
export { CookieJar } from './cookie-jar.ts';
export { captureKey, type EpisodeId, type EpisodeIdInput, type TaskId } from './protocol.ts';
