import type { IncomingMessage } from 'node:http';
import { readBody, type BodySessionIdReader } from './bodies.ts';
import { SessionRoutingError } from './errors.ts';
import type { Exchange } from './exchange.ts';
import type { Forwarder } from './forward.ts';
import { lostClaim, RequestSession, type RequestSessionParts } from './request-session.ts';
import { checkSessionId, type SignedCookieReader } from './session-id.ts';
import type { SessionKind } from './session-kinds.ts';

/** What the rule is made of. */
export interface SessionRouterParts {
  readonly kind: SessionKind;
  readonly readCookie: SignedCookieReader;
  readonly readBodySessionId: BodySessionIdReader;
  readonly bodyLimit: number;
  readonly requestParts: RequestSessionParts;
  readonly forwarder: Forwarder;
  /** The private socket of a worker. */
  readonly socketPathOf: (workerId: string) => string;
  /** Whether a request came over a private socket. */
  readonly isForwarded: (request: IncomingMessage) => boolean;
  /** Called before a request is handled here. */
  readonly onServed: (exchange: Exchange, current: RequestSession) => void;
}

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

  /** Applies the rule; `proceed` hands the request to the app. */
  route(exchange: Exchange, proceed: () => void): void {
    let current: RequestSession;
    try {
      current = this.#identify(exchange);
      if (this.#parts.kind.namesSessionInBody(exchange.method, exchange.path) && exchange.response !== undefined) {
        void this.#routeByBody(exchange, current, proceed);
        return;
      }
      if (!this.#servesHere(exchange, current)) return;
    } catch (error) {
      return refuseWith(exchange, error);
    }
    proceed();
  }

  #identify(exchange: Exchange): RequestSession {
    const { request } = exchange;
    const { readCookie, kind, requestParts } = this.#parts;
    const expressId = readCookie(request.headers.cookie);
    const current = new RequestSession(requestParts, exchange, expressId);
    if (current.cookieId === '' && expressId !== '') {
      throw new SessionRoutingError('AGENT_SESSION_MARKER_INVALID', `Invalid ${kind.kind} session marker`);
    }
    if (current.cookieId !== undefined) checkSessionId(current.cookieId);
    (request as RoutedRequest)[this.#key] = current;
    return current;
  }

  async #routeByBody(exchange: Exchange, current: RequestSession, proceed: () => void): Promise<void> {
    const { bodyLimit, readBodySessionId } = this.#parts;
    const { request } = exchange;
    try {
      exchange.continue();
      const bytes = await readBody(request, bodyLimit);
      if (bytes === undefined) return; // the client left
      const bodyId = await readBodySessionId(bytes, request.headers);
      if (bodyId !== undefined) nameByBody(current, checkSessionId(bodyId), this.#parts.kind.mismatch);
      if (!this.#servesHere(exchange, current)) return;
    } catch (error) {
      return refuseWith(exchange, error);
    }
    // Out of the promise: what a listener throws is to end the way it does where nothing was awaited.
    process.nextTick(proceed);
  }

  /** Claims the session, or forwards the request to the worker that did. */
  #servesHere(exchange: Exchange, current: RequestSession): boolean {
    const { requestParts, forwarder, socketPathOf, isForwarded, onServed } = this.#parts;
    const { sessionId } = current;
    if (sessionId === undefined) {
      if (current.starts) current.sessionId = current.mint();
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
}

function nameByBody(current: RequestSession, bodyId: string, mismatch: string): void {
  if (current.cookieId !== undefined && current.cookieId !== bodyId) {
    throw new SessionRoutingError('SESSION_MISMATCH', mismatch);
  }
  current.nameByBody(bodyId);
}

/** Answers with a refusal. What is no refusal is a fault of the router, and is not to be hidden. */
function refuseWith(exchange: Exchange, error: unknown): void {
  if (error instanceof SessionRoutingError) return exchange.refuse(error);
  throw error;
}
