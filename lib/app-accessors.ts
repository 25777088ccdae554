import type { IncomingMessage } from 'node:http';
import type { Session, Store } from 'express-session';
import type { RequestSession } from './request-session.ts';

export type SessionOrNone = (Session & { cookie: SerializableCookie }) | null | undefined;

/** A member of express-session's Cookie that its type declarations leave out. */
type SerializableCookie = Session['cookie'] & { serialize(name: string, value: string): string };

/** A request as Express and express-session leave it. */
export type AppRequest = IncomingMessage & {
  session?: SessionOrNone;
  sessionID?: string | undefined;
  sessionStore?: Store | undefined;
  secure?: boolean;
  originalUrl?: string;
};

/** The session of a request, as its accessors show it to the app. */
export interface ShownSession {
  readonly request: AppRequest;
  /** The session that express-session has made or found. */
  readonly stored: SessionOrNone;
  /** The same, as long as `req.session.destroy()` has not deleted it. */
  readonly standing: SessionOrNone;
  readSession(): SessionOrNone;
  writeSession(session: SessionOrNone): void;
  readSessionId(): string | undefined;
  writeSessionId(sessionId: string | undefined): void;
}

/** Under which the getter of a session has the function that finds a request's view. */
const shownBy = Symbol('express-session-routing shown');

type SessionGetter = (() => unknown) & { [shownBy]?: (request: IncomingMessage) => ShownSession | undefined };

/**
 * The accessors by which the requests of one app show their session, so that to read it is to use it.
 *
 * Up to Node 22, each request has a shape of its own once Express has set its prototype. So every property that is added
 * to it is dear, and what engines remember of a place in the code is of no use there: `Reflect.get` costs less than a dot.
 * Hence the view is found by what the router keeps on the request already.
 */
export class AppAccessors {
  readonly session: PropertyDescriptor;
  readonly sessionID: PropertyDescriptor;
  /** The view through which express-session reads the session, which is no use of it. */
  #looking: ShownSession | undefined;

  constructor(sessionOf: (request: IncomingMessage) => RequestSession) {
    const shown = (request: IncomingMessage): ShownSession => sessionOf(request).properties as ShownSession;
    const looking = (): ShownSession | undefined => this.#looking;
    const readSession = function (this: IncomingMessage): SessionOrNone {
      const view = looking();
      return view?.request === this ? view.stored : shown(this).readSession();
    };
    this.session = {
      configurable: true, // express-session lets apps delete it
      enumerable: true,
      get: Object.assign(readSession, { [shownBy]: shown }),
      set(this: IncomingMessage, session: SessionOrNone) {
        shown(this).writeSession(session);
      },
    };
    this.sessionID = {
      configurable: true,
      enumerable: true,
      get(this: IncomingMessage) {
        return shown(this).readSessionId();
      },
      set(this: IncomingMessage, sessionId: string | undefined) {
        shown(this).writeSessionId(sessionId);
      },
    };
  }

  /** The session that a request shows, without using it. */
  look(view: ShownSession): SessionOrNone {
    this.#looking = view;
    try {
      return Reflect.get(view.request, 'session') as SessionOrNone;
    } finally {
      this.#looking = undefined;
    }
  }
}

/** The view of which a request's accessors show the session, whichever routing has made them. */
export function sessionShownBy(request: AppRequest): ShownSession | undefined {
  if (!('session' in request)) return undefined;
  const getter: SessionGetter | undefined = Object.getOwnPropertyDescriptor(request, 'session')?.get;
  return getter?.[shownBy]?.(request);
}
