import { z } from 'zod';

/** An integer as pydantic takes one by default: 3, 3.0, "3" and true; but not 3.5, "3.0" or null. */
export const integerSchema = z.preprocess((value) => {
  const isIntegral = typeof value === 'boolean' || (typeof value === 'string' && /^[+-]?\d+$/.test(value));
  return isIntegral ? Number(value) : value;
}, z.int());

const name = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/);
const json = z.record(z.string(), z.unknown());

/** How many members a list or an object may have. Each that is refused costs: without a bound, one body could stop a worker. */
const mostMembers = 1_000;

/** A list, which is measured before its members are looked at. */
function list<Schema extends z.ZodType>(member: Schema) {
  return z.array(z.unknown()).max(mostMembers).pipe(z.array(member));
}

const strings = z
  .record(z.string(), z.unknown())
  .refine((value) => Object.keys(value).length <= mostMembers, `must have at most ${mostMembers} members`)
  .pipe(z.record(z.string(), z.string()));

/** Which attempt at a rollout an episode is. */
export const episodeIdSchema = z.strictObject({
  rollout_id: name.refine((id) => !/-a[1-9]\d*$/.test(id), 'must not end in the number of an attempt'),
  attempt: integerSchema.refine((attempt) => attempt >= 0, 'must not be negative').default(0),
});

/** Which task of a set of tasks an episode is about. */
export const taskIdSchema = z.strictObject({ taskset: z.string().min(1), task_id: z.string().min(1) });

const httpUrl = z.url({ protocol: /^https?$/ });

/** How an agent reaches the tools of a resources server. */
export const toolAccessSchema = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('direct_http'),
    name,
    required: z.boolean(),
    base_url: httpUrl,
    cookies: strings.default({}),
    headers: strings.default({}),
  }),
  z.object({
    kind: z.literal('mcp'),
    name,
    required: z.boolean(),
    connection: z.discriminatedUnion('transport', [
      z.object({ transport: z.literal('streamable_http'), url: httpUrl, headers: strings.default({}) }),
      z.object({
        transport: z.literal('stdio'),
        command: z.string(),
        args: list(z.string()).default([]),
        env: strings.default({}),
        cwd: z.string().nullable().default(null),
      }),
    ]),
  }),
]);

/** How an agent reaches the sandbox of a session. */
export const sandboxAccessSchema = z.object({
  connection: z.discriminatedUnion('kind', [
    z.object({ kind: z.literal('direct'), provider_config_ref: z.string(), descriptor: z.unknown() }),
    z.object({ kind: z.literal('sandbox_server'), sandbox_ref: z.string() }),
  ]),
  workdir: z.string().nullable().default(null),
});

/** The routes that open and close agent sessions. */
export const agentSessionPaths = { seed: '/v1/agent_sessions', close: '/v1/agent_sessions/close' } as const;

/** The body of `POST /v1/agent_sessions`. */
export const agentSessionSeedSchema = z.strictObject({
  agent_session_id: z.string().min(1),
  episode_id: episodeIdSchema,
  task_id: taskIdSchema,
  tool_accesses: list(toolAccessSchema)
    .refine((all) => new Set(all.map((access) => access.name)).size === all.length, 'must have different names')
    .default([]),
  sandbox_access: sandboxAccessSchema.nullable().default(null),
});

/** The body of `POST /v1/agent_sessions/close`. */
export const agentSessionCloseSchema = z.strictObject({
  agent_session_id: z.string().min(1),
  episode_id: episodeIdSchema,
});

/** What the close of an agent session gives back, with `agent_session_id` beside it. */
export const agentSessionResultSchema = z.strictObject({
  agent_observations: json.nullable().default(null),
  resources_cookies: strings.nullable().default(null),
});

export type EpisodeId = z.output<typeof episodeIdSchema>;
/** {@link EpisodeId} as it may be written: the first attempt is number 0. */
export interface EpisodeIdInput {
  readonly rollout_id: string;
  readonly attempt?: number | undefined;
}
export type TaskId = z.output<typeof taskIdSchema>;
export type AgentSessionSeed = z.output<typeof agentSessionSeedSchema>;
export type AgentSessionClose = z.output<typeof agentSessionCloseSchema>;
/** What a close may give back. Both are sent as JSON, and are null by default. */
export interface AgentSessionResult {
  readonly agent_observations?: object | null;
  readonly resources_cookies?: Readonly<Record<string, string>> | null;
}
/** The reply to a close. */
export type AgentSessionReceipt = { agent_session_id: string } & z.output<typeof agentSessionResultSchema>;

/** What an episode is called in paths and captures: two attempts at one rollout have different names. */
export function captureKey({ rollout_id: rolloutId, attempt = 0 }: EpisodeIdInput): string {
  return attempt === 0 ? rolloutId : `${rolloutId}-a${attempt}`;
}

/** One thing that is wrong with a body, as FastAPI tells it in the `detail` of a 422. */
export interface BodyIssue {
  readonly type: string;
  readonly loc: PropertyKey[];
  readonly msg: string;
  readonly input?: unknown;
}

/** How many issues are told of one body. */
const mostIssues = 100;

/**
 * What is wrong with a body that a schema has refused, the first 100 issues. Its values are in it if it was parsed with
 * `reportInput`.
 */
export function bodyIssues(issues: readonly z.core.$ZodIssue[]): BodyIssue[] {
  return issues
    .slice(0, mostIssues)
    .map(({ code, path, message, input }) => ({ type: code, loc: ['body', ...path], msg: message, input }));
}
