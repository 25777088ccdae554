import { randomUUID } from 'node:crypto';
import type { Claims } from './claims.ts';
import { SessionRoutingError, silence } from './errors.ts';
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
  /** Whether a session has ended, though its claim is still there. */
  readonly hasEnded: (sessionId: string) => boolean;
  /** Told after a request's records were written, so that the sweep wakes in time. */
  readonly settled: () => void;
  /** Draws a session ID. */
  readonly mint: () => string;
}

/** What express-session has put on a request. */
export interface SessionProperties {
  readonly session?: SessionRequest['session'];
  readonly sessionID?: unknown;
}

/** The session of one request that is served here: its ID, whether its handler used it, and the claims it holds. */
export class RequestSession {
  /** The Cookie field from which {@link cookieId} was read. */
  readonly cookieField: string | undefined;
  /** The ID that the cookie carries. */
  readonly cookieId: string | undefined;
  /** The ID that the body names. */
  bodyId: string | undefined;
  /** The request's session, as the router decided it. None: nothing names one, and none was minted yet. */
  sessionId: string | undefined;
  /** Whether the request starts a session, whose reply names it whatever its handler does. */
  readonly starts: boolean;
  /** Whether the handler read or wrote the session. */
  used = false;
  /** Whether routing.session() has handed a session over to the app. */
  isHandedOver = false;
  /** Where what express-session made of the session can be looked at without using it. */
  properties: SessionProperties;

  readonly #parts: RequestSessionParts;
  readonly #exchange: Exchange;
  /** What is held until the reply has ended, by session ID. */
  #scopes: Map<string, () => void> | undefined;
  /** An ID that was minted and is not claimed, because nothing can have seen it. */
  #unclaimedId: string | undefined;
  /** The session that the reply's cookie names. */
  #namedInReply: string | undefined;
  #hasEnded = false;
  #livedAlready = false;

  constructor(parts: RequestSessionParts, exchange: Exchange, cookieId: string | undefined) {
    this.#parts = parts;
    this.#exchange = exchange;
    this.cookieField = exchange.request.headers.cookie;
    this.sessionId = this.cookieId = cookieId;
    this.properties = exchange.request as SessionProperties;
    this.starts = parts.lifetimes.starts(this.#sessionRequest());
  }

  /** Whether the ID is new to the client: neither its cookie nor its body names it. */
  isNew(sessionId: string): boolean {
    return sessionId !== this.cookieId && sessionId !== this.bodyId;
  }

  /**
   * Whether the request's cookie names a session that the router would keep, whatever this request does: asked once,
   * before the handler runs.
   */
  livesAlready(): boolean {
    const { cookies, lifetimes } = this.#parts;
    this.#livedAlready = cookies === 'router' && this.cookieId !== undefined && lifetimes.holds(this.cookieId);
    return this.#livedAlready;
  }

  /** Takes the ID that the body names. */
  nameByBody(sessionId: string): void {
    this.sessionId = this.bodyId = sessionId;
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
      const sessionId = this.#drawUnclaimed();
      if (this.#holds(sessionId)) return sessionId;
    }
  }

  /**
   * The ID for a session that express-session makes: the request's own until express-session calls `next`, where the
   * router decides on IDs, and a new one ever after. (Otherwise a login keeps the ID from before it: session fixation.)
   */
  generate(): string {
    if (this.isHandedOver) {
      this.sessionId = this.mint();
      this.used = true;
      return this.sessionId;
    }
    if (this.#parts.cookies === 'express-session') return (this.#unclaimedId = this.#drawUnclaimed());
    // Here `use` looks whether the ID is claimed, once a handler uses the session.
    return this.sessionId ?? (this.#unclaimedId = this.#parts.mint());
  }

  /**
   * Notes that the handler used the session. An ID that was minted is claimed now, because the handler may let it
   * leave the process in any way.
   *
   * @returns false if the minted ID exists already, so that another has to be generated
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if the client left before, so that the claim went, and
   *   another worker has made it since
   */
  use(): boolean {
    if (this.used) return true;
    if (this.#unclaimedId !== undefined) {
      if (!this.#claimMinted(this.#unclaimedId)) return false;
    } else if (this.sessionId !== undefined && !this.#holds(this.sessionId)) {
      throw new SessionRoutingError('SESSION_CLAIMED_ELSEWHERE', 'Another worker claimed the session meanwhile.');
    }
    this.used = true;
    return true;
  }

  /**
   * Notes that the reply's head, which is about to be written, names a session in its cookie.
   *
   * @returns false if that is this request's new session, and another worker claims it
   */
  nameInReply(sessionId: string): boolean {
    this.#namedInReply = sessionId;
    // An app may also pass on the cookie of a session that it had another worker make.
    return this.#claimMinted(sessionId) || sessionId !== this.properties.sessionID;
  }

  /** Notes that the session has ended with this request. */
  end(): void {
    this.#hasEnded = true;
  }

  /** Answers the request with a refusal, whatever its handler does from now on. */
  refuse(error: SessionRoutingError): void {
    this.#exchange.refuse(error);
    const { response } = this.#exchange;
    if (response !== undefined) silence(response);
  }

  #drawUnclaimed(): string {
    const { claims, mint } = this.#parts;
    for (;;) {
      const sessionId = mint();
      if (claims.claimant(sessionId) === undefined) return sessionId;
    }
  }

  #holds(sessionId: string): boolean {
    return this.hold(sessionId) === this.#parts.claims.workerId;
  }

  #claimMinted(sessionId: string): boolean {
    if (!this.#holds(sessionId)) return false;
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
      if (!lifetimes.holds(sessionId)) linger(sessionId);
      endScope();
    }
    // A handler that uses the session after its reply has ended begins anew.
    this.#scopes = undefined;
    settled();
  }

  /** Whether the request counts as one for the session, and so decides on how long it lives. */
  #keeps(sessionId: string): boolean {
    const { cookies, lifetimes, hasEnded } = this.#parts;
    if (cookies === 'express-session') {
      if (this.#hasEnded || hasEnded(sessionId)) return false;
      if (sessionId === this.#namedInReply) return true;
      return sessionId === this.cookieId && sessionId === this.properties.sessionID;
    }
    if (sessionId !== this.sessionId) return false;
    // An ID that was minted for an express-session that declined: no app and no client has seen it.
    if (this.isNew(sessionId) && !this.isHandedOver) return false;
    const isKept = this.used || this.starts || this.#livedAlready || sessionId === this.bodyId;
    return isKept || lifetimes.holds(sessionId);
  }

  #record(sessionId: string): void {
    const { session } = this.properties;
    const status = this.#hasEnded ? undefined : this.#exchange.status();
    this.#parts.lifetimes.served(sessionId, { ...this.#sessionRequest(), session }, status);
  }
}

/** Draws a session ID that nobody can guess. */
export const randomSessionId = (): string => randomUUID();
