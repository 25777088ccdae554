import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { checked } from './checked.ts';
import { Calls } from './client-calls.ts';
import { SessionLifecycle } from './client-lifecycle.ts';
import {
  callOptionsSchema,
  clientOptionsSchema,
  typedCallOptionsSchema,
  type CallOptions,
  type SessionClientOptions,
  type TypedCallOptions,
} from './client-options.ts';
import {
  agentSeedReplySchema,
  agentSessionReceiptSchema,
  objectReplySchema,
  type AgentCloseReply,
  type SandboxAccess,
  type ToolAccessInput,
} from './client-replies.ts';
import { agentSessionPaths, agentSessionSeedSchema, captureKey, type EpisodeIdInput, type TaskId } from './protocol.ts';

/** Options of {@link AgentSession.open}. */
export interface AgentSessionOptions extends SessionClientOptions {
  readonly episodeId: EpisodeIdInput;
  readonly taskId: TaskId;
  /** How the agent reaches tools; their names differ. Default: none. */
  readonly toolAccesses?: readonly ToolAccessInput[] | undefined;
  /** How the agent reaches a sandbox. Default: not at all. */
  readonly sandboxAccess?: SandboxAccess | null | undefined;
  /** Default: a new one. */
  readonly agentSessionId?: string | undefined;
}

const { episode_id, task_id, tool_accesses, sandbox_access } = agentSessionSeedSchema.shape;
const sessionOptionsSchema = clientOptionsSchema.extend({
  episodeId: episode_id,
  taskId: task_id,
  toolAccesses: tool_accesses,
  sandboxAccess: sandbox_access,
  agentSessionId: z.string().min(1).optional(),
});

/**
 * A session of an agent server.
 *
 * `await using` closes it, if {@link close} has not, and reports what comes of that instead of throwing it.
 */
export class AgentSession implements AsyncDisposable {
  /** The session's ID. */
  readonly id: string;
  readonly #calls: Calls;
  readonly #lifecycle: SessionLifecycle<AgentCloseReply>;
  readonly #responsesPath: string;

  private constructor(id: string, calls: Calls, lifecycle: SessionLifecycle<AgentCloseReply>, responsesPath: string) {
    this.id = id;
    this.#calls = calls;
    this.#lifecycle = lifecycle;
    this.#responsesPath = responsesPath;
  }

  /**
   * Opens a session. A seed that fails, or whose reply is lost for good, is closed without a cookie: before this rejects, or by the
   * `cleanup` that was given.
   *
   * @throws TypeError for a refused option; SessionClientError; the signal's reason
   */
  static async open(options: AgentSessionOptions): Promise<AgentSession> {
    const {
      episodeId,
      taskId,
      toolAccesses,
      sandboxAccess,
      agentSessionId: id = `agent-session-${randomUUID().replaceAll('-', '')}`,
      ...clientOptions
    } = checked('AgentSession.open()', sessionOptionsSchema, options);
    clientOptions.signal?.throwIfAborted();
    const calls = new Calls('agent', clientOptions);
    const ownId = { agent_session_id: z.literal(id) };
    const identity = { agent_session_id: id, episode_id: episodeId };
    const lifecycle = new SessionLifecycle(calls, clientOptions, `agent session ${id}`, (close) =>
      calls.post({
        ...close,
        stage: 'close',
        path: agentSessionPaths.close,
        body: JSON.stringify(identity),
        reply: agentSessionReceiptSchema.extend(ownId),
        mayRepeat: true,
      }),
    );
    await lifecycle.open({
      stage: 'seed',
      path: agentSessionPaths.seed,
      body: JSON.stringify({
        ...identity,
        task_id: taskId,
        tool_accesses: toolAccesses,
        sandbox_access: sandboxAccess,
      }),
      reply: agentSeedReplySchema.extend(ownId),
      needsCookie: true,
      mayRepeat: true,
    });
    return new AgentSession(id, calls, lifecycle, `/ng-rollout/${captureKey(episodeId)}/v1/responses`);
  }

  /** The session's cookies, by name. */
  get cookies(): Record<string, string> {
    return this.#calls.jar.toRecord();
  }

  /**
   * Has the agent take its turn: `POST /ng-rollout/<capture key>/v1/responses`. It is never repeated unless `mayRepeat` says that
   * it may be.
   *
   * @param params the parameters of a request to the Responses API
   * @throws SessionClientError; the reason of an aborted signal
   */
  async respond<Reply = Record<string, unknown>>(
    params: object,
    options: TypedCallOptions<Reply> = {},
  ): Promise<Reply> {
    const { reply = objectReplySchema, ...call } = checked('respond()', typedCallOptionsSchema, options);
    const path = this.#responsesPath;
    const body = JSON.stringify(params);
    return (await this.#calls.post({ ...call, stage: 'respond', path, body, reply })) as Reply;
  }

  /**
   * Ends the session, and gives its receipt. It is repeated while its connection fails; called again, it gives the same receipt.
   *
   * @throws SessionClientError; the reason of an aborted signal. The clean-up tries again then, unless the error says that the
   * episode is over.
   */
  async close(options: CallOptions = {}): Promise<AgentCloseReply> {
    return this.#lifecycle.close(checked('close()', callOptionsSchema, options));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lifecycle.dispose();
  }
}
