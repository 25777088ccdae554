import type { IncomingMessage } from 'node:http';
import type { SessionLifetimes } from './lifetimes.ts';

/** What the routing does for the records of agent sessions. */
export interface AgentSessionClaims {
  /** Most bytes that the body of a seed or close may have. */
  readonly bodyLimit: number;
  /**
   * The agent session that a request's cookie names. Undefined where it has no cookie, or that of an ordinary session.
   *
   * @throws Error for a request that the session routing has not seen
   */
  cookieSessionId(request: IncomingMessage): string | undefined;
  /**
   * Holds the claim of the session that a request's body names, until its reply has ended: to be called when its seed or
   * its close begins, because the claim may have gone with a client that left sooner.
   *
   * @param agentSessionId the ID as the app read it
   * @returns the function that lets the reply's cookie name the session; undefined where no cookie can be set: the request
   *   has no express-session, or one whose cookie is for https alone, and is none
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if another worker has claimed the session meanwhile; Error if
   *   the session routing has read another ID from the request, or none
   */
  hold(request: IncomingMessage, agentSessionId: string): (() => void) | undefined;
  /**
   * Gives the claim of a session up, of which no record is left: a second later, so that requests which are on their way
   * to this worker find it still, and unless the session is back by then.
   */
  release(agentSessionId: string): void;
  /** To be called when a record's expiry was set outside of a request, so that the next sweep comes in time. */
  settled(): void;
}

/** The records of an agent server's sessions on one worker, which decide how long their claims last. */
export interface AgentSessionHolder {
  /** Whether any record of the session is left: open, failed or closed, or on the way to be. */
  holdsAgentSession(agentSessionId: string): boolean;
  /**
   * Drops at most `limit` of the close receipts and failed seeds whose window has passed at `now`, in seconds of the
   * monotonic clock.
   *
   * @returns the sessions they were of, whose claims are then released where nothing of them is left
   */
  expireAgentSessionRecords(now: number, limit?: number): string[];
  /** Takes what the routing does for the records. Called once, by the routing. */
  useAgentSessionClaims(claims: AgentSessionClaims): void;
  /** When the next record expires; undefined while none does. */
  readonly nextExpiry: number | undefined;
  /** How many records there are. */
  readonly size: number;
}

/** Lets an agent's own records decide how long its sessions are held. */
export class AgentSessionLifetimes implements SessionLifetimes {
  readonly #sessions: AgentSessionHolder;

  constructor(sessions: AgentSessionHolder) {
    this.#sessions = sessions;
  }

  get nextExpiry(): number | undefined {
    return this.#sessions.nextExpiry;
  }

  get size(): number {
    return this.#sessions.size;
  }

  /** Always false: the reply to a seed names its session only once the agent has opened it. */
  starts(): boolean {
    return false;
  }

  /** Does nothing: the agent records what it serves. */
  served(): void {}

  holds(sessionId: string): boolean {
    return this.#sessions.holdsAgentSession(sessionId);
  }

  /** Does nothing: an agent session ends with its last record. */
  ended(): void {}

  sweep(now: number, limit?: number): string[] {
    return this.#sessions.expireAgentSessionRecords(now, limit);
  }
}
