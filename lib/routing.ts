import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import type { ListenOptions } from 'node:net';
import type { RoutedServer } from './routed-servers.ts';
import type { Middleware, RoutedSessionOptions } from './session-cookie.ts';
import type { SessionKind } from './session-kind.ts';
import type { SessionTokens } from './session-token.ts';

/** Where `listen()` listens: what `server.listen()` of Node takes. */
export type ListenTarget = ListenOptions;

/** The middleware that `sessionRouting()` returns, and what else it does. */
export interface SessionRouting extends Middleware {
  /**
   * express-session, with the routing's secret, cookie name and session IDs. Mount it behind the routing and ahead of
   * the handlers. The kinds `resources` and `agent` need it; a `web` app may mount an express-session of its own.
   *
   * @param options those of express-session, except `genid`, `name` and `secret`
   * @throws TypeError for one of those three
   */
  session(options?: RoutedSessionOptions): Middleware;
  /** The `genid` for an express-session that a `web` app mounts itself. */
  genid(request: IncomingMessage): string;
  /**
   * Makes an HTTP server for the app, attaches it and listens: on the private socket first, then on the public port.
   *
   * @param app a listener for requests, such as an Express app
   * @returns the server, once it listens. Rejects if it cannot, for a port in use for instance, and
   *   once the routing has been closed.
   */
  listen(app: RequestListener, target?: ListenTarget): Promise<Server>;
  /**
   * Puts the rule in front of every `request`, `checkContinue`, `checkExpectation` and `upgrade` listener of a server, whenever added.
   * Resolves once the private socket listens; requests that come sooner wait. Rejects once the routing has been closed.
   */
  attach(server: RoutedServer): Promise<void>;
  /**
   * Claims a session for this worker from now on until it ends: to be called where the app opens one whose ID it has minted
   * itself, before anybody else learns of the ID.
   *
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if another worker holds a session of that ID,
   *   `SESSION_ID_INVALID`; TypeError for a kind whose sessions are claimed by other means (`agent()`, `web()`)
   */
  claim(sessionId: string): void;
  /**
   * Says that a session is over: that of a request, from a route that ends sessions under another name, or one by its ID.
   * Does nothing for one that this worker does not hold.
   */
  ended(session: IncomingMessage | string): void;
  /**
   * Lets the app serve a request of its own making as one of a session that this worker holds. The request then goes to the
   * app as any other does.
   *
   * @throws SessionRoutingError `SESSION_CLAIMED_ELSEWHERE` if another worker holds the session, `SESSION_ID_INVALID`
   */
  adopt(request: IncomingMessage, response: ServerResponse, sessionId: string): void;
  /** Whether the request came from a sibling worker. */
  isForwarded(request: IncomingMessage): boolean;
  /** The kind that this routing was made with. */
  readonly kind: SessionKind;
  /** Mints and reads session tokens, for a kind that reads them from requests. */
  readonly tokens: SessionTokens | undefined;
  /** 32 hex digits that name this worker for as long as it runs. */
  readonly workerId: string;
  /**
   * Closes the servers that `listen()` made, and the private socket once the requests on it have ended; takes the rule
   * off the attached servers and stops the timer. Replies to requests that come on connections which are still open say
   * `Connection: close`. Resolves when the requests under way have ended, and about two seconds later at most. (An
   * upgraded connection is open until its app ends it.) The claims stay, so that siblings answer 410 for them.
   */
  close(): Promise<void>;
}
