import { randomUUID } from 'node:crypto';
import type { Claims } from './claims.ts';
import type { Exchange } from './exchange.ts';
import type { SessionLifetimes, SessionRequest } from './lifetimes.ts';

/** What the requests of one worker share. */
export interface RequestSessionParts {
  readonly claims: Claims;
  readonly lifetimes: SessionLifetimes;
  /** As {@link SessionKind.cookies} has it. */
  readonly cookies: 'router' | 'express-session';
  /** Keeps the claim of a session that a request did not use until no client can be about to use it. */
  readonly linger: (sessionId: string) => void;
  /** Told after a request's records were written, so that the sweep wakes in time. */
  readonly settled: () => void;
  /** Draws a session ID. */
  readonly mint: () => string;
}

/** The session of one request that is served here: its ID, whether its handler used it, and the claims it holds. */
export class RequestSession {
  /** The ID that the cookie carries. */
  readonly cookieId: string | undefined;
  /** The request's session, as the router decided it. None: nothing names one, and none was minted yet. */
  sessionId: string | undefined;
  /** Whether the request's body names the session. */
  isNamedByBody = false;
  /** Whether the request starts a session, whose reply names it whatever its handler does. */
  readonly starts: boolean;
  /** Whether the handler read or wrote the session. */
  used = false;
  /** `unread` until express-session begins, `reading` until it calls `next`, then `handling`. */
  phase: 'unread' | 'reading' | 'handling' = 'unread';

  readonly #parts: RequestSessionParts;
  readonly #exchange: Exchange;
  /** What is held until the reply has ended, by session ID. */
  #scopes: Map<string, () => void> | undefined;
  /** An ID that was minted and is not claimed, because nothing can have seen it. */
  #unclaimedId: string | undefined;
  #namedInReply = false;
  #over = false;

  constructor(parts: RequestSessionParts, exchange: Exchange, cookieId: string | undefined) {
    this.#parts = parts;
    this.#exchange = exchange;
    this.sessionId = this.cookieId = cookieId;
    this.starts = parts.lifetimes.starts(this.#sessionRequest());
  }

  /** Whether the ID is new to the client: neither its cookie nor its body names it. */
  isNew(sessionId: string): boolean {
    return sessionId !== this.cookieId && !(this.isNamedByBody && sessionId === this.sessionId);
  }

  /** Takes the ID that the body names. */
  nameByBody(sessionId: string): void {
    this.sessionId = sessionId;
    this.isNamedByBody = true;
  }

  /**
   * Claims a session for this worker, and holds the claim until the reply has ended.
   *
   * @returns the claimant: this worker, or another
   */
  hold(sessionId: string): string {
    const { claims } = this.#parts;
    if (this.#scopes?.has(sessionId)) return claims.workerId;
    // Looking a claim up costs less than failing to make one.
    const claimant = claims.claimant(sessionId) ?? claims.claim(sessionId);
    if (claimant !== claims.workerId) return claimant;
    if (this.#scopes === undefined) {
      this.#scopes = new Map();
      this.#exchange.onClosed(() => this.#close());
    }
    this.#scopes.set(sessionId, claims.serving(sessionId));
    return claimant;
  }

  /** Mints a session ID and holds its claim. */
  mint(): string {
    for (;;) {
      const sessionId = this.#parts.mint();
      if (this.#parts.claims.claimant(sessionId) !== undefined) continue;
      if (this.hold(sessionId) === this.#parts.claims.workerId) return sessionId;
    }
  }

  /**
   * The ID for a session that express-session makes: the request's own until express-session calls `next`, where the
   * router decides on IDs, and a new one ever after. (Otherwise a login keeps the ID from before it: session fixation.)
   */
  generate(): string {
    if (this.phase === 'handling') {
      this.used = true;
      return (this.sessionId = this.mint());
    }
    if (this.#parts.cookies === 'router' && this.sessionId !== undefined) return this.sessionId;
    return (this.#unclaimedId = this.#parts.mint());
  }

  /**
   * Notes that the handler used the session. An ID that was minted is claimed now, because the handler may let it
   * leave the process in any way.
   *
   * @returns false if the minted ID exists already, so that another has to be generated
   */
  use(): boolean {
    if (this.used) return true;
    this.used = true;
    const sessionId = this.#unclaimedId;
    return sessionId === undefined || this.#claimMinted(sessionId);
  }

  /**
   * Notes that the reply's head, which is about to be written, names a session in its cookie.
   *
   * @returns false if another worker claims that session
   */
  nameInReply(sessionId: string): boolean {
    this.#namedInReply = true;
    if (sessionId === this.sessionId) return true;
    return this.#claimMinted(sessionId);
  }

  /** Notes that the session has ended with this request. */
  end(): void {
    this.#over = true;
  }

  #claimMinted(sessionId: string): boolean {
    if (this.hold(sessionId) !== this.#parts.claims.workerId) return false;
    this.sessionId = sessionId;
    this.#unclaimedId = undefined;
    return true;
  }

  #sessionRequest(): SessionRequest {
    const { request, method, path } = this.#exchange;
    return { method, path, headers: request.headers };
  }

  #close(): void {
    const { lifetimes, linger, settled } = this.#parts;
    for (const [sessionId, endScope] of this.#scopes ?? []) {
      if (this.#keeps(sessionId)) this.#record(sessionId);
      else if (!lifetimes.holds(sessionId)) linger(sessionId);
      endScope();
    }
    // A handler that uses the session after its reply has ended begins anew.
    this.#scopes = undefined;
    settled();
  }

  /** Whether the request counts as one for the session, and so decides on how long it lives. */
  #keeps(sessionId: string): boolean {
    if (this.#over && this.#parts.cookies === 'express-session') return false;
    if (this.#parts.cookies === 'router') {
      if (sessionId !== this.sessionId) return false;
      return this.used || this.starts || this.isNamedByBody || this.#parts.lifetimes.holds(sessionId);
    }
    const { sessionID } = this.#exchange.request as { sessionID?: unknown };
    return sessionID === sessionId && (sessionId === this.cookieId || this.#namedInReply);
  }

  #record(sessionId: string): void {
    const { session } = this.#exchange.request as { session?: SessionRequest['session'] };
    this.#parts.lifetimes.served(sessionId, { ...this.#sessionRequest(), session }, this.#exchange.status());
  }
}

/** Draws a session ID that nobody can guess. */
export const randomSessionId = (): string => randomUUID();
