import type { IncomingMessage } from 'node:http';
import { readBody, type JsonBodyReader } from './bodies.ts';
import { SessionRoutingError } from './errors.ts';
import type { Exchange } from './exchange.ts';
import type { Forwarder } from './forward.ts';
import { removeField } from './headers.ts';
import { lostClaim, RequestSession, type RequestSessionParts } from './request-session.ts';
import { checkSessionId, type SignedCookieReader } from './session-id.ts';
import type { BodyReader, HeadReader, SessionKind } from './session-kind.ts';

/** What the rule is made of. */
export interface SessionRouterParts {
  readonly kind: SessionKind;
  /** None for a kind whose sessions no cookie names. */
  readonly readCookie: SignedCookieReader | undefined;
  readonly readHead: HeadReader | undefined;
  readonly readJson: JsonBodyReader;
  readonly bodyLimit: number;
  readonly requestParts: RequestSessionParts;
  readonly forwarder: Forwarder;
  /** The private socket of a worker. */
  readonly socketPathOf: (workerId: string) => string;
  /** Whether nothing listens on a private socket any longer. */
  readonly isSocketGone: (socketPath: string) => Promise<boolean>;
  /** Whether a request came over a private socket. */
  readonly isForwarded: (request: IncomingMessage) => boolean;
  /** Called before a request is handled here. */
  readonly onServed: (exchange: Exchange, current: RequestSession) => void;
}

/** The most bytes that a request may have that begins a new session in the place of one that is there no longer. */
const restartBytes = 65_536;

/** A request, under whose symbols each router keeps its session. */
type RoutedRequest = IncomingMessage & { [key: symbol]: RequestSession | undefined };

/**
 * The rule: find the request's session ID, look up the session's claim, and forward the request to the claimant, or
 * handle it here if that is this worker, or nobody yet.
 */
export class SessionRouter {
  readonly #parts: SessionRouterParts;
  /** Under which a request keeps its session: on the request itself, since a weak map of requests costs collections. */
  readonly #key = Symbol('express-session-routing');

  constructor(parts: SessionRouterParts) {
    this.#parts = parts;
  }

  /** The session of a request that the rule has seen. */
  sessionOf(request: IncomingMessage): RequestSession | undefined {
    return (request as RoutedRequest)[this.#key];
  }

  /** The session that the head of a request would name on another path, by something else than its cookie. */
  namedByHead(request: IncomingMessage, path: string): string | undefined {
    try {
      return this.#parts.readHead?.(request, path, undefined);
    } catch {
      return undefined; // a refusal, which the request would have got
    }
  }

  /** Applies the rule; `proceed` hands the request to the app. */
  route(exchange: Exchange, proceed: () => void): void {
    let current: RequestSession;
    try {
      current = this.#identify(exchange);
      if (exchange.response !== undefined) {
        const { method, path } = exchange;
        const read = this.#parts.kind.bodyReader(method, path, current.headId !== undefined);
        if (read !== undefined || this.#mayRestart(exchange, current)) {
          void this.#routeByBody(exchange, current, read, proceed);
          return;
        }
      }
      if (!this.#servesHere(exchange, current)) return;
    } catch (error) {
      return this.#refuseWith(exchange, error);
    }
    proceed();
  }

  /**
   * Lets the app handle a request of its own making here, as one of a session that this worker holds.
   *
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if another worker holds it, `SESSION_ID_INVALID`
   */
  adopt(exchange: Exchange, sessionId: string): void {
    const { requestParts, kind, onServed } = this.#parts;
    const current = new RequestSession(requestParts, exchange, kind.expressIdOf(sessionId), false);
    if (current.hold(checkSessionId(sessionId)) !== requestParts.claims.workerId) throw lostClaim();
    (exchange.request as RoutedRequest)[this.#key] = current;
    onServed(exchange, current);
  }

  #identify(exchange: Exchange): RequestSession {
    const { request } = exchange;
    const { readCookie, readHead, kind, requestParts } = this.#parts;
    let expressId = readCookie?.(request.headers.cookie);
    let isByCookie = true;
    if (readHead !== undefined) {
      const cookieId = expressId === undefined ? undefined : kind.sessionIdOf(expressId);
      const headId = readHead(request, exchange.path, cookieId);
      isByCookie = headId === cookieId;
      if (!isByCookie) expressId = headId === undefined ? undefined : kind.expressIdOf(headId);
    }
    const current = new RequestSession(requestParts, exchange, expressId, isByCookie);
    if (current.headId === '' && expressId !== '') {
      throw new SessionRoutingError('AGENT_SESSION_MARKER_INVALID', `Invalid ${kind.kind} session marker`);
    }
    if (current.headId !== undefined) checkSessionId(current.headId);
    (request as RoutedRequest)[this.#key] = current;
    return current;
  }

  /** Whether a request may begin anew in the place of a session that is there no longer, so that its body has to tell. */
  #mayRestart({ method, path, request }: Exchange, { headId }: RequestSession): boolean {
    const { kind } = this.#parts;
    if (headId === undefined || !kind.restart?.matches(method, path)) return false;
    // A longer body, or one of unknown length, goes its way unread.
    if (!(Number(request.headers['content-length']) <= restartBytes)) return false;
    // What this worker holds, or another does, is decided there: a forwarded request is asked again.
    return !this.#isHeldHere(headId);
  }

  async #routeByBody(
    exchange: Exchange,
    identified: RequestSession,
    read: BodyReader | undefined,
    proceed: () => void,
  ): Promise<void> {
    const { bodyLimit, readJson, kind } = this.#parts;
    const { request } = exchange;
    let current = identified;
    try {
      exchange.continue();
      const bytes = await readBody(request, bodyLimit);
      if (bytes === undefined) return; // the client left
      const body = await readJson(bytes, request.headers);
      const bodyId = read?.(body);
      if (bodyId !== undefined) nameByBody(current, checkSessionId(bodyId), kind.mismatch);
      else if (kind.restart?.reads(body) && (await this.#isLost(current.headId))) {
        removeField(request, kind.restart.field);
        current = this.#identify(exchange);
      }
      if (!this.#servesHere(exchange, current)) return;
    } catch (error) {
      return this.#refuseWith(exchange, error);
    }
    // Out of the promise: what a listener throws is to end the way it does where nothing was awaited.
    process.nextTick(proceed);
  }

  /** Whether this worker holds a session, and does not merely claim it for requests that found nothing of it. */
  #isHeldHere(sessionId: string): boolean {
    const { claims, lifetimes } = this.#parts.requestParts;
    return claims.isMine(sessionId) && lifetimes.holds(sessionId);
  }

  /** Whether nobody holds a session that a request names, or no worker that still runs. */
  async #isLost(sessionId: string | undefined): Promise<boolean> {
    const { requestParts, socketPathOf, isSocketGone } = this.#parts;
    if (sessionId === undefined) return false;
    const claimant = requestParts.claims.claimant(sessionId);
    if (claimant === requestParts.claims.workerId) return !this.#isHeldHere(sessionId);
    return claimant === undefined || isSocketGone(socketPathOf(claimant));
  }

  /** Claims the session, or forwards the request to the worker that did. */
  #servesHere(exchange: Exchange, current: RequestSession): boolean {
    const { requestParts, forwarder, socketPathOf, isForwarded, onServed } = this.#parts;
    const { sessionId } = current;
    if (sessionId === undefined) {
      if (current.starts && requestParts.kind.cookies !== 'none') current.sessionId = current.mint();
    } else {
      const claimant = current.hold(sessionId);
      if (claimant !== requestParts.claims.workerId) {
        // It came over a private socket, so it has been forwarded: the claim was lost on the way.
        if (isForwarded(exchange.request)) {
          throw lostClaim();
        }
        exchange.forward(forwarder, socketPathOf(claimant));
        return false;
      }
    }
    onServed(exchange, current);
    return true;
  }

  /** Answers with a refusal. What is no refusal is a fault of the router, and is not to be hidden. */
  #refuseWith(exchange: Exchange, error: unknown): void {
    if (error instanceof SessionRoutingError) return exchange.refuse(error, this.#parts.kind.refusalFormat);
    throw error;
  }
}

function nameByBody(current: RequestSession, bodyId: string, mismatch: string): void {
  if (current.headId !== undefined && current.headId !== bodyId) {
    throw new SessionRoutingError('SESSION_MISMATCH', mismatch);
  }
  current.nameByBody(bodyId);
}
