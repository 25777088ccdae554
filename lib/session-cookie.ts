import type { IncomingMessage, ServerResponse } from 'node:http';
import expressSession, { type CookieOptions, type SessionOptions, type Store } from 'express-session';
import { AppAccessors, type AppRequest } from './app-accessors.ts';
import { SessionRoutingError } from './errors.ts';
import { RequestView, type RequestViewParts } from './request-view.ts';
import type { RequestSession } from './request-session.ts';
import { signCookie, type SignedCookieReader } from './session-id.ts';

/** A middleware of Express or Connect. */
export type Middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void;

/** What `routing.session()` takes: the options of express-session, without those that the routing decides. */
export type RoutedSessionOptions = Omit<SessionOptions, 'genid' | 'name' | 'secret'>;

/** What the bridge needs of the routing. */
export interface SessionBridgeParts extends Omit<RequestViewParts, 'accessors'> {
  readonly readCookie: SignedCookieReader;
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
  const head: HeadParts = { ...parts, proxy: options.proxy };
  const viewParts: RequestViewParts = { ...parts, accessors: new AppAccessors(sessionOf) };
  const inner = expressSession(complete) as unknown as Middleware;

  const middleware: Middleware = function routedSession(request: AppRequest, response, next) {
    let view: RequestView;
    try {
      const current = sessionOf(request);
      if (hasSession(request, current)) return next();
      view = new RequestView(request, response, current, viewParts);
    } catch (error) {
      return next(error);
    }
    watchHead(response, view, head, next);
    inner(view as unknown as IncomingMessage, response, (error) => {
      if (error === undefined) view.handOver();
      const { current, stored } = view;
      if (current.bodyId !== undefined) current.canBeNamed = current.isHandedOver && maySet(stored, view, head);
      view.callNext(next, error);
    });
  };
  return { middleware, store };
}

/**
 * Whether a request has a session already. To ask is no use of the session.
 *
 * @throws SessionRoutingError `SESSION_COOKIE_DISPUTED` if another express-session has run ahead of this one
 */
function hasSession(request: AppRequest, current: RequestSession): boolean {
  const view = RequestView.of(request, current);
  if (view !== undefined) return Boolean(view.standing);
  if (!request.session) return false;
  if (request.sessionStore === undefined) return true; // another library's, which express-session leaves alone too
  throw new SessionRoutingError(
    'SESSION_COOKIE_DISPUTED',
    'An express-session is mounted ahead of the one that routing.session() makes. Mount only one of them.',
  );
}

/** What decides on the cookie in a reply's head. */
interface HeadParts extends SessionBridgeParts {
  /** express-session's option of that name. */
  readonly proxy: boolean | undefined;
}

/** Decides on the cookie of a reply after express-session has, which wraps `writeHead` later. */
function watchHead(response: Reply, view: RequestView, parts: HeadParts, next: (error: unknown) => void): void {
  const { writeHead, _implicitHeader: implicitHeader } = response;
  const mayBeNew = parts.cookies === 'express-session' || view.current.headId === undefined;
  response.writeHead = (...args: unknown[]) => {
    const status = typeof args[0] === 'number' ? args[0] : response.statusCode;
    try {
      if (!response.headersSent) finishHead(response, status, view, parts);
    } catch (error) {
      setImmediate(next, error); // as express-session passes on a cookie that it cannot write
    }
    if (!mayBeNew) return Reflect.apply(writeHead, response, args);
    return view.whileWritingHead(() => Reflect.apply(writeHead, response, args));
  };
  // The usual recipe for the session of a WebSocket upgrade passes `{}` as the reply.
  if (implicitHeader === undefined || !mayBeNew) return;
  response._implicitHeader = () => view.whileWritingHead(() => implicitHeader.call(response));
}

/**
 * Adds the session's cookie to a head that is about to be written, where the rule wants it and express-session did not
 * set it, and takes it off where the rule does not, and off a 5xx.
 */
function finishHead(response: ServerResponse, status: number, view: RequestView, parts: HeadParts): void {
  const { cookies, name, secrets, readCookie } = parts;
  const { naming, standingExpressId, isHandedOver } = view.current;
  if (cookies !== 'router' || !isHandedOver) return;
  const fields = setCookies(response);
  const isSent = (field: string): boolean => field.startsWith(`${name}=`);
  if (status >= 500 || naming === 'withheld') {
    const kept = fields.filter((field) => !isSent(field) || readCookie(field.split(';', 1)[0]) === undefined);
    return replaceSetCookies(response, kept);
  }
  const { session } = view;
  if (!session || standingExpressId === undefined || naming !== 'named' || fields.some(isSent)) return;
  if (!maySet(session, view, parts)) return;
  session.touch();
  const cookie = session.cookie.serialize(name, signCookie(standingExpressId, secrets[0] ?? ''));
  replaceSetCookies(response, [...fields, cookie]);
}

/** Whether the cookie of a session may be set on the reply to a request. */
function maySet(session: RequestView['stored'], { request }: RequestView, { proxy }: HeadParts): boolean {
  return !session?.cookie.secure || isSecure(request, proxy);
}

/** Whether a Secure cookie may be set, by express-session's own rule for its `proxy` option. */
function isSecure(request: AppRequest, proxy: boolean | undefined): boolean {
  if ((request.socket as { encrypted?: boolean }).encrypted) return true;
  if (proxy === false) return false;
  if (proxy !== true) return request.secure === true;
  const [first = ''] = String(request.headers['x-forwarded-proto'] ?? '').split(',');
  return first.trim().toLowerCase() === 'https';
}

/** The `Set-Cookie` fields that a reply has so far. */
export function setCookies(response: ServerResponse): string[] {
  const fields = response.getHeader('Set-Cookie');
  return fields === undefined ? [] : [fields].flat().map(String);
}

/** Puts other `Set-Cookie` fields in the place of those that a reply has. */
export function replaceSetCookies(response: ServerResponse, fields: string[]): void {
  if (fields.length > 0) response.setHeader('Set-Cookie', fields);
  else response.removeHeader('Set-Cookie');
}
