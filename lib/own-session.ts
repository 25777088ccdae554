import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Store } from 'express-session';
import { SessionRoutingError } from './errors.ts';
import type { RequestSession } from './request-session.ts';
import { setCookies } from './session-cookie.ts';
import type { SignedCookieReader } from './session-id.ts';

/** What is needed to follow an express-session that the app mounts itself. */
export interface OwnSessionParts {
  readonly name: string;
  readonly readCookie: SignedCookieReader;
  /** As {@link SessionKind.cookies} has it. */
  readonly cookies: 'router' | 'express-session';
  readonly watchStore: (store: Store) => void;
}

/**
 * Watches which session an express-session of the app's own settles on: it must be the router's.
 *
 * (Otherwise a cookie parser with another secret, or an express-session with another name or secret, would make the
 * app answer for a session that is routed by another ID, or by none.)
 */
export function watchSessionId(request: IncomingMessage, current: RequestSession, parts: OwnSessionParts): void {
  Object.defineProperty(request, 'sessionID', {
    configurable: true,
    enumerable: true,
    get: () => undefined,
    set(value: unknown) {
      Object.defineProperty(request, 'sessionID', { value, configurable: true, enumerable: true, writable: true });
      const { sessionStore } = request as { sessionStore?: Store };
      if (current.phase !== 'unread' || sessionStore === undefined) return;
      parts.watchStore(sessionStore);
      if (parts.cookies === 'router') {
        throw disputed('This kind of server needs the express-session that routing.session() makes; mount no other.');
      }
      const cookieId = typeof value === 'string' && value !== '' ? value : undefined;
      if (cookieId !== current.cookieId) {
        throw disputed(
          'express-session took another session ID from the request than the session router did. Give both the same ' +
            'name and secret, and mount no cookie-parser with another secret ahead of express-session.',
        );
      }
    },
  });
}

/**
 * Claims the session that a reply names, before the head that names it is written.
 *
 * A cookie whose session another worker claims, which takes an ID drawn twice, is taken off the reply.
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
  { name, readCookie }: OwnSessionParts,
): void {
  const fields = setCookies(response);
  const field = fields.findLast((each) => each.startsWith(`${name}=`));
  if (field === undefined) return;
  const sessionId = readCookie(field.split(';', 1)[0]);
  if (sessionId === undefined || current.nameInReply(sessionId)) return;
  response.setHeader(
    'Set-Cookie',
    fields.filter((each) => each !== field),
  );
  process.emitWarning('A new session ID exists already on another worker, so its cookie was not sent.', {
    type: 'SessionRoutingWarning',
    code: 'SESSION_CLAIMED_ELSEWHERE',
  });
}

function disputed(detail: string): SessionRoutingError {
  return new SessionRoutingError('SESSION_COOKIE_DISPUTED', detail);
}
