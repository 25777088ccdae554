import { randomUUID } from 'node:crypto';
import type { Claims } from './claims.ts';
import { SessionRoutingError, silence } from './errors.ts';
import type { Exchange } from './exchange.ts';
import { HeldClaims } from './held-claims.ts';
import type { SessionLifetimes, SessionRequest } from './lifetimes.ts';
import { checkSessionId } from './session-id.ts';
import type { SessionKind } from './session-kind.ts';

/** What the requests of one worker share. */
export interface RequestSessionParts {
  readonly claims: Claims;
  readonly lifetimes: SessionLifetimes;
  readonly kind: Pick<
    SessionKind,
    'cookies' | 'routesNewSessions' | 'expressIdOf' | 'sessionIdOf' | 'refusalFormat' | 'replyField'
  >;
  /** Keeps the claim of a session that a request did not use until no client can be about to use it. */
  readonly linger: (sessionId: string) => void;
  /** Claims a session that the app has opened. Returns whether this worker claims it. */
  readonly open: (sessionId: string) => boolean;
  /** Whether a session has ended, though its claim is still there. */
  readonly hasEnded: (sessionId: string) => boolean;
  /** Forgets that a session has ended, since a request comes for it that may begin it anew. */
  readonly renew: (sessionId: string) => void;
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
  /** The Cookie field from which {@link headId} was read; null if it was read elsewhere. */
  readonly cookieField: string | undefined | null;
  /** The express-session ID that the head of the request names: by its cookie, or by what counts in its place. */
  readonly headExpressId: string | undefined;
  /** The session that the head of the request names. */
  readonly headId: string | undefined;
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
  /** Whether a cookie for the session that the body names can be set on the reply. */
  canBeNamed = false;
  /** Where what express-session made of the session can be looked at without using it. */
  properties: SessionProperties;

  readonly #parts: RequestSessionParts;
  readonly #exchange: Exchange;
  /** What lifetimes are told of the request: the session, once its reply has ended. */
  readonly #request: { -readonly [Key in keyof SessionRequest]-?: SessionRequest[Key] };
  /** What is held until the reply has ended. */
  #held: HeldClaims | undefined;
  /** An ID that was minted and is not claimed, because nothing can have seen it. */
  #unclaimedId: string | undefined;
  /** The session that was held already when the request came for it. */
  #heldId: string | undefined;
  /** The session that the reply's cookie names. */
  #namedInReply: string | undefined;
  #isNamed = false;
  #hasEnded = false;
  #livedAlready = false;

  /**
   * @param headExpressId the express-session ID that the head of the request names, if it does
   * @param isByCookie whether that is what the cookie says
   */
  constructor(parts: RequestSessionParts, exchange: Exchange, headExpressId: string | undefined, isByCookie: boolean) {
    this.#parts = parts;
    this.#exchange = exchange;
    this.cookieField = isByCookie ? exchange.request.headers.cookie : null;
    this.headExpressId = headExpressId;
    this.sessionId = this.headId = headExpressId === undefined ? undefined : parts.kind.sessionIdOf(headExpressId);
    this.properties = exchange.request as SessionProperties;
    const { request, method, path } = exchange;
    this.#request = { method, path, headers: request.headers, session: undefined };
    this.starts = parts.lifetimes.starts(this.#request);
  }

  /** The ID of the express-session that the request names: by its body, or else by its head. */
  get expressId(): string | undefined {
    return this.bodyId === undefined ? this.headExpressId : this.#parts.kind.expressIdOf(this.bodyId);
  }

  /** The ID of the express-session that is the request's session now; undefined for an ordinary one. */
  get standingExpressId(): string | undefined {
    return this.sessionId === undefined ? undefined : this.#parts.kind.expressIdOf(this.sessionId);
  }

  /** Whether an express-session ID is new to the client: it names it neither in its head nor in its body. */
  isNew(expressId: string): boolean {
    return expressId !== this.expressId;
  }

  /**
   * Whether the reply's cookie is to name the session, where the router decides on cookies: `withheld` means that it
   * must not; undefined leaves it to express-session.
   */
  get naming(): 'named' | 'withheld' | undefined {
    const { sessionId } = this;
    if (sessionId === undefined) return undefined;
    if (this.starts || this.#isNamed || (this.used && !this.#isNamedByRequest(sessionId))) return 'named';
    return this.headId === undefined && !this.#parts.kind.routesNewSessions ? 'withheld' : undefined;
  }

  /**
   * Whether the head of the request names a session that the router would keep, whatever this request does: asked once,
   * before the handler runs.
   */
  livesAlready(): boolean {
    const { kind, lifetimes } = this.#parts;
    this.#livedAlready = kind.cookies === 'router' && this.headId !== undefined && lifetimes.holds(this.headId);
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
    const { claims, kind, lifetimes } = this.#parts;
    const held = this.#held;
    if (held?.has(sessionId)) return claims.workerId;
    // Looking a claim up costs less than failing to make one.
    const claimant = claims.claimant(sessionId) ?? claims.claim(sessionId);
    if (claimant !== claims.workerId) return claimant;
    const end = claims.serving(sessionId);
    if (held !== undefined) {
      held.add(sessionId, end);
    } else {
      this.#held = new HeldClaims(sessionId, end);
      this.#exchange.onClosed(() => this.#close());
    }
    // By a store, express-session tells itself whether a session is there.
    if (kind.cookies !== 'express-session') this.#parts.renew(sessionId);
    if (kind.replyField !== undefined && lifetimes.holds(sessionId)) this.#heldId = sessionId;
    return claimant;
  }

  /**
   * Takes a session that the reply's head, which is about to be written, says the app has opened. A reply may also name
   * the request's own session, as some do that end it. One that fails (from 400 on) may repeat any name: it opens a
   * session only if the app says besides that it has it.
   *
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if another worker claims one of the same ID
   */
  openInReply(sessionId: string, status: number): void {
    const { lifetimes } = this.#parts;
    // The app wrote this head for a session that has ended since the request came, and opens nothing.
    if (sessionId === this.#heldId && !lifetimes.holds(sessionId)) return;
    if (status >= 400 && lifetimes.isOpen?.(sessionId) !== true) return;
    if (!this.#holds(checkSessionId(sessionId)) || !this.#parts.open(sessionId)) throw lostClaim();
    this.sessionId ??= sessionId;
  }

  /** Mints a session ID and holds its claim. */
  mint(): string {
    for (;;) {
      const sessionId = this.#drawUnclaimed();
      if (this.#holds(sessionId)) return sessionId;
    }
  }

  /**
   * The ID for an express-session that is made: the request's own until express-session calls `next`, where the
   * router decides on IDs, and a new one ever after. (Otherwise a login keeps the ID from before it: session fixation.)
   */
  generate(): string {
    const { kind, mint } = this.#parts;
    if (this.isHandedOver) {
      this.used = true;
      this.sessionId = kind.routesNewSessions ? this.mint() : undefined;
      return this.sessionId ?? mint();
    }
    if (kind.cookies === 'express-session') return (this.#unclaimedId = this.#drawUnclaimed());
    const { standingExpressId = this.expressId } = this;
    if (standingExpressId !== undefined) return standingExpressId;
    const expressId = mint();
    // `use` looks whether the ID is claimed, once a handler uses the session.
    if (kind.routesNewSessions) this.#unclaimedId = expressId;
    return expressId;
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
      throw lostClaim();
    }
    this.used = true;
    return true;
  }

  /**
   * Holds the claim of the session that the body names, for an app that is about to keep something of it: the client
   * may have left before, and the claim with it.
   *
   * @returns the function that lets the reply's cookie name the session; undefined if no cookie can be set
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if another worker has claimed the session meanwhile; Error if
   *   the body names another session, or none
   */
  holdNamed(sessionId: string): (() => void) | undefined {
    if (sessionId !== this.bodyId) {
      throw new Error(
        'The session routing has read another session ID from the body of this request, or none. If the routes are ' +
          'mounted below a path, give the kind that basePath.',
      );
    }
    if (!this.#holds(sessionId)) throw lostClaim();
    return this.canBeNamed ? () => void (this.#isNamed = true) : undefined;
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
    this.#exchange.refuse(error, this.#parts.kind.refusalFormat);
    const { response } = this.#exchange;
    if (response !== undefined) silence(response);
  }

  #isNamedByRequest(sessionId: string): boolean {
    return sessionId === this.headId || sessionId === this.bodyId;
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

  #close(): void {
    const { lifetimes, linger, settled } = this.#parts;
    this.#held?.end((sessionId) => {
      if (this.#keeps(sessionId)) this.#record(sessionId);
      if (!lifetimes.holds(sessionId)) linger(sessionId);
    });
    // A handler that uses the session after its reply has ended begins anew.
    this.#held = undefined;
    settled();
  }

  /** Whether the request counts as one for the session, and so decides on how long it lives. */
  #keeps(sessionId: string): boolean {
    const { kind, lifetimes, hasEnded } = this.#parts;
    // What has ended with it, or while it was served, is not held by it: some kinds hold it a while longer by themselves.
    const isOver = hasEnded(sessionId) && !lifetimes.holds(sessionId);
    if (kind.cookies === 'none') return !isOver;
    if (kind.cookies === 'express-session') {
      if (this.#hasEnded || hasEnded(sessionId)) return false;
      if (sessionId === this.#namedInReply) return true;
      return sessionId === this.headId && sessionId === this.properties.sessionID;
    }
    if (sessionId !== this.sessionId || isOver) return false;
    // An ID that was minted for an express-session that declined: no app and no client has seen it.
    if (!this.#isNamedByRequest(sessionId) && !this.isHandedOver) return false;
    const isKept = this.used || this.starts || this.#livedAlready || sessionId === this.bodyId;
    return isKept || lifetimes.holds(sessionId);
  }

  #record(sessionId: string): void {
    if (this.#parts.kind.cookies !== 'none') this.#request.session = this.properties.session;
    const status = this.#hasEnded ? undefined : this.#exchange.status();
    this.#parts.lifetimes.served(sessionId, this.#request, status);
  }
}

/** The refusal of a request whose claim was lost. */
export function lostClaim(): SessionRoutingError {
  return new SessionRoutingError('SESSION_CLAIMED_ELSEWHERE', 'Another worker claimed the session meanwhile.');
}

/** Draws a session ID that nobody can guess. */
export const randomSessionId = (): string => randomUUID();
