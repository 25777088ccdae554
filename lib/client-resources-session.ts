import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { checked } from './checked.ts';
import { Calls } from './client-calls.ts';
import { SessionLifecycle } from './client-lifecycle.ts';
import {
  callOptionsSchema,
  clientOptionsSchema,
  type CallOptions,
  type SessionClientOptions,
} from './client-options.ts';
import {
  resourcesCloseReplySchema,
  resourcesSeedReplySchema,
  untypedSeedReplySchema,
  type McpServerMetadata,
  type ResourcesCloseReply,
  type SandboxAccess,
} from './client-replies.ts';
import { ResourcesSessionCalls } from './client-resources-calls.ts';
import { episodeIdSchema, taskIdSchema, type EpisodeIdInput, type TaskId } from './protocol.ts';

/** Options of {@link ResourcesSession.open}. */
export interface ResourcesSessionOptions extends SessionClientOptions {
  readonly episodeId: EpisodeIdInput;
  readonly taskId: TaskId;
  /** What the server's seed needs to know. */
  readonly taskData: Readonly<Record<string, unknown>>;
  /** Default: a new one. */
  readonly resourcesSessionId?: string | undefined;
}

/** Options of {@link ResourcesSession.openUntyped}. */
export interface UntypedResourcesSessionOptions extends Omit<
  SessionClientOptions,
  'cleanup' | 'cleanupSeconds' | 'onCleanupFailure'
> {
  /** The body of the seed. */
  readonly body: Readonly<Record<string, unknown>>;
}

const sessionOptionsSchema = clientOptionsSchema.extend({
  episodeId: episodeIdSchema,
  taskId: taskIdSchema,
  taskData: z.record(z.string(), z.unknown()),
  resourcesSessionId: z.string().min(1).optional(),
});

const untypedOptionsSchema = clientOptionsSchema
  .omit({ cleanup: true, cleanupSeconds: true, onCleanupFailure: true })
  .extend({ body: z.record(z.string(), z.unknown()) });

/**
 * A session of a resources server that its caller named, so that its seed and its close may be repeated.
 *
 * `await using` closes it, if {@link close} has not, and reports what comes of that instead of throwing it.
 */
export class ResourcesSession extends ResourcesSessionCalls implements AsyncDisposable {
  /** The session's ID. */
  readonly id: string;
  /** How to reach the session's sandbox, if it has one. */
  readonly sandbox: SandboxAccess | null;
  readonly #lifecycle: SessionLifecycle<ResourcesCloseReply>;

  private constructor(
    id: string,
    calls: Calls,
    lifecycle: SessionLifecycle<ResourcesCloseReply>,
    { resources_tools, sandbox_access }: z.output<typeof resourcesSeedReplySchema>,
  ) {
    super(calls, resources_tools, true);
    this.id = id;
    this.sandbox = sandbox_access;
    this.#lifecycle = lifecycle;
  }

  /**
   * Seeds a session. A seed that fails, or whose reply is lost for good, is closed without a cookie: before this rejects, or by the
   * `cleanup` that was given.
   *
   * @throws TypeError for a refused option; SessionClientError; the signal's reason
   */
  static async open(options: ResourcesSessionOptions): Promise<ResourcesSession> {
    const {
      episodeId,
      taskId,
      taskData,
      resourcesSessionId: id = `resources-session-${randomUUID().replaceAll('-', '')}`,
      ...clientOptions
    } = checked('ResourcesSession.open()', sessionOptionsSchema, options);
    clientOptions.signal?.throwIfAborted();
    const calls = new Calls('resources', clientOptions);
    const ownId = { resources_session_id: z.literal(id) };
    const identity = { resources_session_id: id, episode_id: episodeId };
    const lifecycle = new SessionLifecycle(calls, clientOptions, `resources session ${id}`, (close) =>
      calls.post({
        ...close,
        stage: 'close',
        path: '/close_session',
        body: JSON.stringify(identity),
        reply: resourcesCloseReplySchema.extend(ownId),
        mayRepeat: true,
      }),
    );
    const reply = await lifecycle.open({
      stage: 'seed',
      path: '/seed_session',
      body: JSON.stringify({ ...identity, task_id: taskId, task_data: taskData }),
      reply: resourcesSeedReplySchema.extend(ownId),
      needsCookie: true,
      mayRepeat: true,
    });
    return new ResourcesSession(id, calls, lifecycle, reply);
  }

  /**
   * Seeds a session of the form without an ID, which is named by its cookie alone.
   *
   * Its seed is never repeated: each opens another session. It has no close; a verify ends it. A seed whose reply is lost leaves a
   * session that nobody can name any more.
   *
   * @throws TypeError for a refused option; SessionClientError; the signal's reason
   */
  static openUntyped(options: UntypedResourcesSessionOptions): Promise<UntypedResourcesSession> {
    return UntypedResourcesSession.open(options);
  }

  /**
   * Gives the session back. It is repeated while its connection fails; called again, it gives the same reply.
   *
   * @throws SessionClientError; the reason of an aborted signal. The clean-up tries again then, unless the error says that the
   * episode is over.
   */
  async close(options: CallOptions = {}): Promise<ResourcesCloseReply> {
    return this.#lifecycle.close(checked('close()', callOptionsSchema, options));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lifecycle.dispose();
  }
}

/** A session of a resources server that is named by its cookie alone: {@link ResourcesSession.openUntyped}. */
export class UntypedResourcesSession extends ResourcesSessionCalls {
  /** What the server answered to the seed. */
  readonly seedReply: Readonly<Record<string, unknown>>;

  private constructor(calls: Calls, tools: McpServerMetadata | null, seedReply: Record<string, unknown>) {
    super(calls, tools, false);
    this.seedReply = seedReply;
  }

  /** {@link ResourcesSession.openUntyped} */
  static async open(options: UntypedResourcesSessionOptions): Promise<UntypedResourcesSession> {
    const { body, ...clientOptions } = checked('ResourcesSession.openUntyped()', untypedOptionsSchema, options);
    const calls = new Calls('resources', clientOptions);
    const reply = await calls.post({
      stage: 'seed',
      path: '/seed_session',
      body: JSON.stringify(body),
      reply: untypedSeedReplySchema,
      needsCookie: true,
      mayRepeat: false,
    });
    return new UntypedResourcesSession(calls, reply.mcp ?? null, reply);
  }
}
