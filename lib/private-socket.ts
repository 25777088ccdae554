import { chmodSync } from 'node:fs';
import { Server, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { Origins, type Expectation } from './origin.ts';
import { prepareReply } from './private-reply.ts';
import type { RoutedServer } from './routed-servers.ts';
import { checkSocketPath } from './socket-path.ts';

/** Longer than siblings keep an idle connection, so that it is they who close it, and never as it is used again. */
const keepAliveMilliseconds = 30_000;

/** How long a connection that this side has ended waits for its sibling, where the app has left the body unread. */
const lingerMilliseconds = 5_000;

/** How often a connection is looked after whose client has ended its side. */
const probeMilliseconds = 1_000;

/** As good as none. */
const maximumHeadBytes = 2 ** 31 - 1;

/** Where a private socket listens and who serves it. */
export interface PrivateSocketOptions {
  readonly path: string;
  /** The public server whose listeners serve a request whose client came in on a port. */
  readonly serverFor: (localPort: number | undefined) => RoutedServer | undefined;
}

/** Under which a request is marked that came over a private socket. No client can send a symbol. */
const forwarded = Symbol('express-session-routing forwarded');

/** Whether a request came over a private socket, and so from a sibling worker. */
export function isForwarded(request: IncomingMessage): boolean {
  return (request as ForwardedMessage)[forwarded] === true;
}

/**
 * Serves the requests that sibling workers forward, with the listeners of the public server.
 *
 * That a request came from a sibling is known from this class having accepted its connection, and from nothing else.
 */
export class PrivateServer extends Server {
  readonly #serverFor: PrivateSocketOptions['serverFor'];
  readonly #origins: Origins;

  constructor(serverFor: PrivateSocketOptions['serverFor']) {
    // The public server, which has let the request in, has had all the limits that there are.
    super({
      keepAliveTimeout: keepAliveMilliseconds,
      requestTimeout: 0,
      headersTimeout: 0,
      connectionsCheckingInterval: keepAliveMilliseconds,
      maxHeaderSize: maximumHeadBytes,
      requireHostHeader: false,
    });
    const server = serverFor(undefined);
    if (server !== undefined) takeMessageOptions(this, server);
    this.#serverFor = serverFor;
    this.#origins = new Origins(serverFor);
    this.on('connection', closeOneSide);
  }

  /** A sibling sends an upgrade as such only where its public server, and so this worker's, listens for upgrades. */
  override listenerCount(event: string | symbol, ...rest: []): number {
    return event === 'upgrade' ? 1 : super.listenerCount(event, ...rest);
  }

  override emit(event: string | symbol, ...args: unknown[]): boolean {
    if (event === 'request') return this.#serve(...(args as [IncomingMessage, ServerResponse]));
    if (event === 'upgrade') return this.#serveUpgrade(...(args as [IncomingMessage, Socket, Buffer]));
    // It counts the fields that an app is told of, and lets the others in: so it is here, too.
    if (event === 'connection') this.maxHeadersCount = this.#serverFor(undefined)?.maxHeadersCount ?? null;
    return super.emit(event as string, ...args);
  }

  #serve(request: ForwardedMessage, response: ServerResponse): boolean {
    request[forwarded] = true;
    const origin = this.#origins.adopt(request, response);
    const server = this.#serverFor(origin?.localPort);
    if (origin !== undefined && server !== undefined) prepareReply(response, origin, server, this);
    return handOver(server, eventOf(origin?.expectation), request, response);
  }

  #serveUpgrade(request: ForwardedMessage, socket: Socket, head: Buffer): boolean {
    request[forwarded] = true;
    const origin = this.#origins.adopt(request);
    delete (socket as { destroySoon?: unknown }).destroySoon; // it is the app's from now on
    closeWithClient(socket);
    return handOver(this.#serverFor(origin?.localPort), 'upgrade', request, socket, head);
  }
}

/**
 * Closes an upgraded connection whose client is gone. A sibling that ends its side, as its client did, looks the same
 * from here as one that has closed, until something is written: a write of nothing fails in the one case only.
 */
function closeWithClient(socket: Socket): void {
  socket.once('end', () => {
    const probe = (): void => {
      if (socket.writable) socket.write('');
    };
    const timer = setInterval(probe, probeMilliseconds).unref();
    socket.once('close', () => clearInterval(timer));
    probe();
  });
}

type ForwardedMessage = IncomingMessage & { [forwarded]?: true };
type Destroyable = { destroy(): unknown };

function handOver(
  server: RoutedServer | undefined,
  event: string,
  ...args: [IncomingMessage, Destroyable, ...unknown[]]
): boolean {
  if (server !== undefined && server.listenerCount(event) > 0) return server.emit(event, ...args);
  args[1].destroy(); // nobody is there to answer
  return false;
}

function eventOf(expectation: Expectation | undefined): 'request' | 'checkContinue' | 'checkExpectation' {
  if (expectation === undefined) return 'request';
  return expectation === 'continue' ? 'checkContinue' : 'checkExpectation';
}

/** Members of a server by which Node makes requests and replies; those with a name of their own, and its symbols. */
const messageOptions: ReadonlySet<string | undefined> = new Set([
  'insecureHTTPParser',
  'joinDuplicateHeaders',
  'highWaterMark',
  'rejectNonStandardBodyWrites',
  'IncomingMessage',
  'ServerResponse',
  'kUniqueHeaders',
]);

/** Lets a server make requests and replies of the kind that another makes. */
function takeMessageOptions(server: Server, other: RoutedServer): void {
  for (const key of Reflect.ownKeys(other)) {
    const name = typeof key === 'symbol' ? key.description : key;
    if (messageOptions.has(name)) Reflect.set(server, key, Reflect.get(other, key));
  }
}

/**
 * Lets an app that asks to close, by `Connection: close`, close only this side. To close with a body unread would take
 * the reply away from the sibling, which closes as soon as it has read it.
 */
function closeOneSide(socket: Socket): void {
  socket.destroySoon = () => void socket.setTimeout(lingerMilliseconds).end();
}

/** A private socket that listens. */
export interface PrivateSocket {
  /**
   * Stops accepting and removes the socket file. Resolves once the requests that are under way have ended, and about a
   * second later at most.
   */
  close(): Promise<void>;
}

/**
 * Listens on a worker's private socket.
 *
 * @throws Error for a path over the platform's limit, or where it cannot listen
 */
export async function openPrivateSocket({ path, serverFor }: PrivateSocketOptions): Promise<PrivateSocket> {
  checkSocketPath(path);
  const server = new PrivateServer(serverFor);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    // A cluster worker that merely listens on a path gets a socket that the primary holds, and outlives the worker.
    server.listen({ path, exclusive: true, backlog: 4096 }, () => {
      server.off('error', reject);
      resolve();
    });
  });
  chmodSync(path, 0o600); // until here the directory, which is 0700, protects it
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> =>
    new Promise((resolve, reject) => {
      server.keepAliveTimeout = 1; // milliseconds, to which Node adds a second: so long lasts what falls idle from now on
      server.close((error) => (error ? reject(error) : resolve()));
    });
  return { close: () => (closing ??= close()) };
}
