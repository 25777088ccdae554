import { chmodSync } from 'node:fs';
import { Server, type IncomingMessage, type ServerOptions } from 'node:http';
import { adoptOrigin } from './origin.ts';
import type { RoutedServer } from './routed-servers.ts';
import { checkSocketPath } from './runtime-directory.ts';

/** Longer than siblings keep an idle connection, so that it is they who close it, and never as it is used again. */
const keepAliveMilliseconds = 30_000;

/** Room for the hop's own field beside whatever the public server accepts. */
const extraHeaderBytes = 4096;

/** Events that Node emits only where somebody listens for them, and handles itself otherwise. */
const optionalEvents = new Set<string | symbol>(['checkContinue', 'checkExpectation', 'upgrade', 'connect']);

/** Where a private socket listens and who serves it. */
export interface PrivateSocketOptions {
  readonly path: string;
  /** The public server whose listeners serve a request whose client came in on a port. */
  readonly serverFor: (localPort: number | undefined) => RoutedServer | undefined;
}

/** Members of an HTTP server that its type declarations leave out. */
interface ParserOptions {
  readonly maxHeaderSize?: number;
  readonly insecureHTTPParser?: boolean;
  readonly joinDuplicateHeaders?: boolean;
}

/**
 * Serves the requests that sibling workers forward, with the listeners of the public server.
 *
 * That a request came from a sibling is known from this class being its socket's server, and from nothing else.
 */
export class PrivateServer extends Server {
  readonly #serverFor: (localPort: number | undefined) => RoutedServer | undefined;

  constructor(serverFor: PrivateSocketOptions['serverFor']) {
    const {
      maxHeaderSize = 16_384,
      insecureHTTPParser,
      joinDuplicateHeaders,
    } = (serverFor(undefined) ?? {}) as ParserOptions;
    // Nothing here is stricter than on the public server, which has let the request in already.
    const options: ServerOptions = {
      keepAliveTimeout: keepAliveMilliseconds,
      requestTimeout: 0,
      headersTimeout: 0,
      connectionsCheckingInterval: keepAliveMilliseconds,
      maxHeaderSize: maxHeaderSize + extraHeaderBytes,
      requireHostHeader: false,
    };
    if (insecureHTTPParser !== undefined) options.insecureHTTPParser = insecureHTTPParser;
    if (joinDuplicateHeaders !== undefined) options.joinDuplicateHeaders = joinDuplicateHeaders;
    super(options);
    this.#serverFor = serverFor;
    this.maxHeadersCount = 0;
  }

  /** The public server's listeners count as this one's, as of now. */
  override listenerCount(event: string | symbol, ...rest: []): number {
    if (!optionalEvents.has(event)) return super.listenerCount(event, ...rest);
    return this.#serverFor(undefined)?.listenerCount(event as string) ?? 0;
  }

  override emit(event: string | symbol, ...args: unknown[]): boolean {
    if (event !== 'request' && !optionalEvents.has(event)) return super.emit(event as string, ...args);
    const [request] = args as [IncomingMessage];
    const server = this.#serverFor(adoptOrigin(request));
    return server?.emit(event as string, ...args) ?? false;
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
        server.close((error) => (error ? reject(error) : resolve()));
        server.closeIdleConnections();
      }),
  };
}
