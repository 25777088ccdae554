import { randomBytes } from 'node:crypto';
import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { jsonBodyReader } from './bodies.ts';
import { CookieExpiry } from './cookie-expiry.ts';
import { AdoptedExchange, HttpExchange, pathBelow, UpgradeExchange, type Exchange } from './exchange.ts';
import { Forwarder } from './forward.ts';
import { OwnServers } from './own-servers.ts';
import { completeOptions, type SessionRoutingOptions } from './options.ts';
import { stripOwnFields, stripOwnTrailers } from './headers.ts';
import { watchReply, watchSessionId, type OwnSessionParts } from './own-session.ts';
import { RoutedServers, type RoutedEvent, type RoutedServer } from './routed-servers.ts';
import { isForwarded, openPrivateSocket, type PrivateSocket } from './private-socket.ts';
import { lostClaim, randomSessionId, RequestSession } from './request-session.ts';
import { workerDirectory } from './runtime-directory.ts';
import { recordWorker } from './dead-workers.ts';
import { isSocketGone, socketPath } from './socket-path.ts';
import { monotonicSeconds } from './seconds.ts';
import { bridgeExpressSession, type Middleware, type RoutedSessionOptions } from './session-cookie.ts';
import { misplaced } from './misplaced.ts';
import { watchReplyField } from './reply-field.ts';
import type { ListenTarget, SessionRouting } from './routing.ts';
import { SessionTokens } from './session-token.ts';
import { checkSessionId, signedCookieReader } from './session-id.ts';
import type { SessionKind } from './session-kind.ts';
import { SessionKeeper } from './session-keeper.ts';
import { SessionRouter } from './session-router.ts';

export type { ListenTarget, SessionRouting } from './routing.ts';

/** What specs inject. */
export interface RoutingInternals {
  readonly mint?: () => string;
  readonly clock?: () => number;
}

/**
 * Makes the middleware that routes every request of a session to the worker that holds the session.
 *
 * @throws TypeError for an option that is refused or unknown; Error in a cluster worker that has no runtime directory,
 *   or one that is not safe to use
 */
export function sessionRouting(options: SessionRoutingOptions): SessionRouting {
  return composeSessionRouting(options);
}

/** What a client expects of whose request an event is. */
const expectations = { request: undefined, checkContinue: 'continue', checkExpectation: 'other' } as const;

/** {@link sessionRouting}, with what specs inject. */
export function composeSessionRouting(
  options: SessionRoutingOptions,
  { mint = randomSessionId, clock = monotonicSeconds }: RoutingInternals = {},
): SessionRouting {
  const complete = completeOptions(options);
  const { kind, secrets, bodyLimit, name } = complete;
  const directory = complete.routing ? workerDirectory(complete.runtimeDirectory) : undefined;
  const workerId = randomBytes(16).toString('hex');

  const keeper = new SessionKeeper({ workerId, directory, lifetimes: kind.createLifetimes(clock), kind, clock });
  /** Whether routing.session() is used: then the app has no express-session of its own. */
  let isBridged = false;
  const readCookie = kind.cookies === 'none' ? () => undefined : signedCookieReader(name, secrets);
  const cookieExpiry = new CookieExpiry(name);
  const forwarder = new Forwarder({
    onGone: (response) => {
      if (kind.cookies === 'express-session') cookieExpiry.expire(response);
    },
    refusalFormat: kind.refusalFormat,
  });
  const ownSessionParts: OwnSessionParts = {
    name,
    readCookie,
    cookies: kind.cookies,
    watchStore: (store) => keeper.watchStore(store),
    onCookieSet: (field) => cookieExpiry.learnField(field),
  };
  const router = new SessionRouter({
    kind,
    readCookie,
    readHead: kind.headReader?.(secrets),
    readJson: jsonBodyReader(bodyLimit),
    bodyLimit,
    requestParts: {
      claims: keeper.claims,
      lifetimes: keeper.lifetimes,
      kind,
      linger: (sessionId) => keeper.linger(sessionId),
      open: (sessionId) => keeper.open(sessionId),
      hasEnded: (sessionId) => keeper.hasEnded(sessionId),
      renew: (sessionId) => keeper.renew(sessionId),
      settled: () => keeper.settled(),
      mint,
    },
    forwarder,
    socketPathOf: (claimant) => socketPath(directory ?? '', claimant),
    isSocketGone,
    isForwarded,
    onServed({ request, response }, current) {
      if (!isBridged && kind.cookies !== 'none') watchSessionId(request, current, ownSessionParts);
      if (kind.replyField !== undefined && response !== undefined) watchReplyField(response, kind.replyField, current);
      if (kind.cookies === 'express-session' && response !== undefined) watchReply(response, current, ownSessionParts);
    },
  });

  kind.agentSessions?.useAgentSessionClaims({
    bodyLimit,
    cookieSessionId: (request) => sessionOf(request).headId,
    hold: (request, sessionId) => sessionOf(request).holdNamed(sessionId),
    release: (sessionId) => keeper.letGo(sessionId),
    settled: () => keeper.settled(),
  });

  let privateSocket: PrivateSocket | undefined;
  const servers = new RoutedServers(dispatch, async function openSocket() {
    if (directory === undefined) return;
    privateSocket = await openPrivateSocket({
      path: socketPath(directory, workerId),
      serverFor: (localPort) => servers.serverFor(localPort),
    });
    const { claimsExpireSeconds } = kind;
    recordWorker(directory, workerId, claimsExpireSeconds === undefined ? {} : { claimsExpireSeconds });
  });
  const ownServers = new OwnServers();
  let closing: Promise<void> | undefined;

  /** The session of a request for express-session, which may also run where the rule cannot. */
  function sessionOf(request: IncomingMessage): RequestSession {
    let current = router.sessionOf(request);
    if (current === undefined && directory === undefined && (request as { upgrade?: boolean }).upgrade) {
      // One worker serves every upgrade anyway, also where only the middleware is mounted.
      router.route(new UpgradeExchange(request, request.socket, Buffer.alloc(0), ''), () => undefined);
      current = router.sessionOf(request);
    }
    if (current !== undefined) return current;
    throw new Error(
      'The session routing has not seen this request. Mount it ahead: app.use(routing), or, for upgrades too, ' +
        'routing.listen(app) or routing.attach(server).',
    );
  }

  function dispatch(event: RoutedEvent, args: unknown[], proceed: () => void): void {
    const [request, second, head] = args as [IncomingMessage, unknown, Buffer];
    // A listener that emits the request again, as one for `checkContinue` may, has it routed already.
    if (router.sessionOf(request) !== undefined) return proceed();
    const path = pathBelow(kind.basePath, request.url ?? '');
    route(
      event === 'upgrade'
        ? new UpgradeExchange(request, second as Duplex, head, path)
        : new HttpExchange(request, second as ServerResponse, path, expectations[event]),
      proceed,
      (error) => void request.destroy(error),
    );
  }

  /** Routes a request once the private socket listens; `fail` gets the request if it cannot. */
  function route(exchange: Exchange, proceed: () => void, fail: (error: Error) => void): void {
    if (isForwarded(exchange.request)) return router.route(exchange, proceed);
    const { request, response } = exchange;
    ownServers.requested(request, response);
    stripOwnFields(request);
    if (request.headers['transfer-encoding'] !== undefined) {
      request.prependOnceListener('end', () => stripOwnTrailers(request));
    }
    const { server } = request.socket as { server?: RoutedServer };
    if (directory === undefined || (server && servers.isServing(server))) return router.route(exchange, proceed);
    if (server === undefined) return fail(new Error('The session routing needs a request of a listening HTTP server.'));
    servers.serve(server).then(() => process.nextTick(() => router.route(exchange, proceed)), fail);
  }

  const routing: Middleware = function sessionRouting(request, response, next) {
    if (router.sessionOf(request) !== undefined)
      return next(misplaced(request, kind, (path) => router.namedByHead(request, path)));
    route(new HttpExchange(request, response, pathBelow(kind.basePath, request.url ?? '')), next, next);
  };

  return Object.assign(routing, {
    workerId,
    kind,
    tokens: kind.tokens && new SessionTokens(secrets),

    session(options: RoutedSessionOptions = {}): Middleware {
      if (kind.cookies === 'none') throw new TypeError(`routing.session(): ${noCookie(kind)}`);
      for (const key of ['genid', 'name', 'key', 'secret']) {
        if (key in options) throw new TypeError(`routing.session(): "${key}" is for sessionRouting() to decide on`);
      }
      const { middleware, store } = bridgeExpressSession(options, {
        name,
        secrets,
        readCookie,
        cookies: kind.cookies,
        sessionOf,
        genid,
      });
      keeper.watchStore(store);
      isBridged = true;
      if (typeof options.cookie === 'object') cookieExpiry.learnOptions(options.cookie);
      return middleware;
    },

    genid,
    isForwarded,

    async listen(app: RequestListener, target: ListenTarget = {}): Promise<Server> {
      const server = ownServers.make(app);
      await attach(server);
      await ownServers.listen(server, target);
      return server;
    },

    attach,

    claim(sessionId: string): void {
      if (keeper.lifetimes.opened === undefined) {
        throw new TypeError(`routing.claim(): the sessions of the kind "${kind.kind}" are claimed by other means`);
      }
      if (!keeper.open(checkSessionId(sessionId))) throw lostClaim();
    },

    adopt(request: IncomingMessage, response: ServerResponse, sessionId: string): void {
      router.adopt(new AdoptedExchange(request, response, pathBelow(kind.basePath, request.url ?? '')), sessionId);
    },

    ended(session: IncomingMessage | string): void {
      if (typeof session === 'string') return keeper.end(session);
      const current = router.sessionOf(session);
      if (current?.sessionId === undefined) return;
      current.end();
      keeper.end(current.sessionId);
    },

    close: () => (closing ??= close()),
  });

  async function close(): Promise<void> {
    await ownServers.close();
    await servers.opened();
    await privateSocket?.close();
    servers.close();
    forwarder.close();
    keeper.close();
  }

  async function attach(server: RoutedServer): Promise<void> {
    ownServers.checkOpen();
    servers.wrap(server);
    return servers.serve(server);
  }

  function genid(request: IncomingMessage): string {
    if (kind.cookies === 'none') throw new TypeError(`routing.genid(): ${noCookie(kind)}`);
    return router.sessionOf(request)?.generate() ?? mint();
  }
}

function noCookie({ kind }: SessionKind): string {
  return `no cookie names the sessions of the kind "${kind}", so express-session is the app's own: mount it as ever`;
}
