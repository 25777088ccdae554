import type { IncomingMessage, ServerResponse } from 'node:http';
import expressSession, { type CookieOptions, type SessionOptions, type Store } from 'express-session';
import { SessionRoutingError } from './errors.ts';
import { RequestView, type AppRequest, type RequestViewParts } from './request-view.ts';
import type { RequestSession } from './request-session.ts';

/** A middleware of Express or Connect. */
export type Middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void;

/** What `routing.session()` takes: the options of express-session, without those that the routing decides. */
export type RoutedSessionOptions = Omit<SessionOptions, 'genid' | 'name' | 'secret'>;

/** What the bridge needs of the routing. */
export interface SessionBridgeParts extends Omit<RequestViewParts, 'proxy'> {
  /** The session of a request that the rule has let through. Throws where the rule has not run. */
  readonly sessionOf: (request: IncomingMessage) => RequestSession;
  readonly genid: (request: IncomingMessage) => string;
}

/** A reply, with the member by which Node itself writes a head that nobody has written. */
type Reply = ServerResponse & { _implicitHeader?(): void };

/**
 * Wraps express-session so that it obeys the router: it sees the request's session as the router decided it, and the
 * router learns whether the handler used the session.
 *
 * @returns the middleware, and the store that it uses
 */
export function bridgeExpressSession(
  options: RoutedSessionOptions,
  parts: SessionBridgeParts,
): { middleware: Middleware; store: Store } {
  const { name, secrets, genid, sessionOf } = parts;
  const store = options.store ?? new expressSession.MemoryStore();
  const complete: SessionOptions = {
    ...options,
    store,
    name,
    secret: [...secrets],
    // A store may also be asked to generate a session for the request itself.
    genid: (seen: unknown) => (seen instanceof RequestView ? seen.generateId() : genid(seen as IncomingMessage)),
  };
  const { cookie } = options as { cookie?: unknown };
  if (typeof cookie === 'function') {
    const cookieOf = (seen: unknown): CookieOptions => cookie(seen instanceof RequestView ? seen.request : seen);
    Object.assign(complete, { cookie: cookieOf });
  }
  const viewParts: RequestViewParts = { ...parts, proxy: options.proxy };
  const inner = expressSession(complete) as unknown as Middleware;

  const middleware: Middleware = function routedSession(request: AppRequest, response, next) {
    let view: RequestView;
    try {
      const current = sessionOf(request);
      if (hasSession(request)) return next();
      view = new RequestView(request, response, current, viewParts);
    } catch (error) {
      return next(error);
    }
    watchHead(response, view, next);
    inner(view as unknown as IncomingMessage, response, (error) => {
      view.handOver(error);
      next(error);
    });
  };
  return { middleware, store };
}

/**
 * Whether a request has a session already. To ask is no use of the session.
 *
 * @throws SessionRoutingError `SESSION_COOKIE_DISPUTED` if another express-session has run ahead of this one
 */
function hasSession(request: AppRequest): boolean {
  const view = RequestView.of(request);
  if (view !== undefined) return Boolean(view.session);
  if (!request.session) return false;
  if (request.sessionStore === undefined) return true; // another library's, which express-session leaves alone too
  throw new SessionRoutingError(
    'SESSION_COOKIE_DISPUTED',
    'An express-session is mounted ahead of the one that routing.session() makes. Mount only one of them.',
  );
}

/** Lets the view decide on the cookie after express-session has, which wraps `writeHead` later. */
function watchHead(response: Reply, view: RequestView, next: (error: unknown) => void): void {
  const { writeHead, _implicitHeader: implicitHeader } = response;
  // The usual recipe for the session of a WebSocket upgrade passes `{}` as the reply.
  if (typeof writeHead !== 'function') return;
  response.writeHead = (...args: unknown[]) => {
    try {
      if (!response.headersSent) view.finishHead(typeof args[0] === 'number' ? args[0] : response.statusCode);
    } catch (error) {
      setImmediate(next, error); // as express-session passes on a cookie that it cannot write
    }
    return view.whileWritingHead(() => Reflect.apply(writeHead, response, args));
  };
  if (implicitHeader === undefined) return;
  response._implicitHeader = () => view.whileWritingHead(() => implicitHeader.call(response));
}
