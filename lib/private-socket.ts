import { chmodSync } from 'node:fs';
import { Server, type IncomingMessage, type ServerOptions, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { adoptOrigin } from './origin.ts';
import type { RoutedServer } from './routed-servers.ts';
import { checkSocketPath } from './socket-path.ts';

/** Longer than siblings keep an idle connection, so that it is they who close it, and never as it is used again. */
const keepAliveMilliseconds = 30_000;

/** How long a connection that this side has ended waits for its sibling, where the app has left the body unread. */
const lingerMilliseconds = 5_000;

/** As good as none. */
const maximumHeadBytes = 2 ** 31 - 1;

/** Where a private socket listens and who serves it. */
export interface PrivateSocketOptions {
  readonly path: string;
  /** The public server whose listeners serve a request whose client came in on a port. */
  readonly serverFor: (localPort: number | undefined) => RoutedServer | undefined;
}

/** Members of an HTTP server that its type declarations leave out. */
interface ParserOptions {
  readonly insecureHTTPParser?: boolean;
  readonly joinDuplicateHeaders?: boolean;
}

/**
 * Serves the requests that sibling workers forward, with the listeners of the public server.
 *
 * That a request came from a sibling is known from this class being its socket's server, and from nothing else.
 */
export class PrivateServer extends Server {
  readonly #serverFor: PrivateSocketOptions['serverFor'];

  constructor(serverFor: PrivateSocketOptions['serverFor']) {
    const { insecureHTTPParser, joinDuplicateHeaders } = (serverFor(undefined) ?? {}) as ParserOptions;
    // The public server, which has let the request in, has had all the limits that there are.
    const options: ServerOptions = {
      keepAliveTimeout: keepAliveMilliseconds,
      requestTimeout: 0,
      headersTimeout: 0,
      connectionsCheckingInterval: keepAliveMilliseconds,
      maxHeaderSize: maximumHeadBytes,
      requireHostHeader: false,
    };
    if (insecureHTTPParser !== undefined) options.insecureHTTPParser = insecureHTTPParser;
    if (joinDuplicateHeaders !== undefined) options.joinDuplicateHeaders = joinDuplicateHeaders;
    super(options);
    this.#serverFor = serverFor;
    this.maxHeadersCount = 0;
    this.on('connection', closeOneSide);
  }

  /** A sibling sends an upgrade as such only where its public server, and so this worker's, listens for upgrades. */
  override listenerCount(event: string | symbol, ...rest: []): number {
    return event === 'upgrade' ? 1 : super.listenerCount(event, ...rest);
  }

  override emit(event: string | symbol, ...args: unknown[]): boolean {
    if (event === 'request') return this.#serve(...(args as [IncomingMessage, ServerResponse]));
    if (event === 'upgrade') return this.#serveUpgrade(...(args as [IncomingMessage, Socket, Buffer]));
    return super.emit(event as string, ...args);
  }

  #serve(request: IncomingMessage, response: ServerResponse): boolean {
    const { localPort, awaitsContinue } = adoptOrigin(request);
    // Node's own rule, for a client that knows no chunks: its reply is framed here as it would be there.
    if (request.httpVersionMajor < 1 || request.httpVersionMinor < 1) {
      response.useChunkedEncodingByDefault = /\bchunked\b/i.test(String(request.headers['te']));
    }
    cutAtLength(response as ServerResponse & ReplyInternals);
    return this.#handOver(localPort, awaitsContinue ? 'checkContinue' : 'request', request, response);
  }

  #serveUpgrade(request: IncomingMessage, socket: Socket, head: Buffer): boolean {
    const { localPort } = adoptOrigin(request);
    delete (socket as { destroySoon?: unknown }).destroySoon; // it is the app's from now on
    return this.#handOver(localPort, 'upgrade', request, socket, head);
  }

  #handOver(
    localPort: number | undefined,
    event: string,
    ...args: [IncomingMessage, Destroyable, ...unknown[]]
  ): boolean {
    const server = this.#serverFor(localPort);
    if (server !== undefined && server.listenerCount(event) > 0) return server.emit(event, ...args);
    args[1].destroy(); // nobody is there to answer
    return false;
  }
}

type Destroyable = { destroy(): unknown };

/**
 * Lets an app that asks to close, by `Connection: close`, close only this side. To close with a body unread would take
 * the reply away from the sibling, which closes as soon as it has read it.
 */
function closeOneSide(socket: Socket): void {
  socket.destroySoon = () => void socket.setTimeout(lingerMilliseconds).end();
}

/** Members of Node's replies that its type declarations leave out. */
interface ReplyInternals {
  /** What the head says; null where it says nothing. */
  readonly _contentLength: number | null;
  _implicitHeader(): void;
}

/**
 * Sends no byte of a reply beyond its `Content-Length`. To the client that sent the request they would be a nuisance;
 * behind them, on the shared connection, they would be the beginning of another client's reply.
 */
function cutAtLength(response: ServerResponse & ReplyInternals): void {
  const { write, end } = response;
  let length = 0;

  const cut = ([chunk, encoding, ...rest]: unknown[]): unknown[] => {
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) return [chunk, encoding, ...rest];
    if (!response.headersSent && response.hasHeader('Content-Length')) response._implicitHeader();
    const { _contentLength: limit } = response;
    const before = length;
    length += typeof chunk === 'string' ? Buffer.byteLength(chunk, encodingOf(encoding)) : chunk.length;
    if (!response.headersSent || response.chunkedEncoding || limit === null || length <= limit) {
      return [chunk, encoding, ...rest];
    }
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk, encodingOf(encoding)) : chunk;
    return [bytes.subarray(0, Math.max(0, limit - before)), encoding, ...rest];
  };
  response.write = (...args: unknown[]) => Reflect.apply(write, response, cut(args));
  response.end = (...args: unknown[]) => Reflect.apply(end, response, cut(args));
}

function encodingOf(argument: unknown): BufferEncoding | undefined {
  return typeof argument === 'string' ? (argument as BufferEncoding) : undefined;
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
