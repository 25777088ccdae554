import { z } from 'zod';
import { agentSessionResultSchema, sandboxAccessSchema, toolAccessSchema } from './protocol.ts';

// What servers answer. Members that are not named here are kept: servers and later versions add their own.

/** How to reach the tools of a resources server over MCP. */
export const mcpServerMetadataSchema = z.looseObject({
  server_name: z.string(),
  url_path: z.string(),
  transport: z.string(),
  headers: z.record(z.string(), z.string()).default({}),
});

/** The reply to a typed seed of a resources server. */
export const resourcesSeedReplySchema = z.looseObject({
  resources_session_id: z.string(),
  resources_tools: mcpServerMetadataSchema.nullable().default(null),
  sandbox_access: sandboxAccessSchema.nullable().default(null),
});

/** The reply to an untyped seed. */
export const untypedSeedReplySchema = z.looseObject({ mcp: mcpServerMetadataSchema.nullish() });

/** The reply to the close of a resources session. */
export const resourcesCloseReplySchema = z.looseObject({ resources_session_id: z.string() });

/** The verdict on a session. */
export const verifyReplySchema = z.looseObject({
  reward: z.number(),
  mask_sample: z.boolean().default(false),
  failure_kind: z.string().nullable().default(null),
  failure_reason: z.string().nullable().default(null),
});

/** The reply to the seed of an agent session. */
export const agentSeedReplySchema = z.looseObject({ agent_session_id: z.string() });

/** The reply to the close of an agent session. */
export const agentSessionReceiptSchema = z.looseObject({
  agent_session_id: z.string(),
  ...agentSessionResultSchema.shape,
});

/** A reply of which nothing is known but that it is an object. */
export const objectReplySchema = z.looseObject({});

export type McpServerMetadata = z.output<typeof mcpServerMetadataSchema>;
export type SandboxAccess = z.output<typeof sandboxAccessSchema>;
export type ToolAccess = z.output<typeof toolAccessSchema>;
/** {@link ToolAccess} as it may be written: what has a default may be left out. */
export type ToolAccessInput = z.input<typeof toolAccessSchema>;
export type VerifyReply = z.output<typeof verifyReplySchema>;
export type ResourcesCloseReply = z.output<typeof resourcesCloseReplySchema>;
export type AgentCloseReply = z.output<typeof agentSessionReceiptSchema>;
