import type { IncomingMessage, ServerResponse } from 'node:http';
import { debuglog } from 'node:util';
import expressSession, { type SessionData, type SessionOptions, type Store } from 'express-session';
import type { RequestSession } from './request-session.ts';
import { signCookie } from './session-id.ts';

const debug = debuglog('express-session-routing');

/** A middleware of Express or Connect. */
export type Middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void;

/** What `routing.session()` takes: the options of express-session, without those that the routing decides. */
export type RoutedSessionOptions = Omit<SessionOptions, 'genid' | 'name' | 'secret'>;

/** What the bridge needs of the routing. */
export interface SessionBridgeParts {
  readonly name: string;
  readonly secrets: readonly string[];
  /** As {@link SessionKind.cookies} has it. */
  readonly cookies: 'router' | 'express-session';
  /** The session of a request that the rule has let through. Throws where the rule has not run. */
  readonly sessionOf: (request: IncomingMessage) => RequestSession;
  readonly genid: (request: IncomingMessage) => string;
}

/** A request as express-session leaves it. */
type SessionRequest = IncomingMessage & {
  session?: (SessionData & { cookie: CookieOfSession; touch(): unknown }) | undefined;
  sessionID?: string | undefined;
  sessionStore?: Store;
  cookies?: unknown;
  signedCookies?: unknown;
  secure?: boolean;
};

/** A reply, with the member by which Node itself writes a head that nobody has written. */
type Reply = ServerResponse & { _implicitHeader(): void };

/** Members of express-session's Cookie that its type declarations leave out or narrow. */
type CookieOfSession = SessionData['cookie'] & { serialize(name: string, value: string): string };

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
  const store = options.store ?? new expressSession.MemoryStore();
  const { name, secrets, genid } = parts;
  const inner = expressSession({ ...options, store, name, secret: [...secrets], genid }) as unknown as Middleware;
  const watched = new WeakMap<object, () => void>();

  // `req.session.destroy()` deletes the accessor; a session that is generated after it is watched again.
  const { generate } = store as unknown as { generate: (request: IncomingMessage) => void };
  const generateAndWatch = function (this: Store, request: IncomingMessage): void {
    generate.call(this, request);
    watched.get(request)?.();
  };
  Object.assign(store, { generate: generateAndWatch });

  const middleware: Middleware = function routedSession(request: SessionRequest, response, next) {
    if (request.session) return next();
    let current: RequestSession;
    try {
      current = parts.sessionOf(request);
    } catch (error) {
      return next(error);
    }

    const reply = new WatchedReply(response, options, parts, current, request);
    current.phase = 'reading';
    const restore = showOnly(request, current, parts);
    try {
      inner(request, response, (error) => {
        restore();
        current.phase = 'handling';
        reply.wrapOutside();
        if (error === undefined && request.session) {
          const watch = (): void => watchSession(request, response, current, reply);
          watched.set(request, watch);
          watch();
        }
        next(error);
      });
    } finally {
      restore();
      reply.wrapOutside();
    }
  };
  return { middleware, store };
}

/**
 * Lets express-session, while it reads its cookie, see exactly the request's session, or none.
 *
 * (It consults its store only for a cookie, so a retried seed without one would overwrite what was stored; and it
 * reads `req.cookies` and `req.signedCookies`, which a cookie parser may have filled with another secret.)
 *
 * @returns a function that restores the request
 */
function showOnly(request: SessionRequest, current: RequestSession, { name, secrets }: SessionBridgeParts): () => void {
  if (current.cookieId !== undefined) return () => undefined;
  // An ID that was minted is in no store, so there is nothing to look up.
  const sessionId = current.isNamedByBody ? current.sessionId : undefined;
  const { headers, cookies, signedCookies } = request;
  const { cookie } = headers;
  const [newest = ''] = secrets;
  if (sessionId !== undefined) headers.cookie = `${name}=${encodeURIComponent(signCookie(sessionId, newest))}`;
  else if (cookie !== undefined) headers.cookie = '';
  if (cookies !== undefined) request.cookies = undefined;
  if (signedCookies !== undefined) request.signedCookies = undefined;

  return function restore() {
    if (cookie !== undefined) headers.cookie = cookie;
    else delete headers.cookie;
    if (cookies !== undefined) request.cookies = cookies;
    if (signedCookies !== undefined) request.signedCookies = signedCookies;
  };
}

/** Puts accessors in the place of `req.session` and `req.sessionID`, by which the router learns of their use. */
function watchSession(
  request: SessionRequest,
  response: ServerResponse,
  current: RequestSession,
  reply: WatchedReply,
): void {
  let { session, sessionID } = request;
  reply.session = () => (isAccessor(request, 'session') ? session : request.session);

  const use = (): void => {
    if (current.used) return;
    if (response.headersSent && sessionID !== undefined && current.isNew(sessionID)) {
      debug('the session of %s %s was first used after the head of the reply', request.method, request.url);
    }
    // An ID that exists already: another is generated, which claims it. Nothing has seen the first one yet.
    if (!current.use()) (request.sessionStore as unknown as { generate(of: SessionRequest): void }).generate(request);
  };

  Object.defineProperties(request, {
    session: {
      configurable: true, // `req.session.destroy()` deletes it
      enumerable: true,
      get() {
        if (reply.isExpressSessionRunning) return reply.hidesSession() ? undefined : session;
        use();
        return session;
      },
      set(value: typeof session) {
        session = value;
        use();
      },
    },
    sessionID: {
      configurable: true,
      enumerable: true,
      get() {
        if (reply.isExpressSessionRunning) return reply.hidesSession() ? undefined : sessionID;
        use();
        return sessionID;
      },
      set(value: string | undefined) {
        sessionID = value;
        use();
      },
    },
  });
}

function isAccessor(request: object, key: string): boolean {
  return Object.getOwnPropertyDescriptor(request, key)?.get !== undefined;
}

/**
 * A reply whose `writeHead`, `write` and `end` are wrapped on both sides of express-session's own wrappers, so that
 * it is known at any time whether express-session's code runs or somebody else's. What the handler never used is
 * hidden from express-session, and from nobody else: `finish` and header listeners of the app still see it.
 */
class WatchedReply {
  isExpressSessionRunning = false;
  /** The request's session as it is now. */
  session: () => SessionRequest['session'] = () => undefined;

  readonly #response: Reply;
  readonly #options: RoutedSessionOptions;
  readonly #parts: SessionBridgeParts;
  readonly #current: RequestSession;
  readonly #request: SessionRequest;
  /** The status of the head that is being written; 0 at other times. */
  #headStatus = 0;
  #isWrappedOutside = false;

  constructor(
    response: ServerResponse,
    options: RoutedSessionOptions,
    parts: SessionBridgeParts,
    current: RequestSession,
    request: SessionRequest,
  ) {
    this.#response = response as Reply;
    this.#options = options;
    this.#parts = parts;
    this.#current = current;
    this.#request = request;
    this.#wrapInside();
  }

  /** Whether express-session is to see no session: its handler never used it, or the reply is a 5xx. */
  hidesSession(): boolean {
    if (this.#parts.cookies !== 'router') return false;
    if (this.#headStatus >= 500) return true;
    const { used, starts, cookieId, isNamedByBody } = this.#current;
    return !used && !starts && cookieId === undefined && !isNamedByBody;
  }

  /** Wraps what express-session has wrapped. Does nothing the second time. */
  wrapOutside(): void {
    const response = this.#response;
    // The usual recipe for the session of a WebSocket upgrade passes `{}` as the reply.
    if (this.#isWrappedOutside || typeof response._implicitHeader !== 'function') return;
    this.#isWrappedOutside = true;
    const { writeHead, end, _implicitHeader: implicitHeader } = response;
    response.writeHead = (...args: unknown[]) => {
      this.#headStatus = typeof args[0] === 'number' ? args[0] : response.statusCode;
      try {
        return this.#run(true, () => Reflect.apply(writeHead, response, args));
      } finally {
        this.#headStatus = 0;
      }
    };
    response.end = (...args: unknown[]) => this.#run(true, () => Reflect.apply(end, response, args));
    // express-session calls this from its `end`; from here on header listeners of the app run first.
    response._implicitHeader = () => this.#run(false, () => implicitHeader.call(response));
  }

  #wrapInside(): void {
    const response = this.#response;
    if (typeof response._implicitHeader !== 'function') return;
    const { writeHead, write, end } = response;
    response.writeHead = (...args: unknown[]) => {
      if (this.#headStatus !== 0) this.#addCookie();
      return this.#run(false, () => Reflect.apply(writeHead, response, args));
    };
    response.write = (...args: unknown[]) => this.#run(false, () => Reflect.apply(write, response, args));
    response.end = (...args: unknown[]) => this.#run(false, () => Reflect.apply(end, response, args));
  }

  #run<Result>(isExpressSession: boolean, code: () => Result): Result {
    const before = this.isExpressSessionRunning;
    this.isExpressSessionRunning = isExpressSession;
    try {
      return code();
    } finally {
      this.isExpressSessionRunning = before;
    }
  }

  /** Adds the cookie that names the session, where the rule wants it and express-session did not set it. */
  #addCookie(): void {
    const { name, secrets, cookies } = this.#parts;
    const session = this.session();
    const { sessionId, starts, used } = this.#current;
    if (cookies !== 'router' || this.#headStatus >= 500 || !session || sessionId === undefined) return;
    if (!starts && !(used && this.#current.isNew(sessionId))) return;
    if (setCookies(this.#response).some((field) => field.startsWith(`${name}=`))) return;
    if (session.cookie.secure === true && !isSecure(this.#request, this.#options.proxy)) return;
    session.touch();
    const [newest = ''] = secrets;
    this.#response.appendHeader('Set-Cookie', session.cookie.serialize(name, signCookie(sessionId, newest)));
  }
}

/** The `Set-Cookie` fields that a reply has so far. */
export function setCookies(response: ServerResponse): string[] {
  const fields = response.getHeader('Set-Cookie');
  return fields === undefined ? [] : [fields].flat().map(String);
}

/** Whether a Secure cookie may be set, by express-session's own rule for its `proxy` option. */
function isSecure(request: SessionRequest, proxy: boolean | undefined): boolean {
  if ((request.socket as { encrypted?: boolean }).encrypted) return true;
  if (proxy === false) return false;
  if (proxy !== true) return request.secure === true;
  const [first = ''] = String(request.headers['x-forwarded-proto'] ?? '').split(',');
  return first.trim().toLowerCase() === 'https';
}
