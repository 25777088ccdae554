import { AsyncResource } from 'node:async_hooks';
import type { IncomingMessage } from 'node:http';
import { isDeepStrictEqual } from 'node:util';
import {
  AgentSessionSetupError,
  checkResult,
  checkState,
  completeAgentSessionsOptions,
  copyOf,
  type AgentSessionHooks,
  type AgentSessionsOptions,
} from './agent-hooks.ts';
import type { AgentSessionClaims, AgentSessionHolder } from './agent-lifetimes.ts';
import { agentRoutes } from './agent-routes.ts';
import { SessionRoutingError, type RefusalCode } from './errors.ts';
import { ExpiryQueue } from './expiry-queue.ts';
import { KeyedLock } from './keyed-lock.ts';
import type { AgentSessionClose, AgentSessionReceipt, AgentSessionSeed, EpisodeId } from './protocol.ts';
import type { Clock } from './seconds.ts';
import type { Middleware } from './session-cookie.ts';
import { warn } from './warn.ts';

/** What is kept of a session. While it is being opened for the first time there is no record, only its lock. */
type AgentSessionRecord<State> =
  | {
      /** `closing`: its close has begun, and has failed if it does not run. */
      phase: 'open' | 'closing';
      readonly request: AgentSessionSeed;
      readonly episode: EpisodeId;
      readonly state: State;
    }
  /** Waits for a close, or for the end of its window. */
  | { readonly phase: 'failed'; readonly episode: EpisodeId; readonly state: State }
  /** `receipt` is the reply to the close, as JSON: nobody can change what is kept. */
  | { readonly phase: 'closed'; readonly episode: EpisodeId; readonly receipt: string };

/** Runs what belongs to no request: made here, so that no request's asynchronous context comes along. */
const outsideRequests = new AsyncResource('AgentSessions');

/**
 * The sessions of an agent server on one worker: each is opened by its ID, keeps its state here, and gives a receipt when
 * it is closed.
 *
 * Seeds and closes of one session take their turns, and may come again: an equal seed finds the session open, a close finds
 * its receipt. Closes are remembered for the window, so that a seed that comes late is refused.
 *
 * Pass it to `sessionRouting({ kind: agent({ sessions }) })` and mount {@link router} behind `routing.session()`.
 */
export class AgentSessions<State extends object> implements AgentSessionHolder {
  readonly #hooks: AgentSessionHooks<State>;
  readonly #windowSeconds: number;
  readonly #clock: Clock;
  readonly #records = new Map<string, AgentSessionRecord<State>>();
  /** When receipts and failed seeds expire. */
  readonly #expiring = new ExpiryQueue();
  readonly #lock = new KeyedLock();
  #routing: AgentSessionClaims | undefined;

  /** @throws TypeError for an option that is refused or unknown */
  constructor(options: AgentSessionsOptions<State>) {
    const { hooks, closeRetryWindowSeconds, clock } = completeAgentSessionsOptions(options);
    this.#hooks = hooks;
    this.#windowSeconds = closeRetryWindowSeconds;
    this.#clock = clock;
  }

  /** How many sessions there is a record of: open, failed or closed. */
  get size(): number {
    return this.#records.size;
  }

  /** When the next receipt or failed seed expires, in seconds of the clock; undefined while none does. */
  get nextExpiry(): number | undefined {
    return this.#expiring.next;
  }

  /**
   * The routes `POST /v1/agent_sessions` and `POST /v1/agent_sessions/close`, bare and under a rollout prefix, with their
   * body parser. Mount them behind `routing.session()`.
   *
   * @throws TypeError if it is mounted instead of called
   */
  router(...surplus: readonly unknown[]): Middleware {
    if (surplus.length > 0) throw new TypeError('Mount what router() returns: app.use(sessions.router())');
    return agentRoutes({
      bodyLimit: () => this.#claims.bodyLimit,
      seed: (request, body) => this.#seed(request, body),
      close: (request, body) => this.#close(request, body),
    });
  }

  /**
   * The state of the session that a request's cookie names.
   *
   * @returns undefined for a request that names no agent session
   * @throws SessionRoutingError `AGENT_SESSION_NOT_OPEN`, a 409, if the session is not open; `refusalHandler` answers it
   */
  current(request: IncomingMessage): State | undefined {
    const id = this.#claims.cookieSessionId(request);
    if (id === undefined) return undefined;
    const record = this.#records.get(id);
    if (record?.phase === 'open') return record.state;
    throw new SessionRoutingError('AGENT_SESSION_NOT_OPEN', 'Unknown or closing agent_session_id');
  }

  holdsAgentSession(agentSessionId: string): boolean {
    return this.#records.has(agentSessionId) || this.#lock.isTaken(agentSessionId);
  }

  /** Drops receipts at once. The `close` hook of a failed seed runs in the background, and again a window later if it throws. */
  expireAgentSessionRecords(now: number, limit?: number): string[] {
    const expired = this.#expiring.take(now, limit);
    for (const id of expired) {
      const record = this.#records.get(id);
      if (record?.phase === 'closed') this.#records.delete(id);
      else if (record?.phase === 'failed') outsideRequests.runInAsyncScope(() => void this.#expireFailed(id, record));
    }
    return expired;
  }

  /** @throws Error if the sessions belong to another routing */
  useAgentSessionClaims(claims: AgentSessionClaims): void {
    if (this.#routing !== undefined) throw new Error('These AgentSessions belong to another session routing already.');
    this.#routing = claims;
  }

  get #claims(): AgentSessionClaims {
    if (this.#routing !== undefined) return this.#routing;
    throw new Error('These AgentSessions belong to no session routing: sessionRouting({ kind: agent({ sessions }) }).');
  }

  async #seed(request: IncomingMessage, body: AgentSessionSeed): Promise<{ agent_session_id: string }> {
    const seed = copyOf(body);
    const { agent_session_id: id } = seed;
    const nameInReply = this.#claims.hold(request, id);
    if (nameInReply === undefined) {
      throw new Error(
        'An agent session needs its cookie, and none can be set. Mount routing.session() ahead of the agent session ' +
          'routes. If it is, its store is not connected, or its cookie is for another path, or for https alone while ' +
          'the request is none (see trust proxy).',
      );
    }
    const cookieId = this.#claims.cookieSessionId(request);
    await this.#exclusive(id, async () => {
      const record = this.#recordOf(id);
      if (record?.phase === 'closed') throw conflict('AGENT_SESSION_CLOSED', 'Agent session is already closed');
      if (record === undefined) {
        if (cookieId === id) throw conflict('AGENT_SESSION_EXPIRED', 'Agent session cookie has expired');
        await this.#open(id, seed);
      } else if (record.phase !== 'open') {
        throw conflict('AGENT_SESSION_CLOSING', 'Agent session is closing');
      } else if (!isDeepStrictEqual(record.request, seed)) {
        throw conflict('AGENT_SESSION_CONFLICT', 'agent_session_id is already bound to another seed request');
      }
    });
    nameInReply();
    return { agent_session_id: id };
  }

  async #close(request: IncomingMessage, body: AgentSessionClose): Promise<AgentSessionReceipt> {
    const { agent_session_id: id, episode_id: episode } = copyOf(body);
    const nameInReply = this.#claims.hold(request, id);
    const cookieId = this.#claims.cookieSessionId(request);
    return this.#exclusive(id, async () => {
      const record = this.#recordOf(id);
      if (record !== undefined && !isDeepStrictEqual(record.episode, episode)) {
        throw conflict('AGENT_SESSION_CONFLICT', 'episode_id does not match the seeded agent session');
      }
      if (record?.phase === 'closed') return JSON.parse(record.receipt) as AgentSessionReceipt;
      if (record === undefined && cookieId === id) {
        throw conflict('AGENT_SESSION_EXPIRED', 'Agent close receipt has expired');
      }
      if (record?.phase === 'open') record.phase = 'closing';
      const result = record === undefined ? undefined : await this.#hooks.close(record.state);
      const receipt = JSON.stringify({ agent_session_id: id, ...checkResult(result) });
      this.#records.set(id, { phase: 'closed', episode, receipt });
      this.#expireAfterWindow(id);
      nameInReply?.();
      return JSON.parse(receipt) as AgentSessionReceipt;
    });
  }

  /** Opens a session of which there is no record. */
  async #open(id: string, request: AgentSessionSeed): Promise<void> {
    const { episode_id: episode } = request;
    let state: State;
    try {
      state = checkState(await this.#hooks.seed(copyOf(request)));
    } catch (error) {
      if (!(error instanceof AgentSessionSetupError)) throw error;
      this.#keepFailed(id, episode, error.state as State);
      throw error.cause ?? error;
    }
    try {
      await this.#hooks.admit?.(copyOf(request), state);
    } catch (refusal) {
      try {
        await this.#hooks.close(state);
      } catch (error) {
        this.#keepFailed(id, episode, state);
        warnOfClose(error);
      }
      throw refusal;
    }
    this.#records.set(id, { phase: 'open', request, episode, state });
  }

  #keepFailed(id: string, episode: EpisodeId, state: State): void {
    this.#records.set(id, { phase: 'failed', episode, state });
    this.#expireAfterWindow(id);
  }

  /** Closes a failed seed that nobody has closed. */
  async #expireFailed(id: string, record: AgentSessionRecord<State> & { phase: 'failed' }): Promise<void> {
    await this.#exclusive(id, async () => {
      if (this.#records.get(id) !== record) return; // somebody has closed it meanwhile
      try {
        await this.#hooks.close(record.state);
        this.#records.delete(id);
      } catch (error) {
        this.#expireAfterWindow(id);
        warnOfClose(error);
      }
    });
  }

  #expireAfterWindow(id: string): void {
    this.#expiring.set(id, this.#clock() + this.#windowSeconds);
    this.#claims.settled();
  }

  /** What is kept of a session. A receipt whose window has passed counts for nothing, though no sweep has dropped it. */
  #recordOf(id: string): AgentSessionRecord<State> | undefined {
    const record = this.#records.get(id);
    if (record?.phase !== 'closed' || (this.#expiring.get(id) ?? 0) > this.#clock()) return record;
    this.#records.delete(id);
    this.#expiring.delete(id);
    return undefined;
  }

  /** Runs what must be alone with a session, and gives the session's claim up if nothing of it is left then. */
  async #exclusive<Result>(id: string, task: () => Promise<Result>): Promise<Result> {
    try {
      return await this.#lock.run(id, task);
    } finally {
      if (!this.holdsAgentSession(id)) this.#claims.release(id);
    }
  }
}

function conflict(code: RefusalCode, detail: string): SessionRoutingError {
  return new SessionRoutingError(code, detail);
}

function warnOfClose(error: unknown): void {
  const message = 'The close of an agent session that failed to open has failed. It is tried again.';
  warn(message, error, 'AGENT_SESSION_CLOSE_FAILED');
}
