import { chmodSync } from 'node:fs';
import { Server, type IncomingMessage, type ServerOptions, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { adoptOrigin } from './origin.ts';
import type { RoutedServer } from './routed-servers.ts';
import { checkSocketPath } from './socket-path.ts';

/** Longer than siblings keep an idle connection, so that it is they who close it, and never as it is used again. */
const keepAliveMilliseconds = 30_000;

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
  }

  /** A sibling sends an upgrade as such only where its public server, and so this worker's, listens for upgrades. */
  override listenerCount(event: string | symbol, ...rest: []): number {
    return event === 'upgrade' ? 1 : super.listenerCount(event, ...rest);
  }

  override emit(event: string | symbol, ...args: unknown[]): boolean {
    if (event !== 'request' && event !== 'upgrade') return super.emit(event as string, ...args);
    const [request, reply] = args as [IncomingMessage, ServerResponse | Duplex];
    const { localPort, awaitsContinue } = adoptOrigin(request);
    const server = this.#serverFor(localPort);
    const publicEvent = awaitsContinue ? 'checkContinue' : event;
    if (server === undefined || server.listenerCount(publicEvent) === 0) {
      reply.destroy(); // nobody is there to answer
      return false;
    }
    // Node's own rule, for a client that understands no chunks: the app's reply is framed as it would be for it.
    if (request.httpVersionMajor < 1 || request.httpVersionMinor < 1) {
      (reply as ServerResponse).useChunkedEncodingByDefault = /\bchunked\b/i.test(request.headers.te?.toString() ?? '');
    }
    return server.emit(publicEvent as string, ...args);
  }
}

/** A private socket that listens. */
export interface PrivateSocket {
  /** Stops accepting, and resolves once the requests under way have ended. The socket file is gone then. */
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
  return {
    close: () =>
      new Promise((resolve, reject) => {
        server.keepAliveTimeout = 1; // what falls idle from now on ends in a second
        server.close((error) => (error ? reject(error) : resolve()));
      }),
  };
}
