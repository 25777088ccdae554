import type { IncomingMessage, ServerResponse } from 'node:http';
import { debuglog } from 'node:util';
import type { Store } from 'express-session';
import {
  sessionShownBy,
  type AppAccessors,
  type AppRequest,
  type SessionOrNone,
  type ShownSession,
} from './app-accessors.ts';
import { SessionRoutingError } from './errors.ts';
import { randomSessionId, type RequestSession } from './request-session.ts';
import { signCookie } from './session-id.ts';
import type { SessionKind } from './session-kind.ts';

const debug = debuglog('express-session-routing');

/** What a view needs to know of the routing. */
export interface RequestViewParts {
  readonly name: string;
  readonly secrets: readonly string[];
  /** As {@link SessionKind.cookies} has it. */
  readonly cookies: SessionKind['cookies'];
  /** What the app's requests get. */
  readonly accessors: AppAccessors;
}

/**
 * The request as express-session sees it, in the place of the real one, and so the one thing that tells its own reads
 * of the session from everybody else's.
 *
 * It shows exactly the session that the router decided on, as a signed cookie, or none: express-session consults its
 * store only for a cookie, so a retried seed without one would overwrite what was stored; and it falls back on
 * `req.cookies` and `req.signedCookies`, which a cookie parser may have filled with another secret. And it hides a new
 * session that the handler never used, so that none is saved, sent or destroyed.
 */
export class RequestView implements ShownSession {
  readonly request: AppRequest;
  readonly current: RequestSession;
  readonly url: string | undefined;
  readonly originalUrl: string | undefined;
  readonly headers: IncomingMessage['headers'];
  sessionStore: Store | undefined;
  /** The session that express-session has made or found. */
  stored: SessionOrNone;

  readonly #response: ServerResponse;
  readonly #parts: RequestViewParts;
  #sessionId: string | undefined;
  /** Whether express-session had to make the session, because its store knows none of this ID. */
  #isGenerated = false;
  #isHeadBeingWritten = false;
  #isInMiddleware = false;
  #isIdPlain = false;

  /** The view by which express-session has given a request a session, if it has: this routing's, or another's. */
  static of(request: AppRequest, { properties }: RequestSession): ShownSession | undefined {
    return properties instanceof RequestView ? properties : sessionShownBy(request);
  }

  constructor(request: AppRequest, response: ServerResponse, current: RequestSession, parts: RequestViewParts) {
    this.request = request;
    this.current = current;
    this.url = request.url;
    this.originalUrl = request.originalUrl;
    this.#response = response;
    this.#parts = parts;
    const { headers } = request;
    // In a field that is as the router read it, express-session will find what the router found.
    const { headExpressId, expressId, cookieField } = current;
    const isAsRouted = headExpressId !== undefined && headExpressId === expressId && headers.cookie === cookieField;
    this.headers = isAsRouted ? headers : { cookie: this.#cookie(), 'x-forwarded-proto': headers['x-forwarded-proto'] };
    Object.defineProperty(this, 'session', shownSession);
  }

  get connection(): IncomingMessage['socket'] {
    return this.request.socket;
  }

  get secure(): boolean | undefined {
    return this.request.secure;
  }

  get session(): SessionOrNone {
    return undefined; // `req.session.destroy()` has deleted the property that covers this one
  }

  set session(session: SessionOrNone) {
    Object.defineProperty(this, 'session', shownSession);
    this.stored = session;
  }

  get sessionID(): string | undefined {
    if (this.#hides()) return undefined;
    return this.#isIdPlain ? (Reflect.get(this.request, 'sessionID') as string | undefined) : this.#sessionId;
  }

  set sessionID(sessionId: string | undefined) {
    this.#sessionId = sessionId;
    if (this.#isIdPlain) this.request.sessionID = sessionId;
  }

  /** The ID for a session that express-session makes. */
  generateId(): string {
    this.#isGenerated = true;
    try {
      return this.current.generate();
    } catch (error) {
      this.#refuse(error);
      return randomSessionId(); // nobody will learn of it
    }
  }

  /** The session, whether or not it is shown, as long as `req.session.destroy()` has not deleted it. */
  get standing(): SessionOrNone {
    return Object.hasOwn(this, 'session') ? this.stored : undefined;
  }

  /** What express-session sees of the session. */
  shown(): SessionOrNone {
    if (this.#hides()) return undefined;
    if (!this.current.isHandedOver) return this.stored;
    // Through the request, from which the app may have deleted the session, and set another.
    return this.#parts.accessors.look(this);
  }

  /** Lets the app have the session that express-session has made or found. */
  handOver(): void {
    const { request, current } = this;
    if (!this.stored) return; // express-session has declined
    const { accessors } = this.#parts;
    current.isHandedOver = true;
    current.properties = this;
    request.sessionStore = this.sessionStore;
    Object.defineProperty(request, 'session', accessors.session);
    // Accessors are dear, and of a session that lives already, the claim stays whether or not a handler reads its ID.
    this.#isIdPlain = current.livesAlready();
    if (this.#isIdPlain) request.sessionID = this.#sessionId;
    else Object.defineProperty(request, 'sessionID', accessors.sessionID);
  }

  /** Calls the middleware behind express-session. */
  callNext(next: (error?: unknown) => void, error: unknown): void {
    this.#isInMiddleware = true;
    try {
      next(error);
    } finally {
      this.#isInMiddleware = false;
    }
  }

  /** The session for the app, which thereby uses it. */
  readSession(): SessionOrNone {
    this.#use();
    return this.standing;
  }

  writeSession(session: SessionOrNone): void {
    this.#use();
    this.session = session;
  }

  readSessionId(): string | undefined {
    this.#use();
    return this.#sessionId;
  }

  writeSessionId(sessionId: string | undefined): void {
    this.#use();
    this.#sessionId = sessionId;
  }

  /** Writes the head. What header listeners of the app see of a new session meanwhile is not its use. */
  whileWritingHead<Result>(write: () => Result): Result {
    const before = this.#isHeadBeingWritten;
    this.#isHeadBeingWritten = true;
    try {
      return write();
    } finally {
      this.#isHeadBeingWritten = before;
    }
  }

  #use(): void {
    const { current } = this;
    if (current.used) return;
    if (this.#sessionId !== undefined && current.isNew(this.#sessionId)) {
      // Too late for the reply to name the session: a look by a listener of the app is not to make it a used one.
      if (this.#isHeadBeingWritten || this.#response.writableEnded) return;
      if (this.#response.headersSent) {
        const { method, url } = this.request;
        debug('the session of %s %s was first used after the head of the reply', method, url);
      }
    }
    try {
      // An ID that exists already: another is generated, which claims it. Nothing has seen the first one yet.
      if (!current.use()) (this.sessionStore as unknown as { generate(of: RequestView): void }).generate(this);
    } catch (error) {
      this.#refuse(error);
    }
  }

  /**
   * Refuses the request whose session cannot be claimed: as an error where the app's middleware runs, which Express
   * passes on, and otherwise by itself. (An error in some callback of the app's would end the worker with all its
   * sessions.)
   *
   * @throws the error, while the app's middleware runs
   */
  #refuse(error: unknown): void {
    if (this.#isInMiddleware || !(error instanceof SessionRoutingError)) throw error;
    this.current.refuse(error);
  }

  #hides(): boolean {
    if (!this.#isGenerated || this.#parts.cookies !== 'router') return false;
    const { isHandedOver, used, naming } = this.current;
    return isHandedOver && !used && naming !== 'named';
  }

  /** The session that the request names, as a cookie. One that was minted is in no store, so there is none to show. */
  #cookie(): string | undefined {
    const { name, secrets } = this.#parts;
    const { expressId } = this.current;
    return expressId === undefined
      ? undefined
      : `${name}=${encodeURIComponent(signCookie(expressId, secrets[0] ?? ''))}`;
  }
}

// The same functions for every request, so that all requests keep one shape.

const shownSession: PropertyDescriptor & ThisType<RequestView> = {
  configurable: true, // `req.session.destroy()` deletes it
  enumerable: true,
  get() {
    return this.shown();
  },
  set(session: SessionOrNone) {
    this.stored = session;
  },
};
