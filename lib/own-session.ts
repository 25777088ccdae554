import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Store } from 'express-session';
import { SessionRoutingError } from './errors.ts';
import type { RequestSession } from './request-session.ts';
import type { SessionKind } from './session-kind.ts';
import { replaceSetCookies, setCookies } from './session-cookie.ts';
import type { SignedCookieReader } from './session-id.ts';

/** What is needed to follow an express-session that the app mounts itself. */
export interface OwnSessionParts {
  readonly name: string;
  readonly readCookie: SignedCookieReader;
  /** As {@link SessionKind.cookies} has it. */
  readonly cookies: SessionKind['cookies'];
  readonly watchStore: (store: Store) => void;
  /** Told each `Set-Cookie` field by which a reply names its session. */
  readonly onCookieSet: (field: string) => void;
}

/** What express-session is to agree with on a request. */
interface Expectation {
  readonly current: RequestSession;
  readonly parts: OwnSessionParts;
}

/** Under which a request keeps what is expected of it. */
const expectationOf = Symbol('express-session-routing expectation');

/**
 * Watches which session an express-session of the app's own settles on: it must be the router's.
 *
 * (Otherwise a cookie parser with another secret, or an express-session with another name or secret, would make the
 * app answer for a session that is routed by another ID, or by none.)
 */
export function watchSessionId(request: IncomingMessage, current: RequestSession, parts: OwnSessionParts): void {
  (request as WatchedRequest)[expectationOf] = { current, parts };
  Object.defineProperty(request, 'sessionID', watchedSessionId);
}

type WatchedRequest = IncomingMessage & { [expectationOf]: Expectation; sessionStore?: Store };

// The same functions for every request, so that all requests keep one shape.
const watchedSessionId: PropertyDescriptor & ThisType<WatchedRequest> = {
  configurable: true,
  enumerable: true,
  get() {
    if (this[expectationOf].parts.cookies === 'express-session') return undefined;
    throw new Error('req.sessionID was read, and no session is mounted: app.use(routing.session()).');
  },
  set(value: unknown) {
    Object.defineProperty(this, 'sessionID', { value, configurable: true, enumerable: true, writable: true });
    if (this.sessionStore !== undefined) checkSettledId(value, this[expectationOf], this.sessionStore);
  },
};

/** Checks the ID that express-session took from the request's cookie, and takes note of its store. */
function checkSettledId(value: unknown, { current, parts }: Expectation, store: Store): void {
  parts.watchStore(store);
  if (parts.cookies === 'router') {
    throw disputed('This kind of server needs the express-session that routing.session() makes; mount no other.');
  }
  const cookieId = typeof value === 'string' && value !== '' ? value : undefined;
  if (cookieId === current.headId) return;
  throw disputed(
    'express-session took another session ID from the request than the session router did. Give both the same ' +
      'name and secret, and mount no cookie-parser with another secret ahead of express-session.',
  );
}

/**
 * Claims the session that a reply names, before the head that names it is written.
 *
 * A new session that cannot be claimed, which takes an ID drawn twice or a runtime directory that is gone, is not named:
 * its cookie is taken off the reply. (An error here would leave express-session's `end` half done.)
 */
export function watchReply(response: ServerResponse, current: RequestSession, parts: OwnSessionParts): void {
  const { writeHead } = response;
  response.writeHead = (...args: unknown[]) => {
    if (!response.headersSent) claimNamedSession(response, current, parts);
    return Reflect.apply(writeHead, response, args);
  };
}

function claimNamedSession(
  response: ServerResponse,
  current: RequestSession,
  { name, readCookie, onCookieSet }: OwnSessionParts,
): void {
  const fields = setCookies(response);
  const field = fields.findLast((each) => each.startsWith(`${name}=`));
  if (field === undefined) return;
  const sessionId = readCookie(field.split(';', 1)[0]);
  if (sessionId === undefined) return;
  onCookieSet(field);
  let refusal: unknown;
  try {
    if (current.nameInReply(sessionId)) return;
    refusal = new SessionRoutingError('SESSION_CLAIMED_ELSEWHERE', 'Another worker claims a session of the same ID.');
  } catch (error) {
    refusal = error;
  }
  replaceSetCookies(
    response,
    fields.filter((each) => each !== field),
  );
  const { code, message } = refusal as SessionRoutingError;
  process.emitWarning(`The cookie of a new session was not sent. ${message}`, { type: 'SessionRoutingWarning', code });
}

function disputed(detail: string): SessionRoutingError {
  return new SessionRoutingError('SESSION_COOKIE_DISPUTED', detail);
}
