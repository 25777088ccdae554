import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import type { ListenOptions, Socket } from 'node:net';

/** How long a connection without a request is kept once its server closes: a request may be on the way. */
const lastWaitMilliseconds = 1_000;

/**
 * The public servers that a routing has made itself, and so closes.
 *
 * Node's own `close()` ends the connections that are idle at that moment, and waits for the others: for one that a
 * browser has opened and not used yet as long as it likes, and for one of a proxy or a client that keeps sending
 * requests for ever. Here they end too, without cutting off any request: by `Connection: close` in the next reply
 * (RFC 9112, section 9.6), or after a second in which none came.
 */
export class OwnServers {
  readonly #servers: Server[] = [];
  /** Connections that have sent no whole head yet. */
  readonly #unused = new Set<Socket>();
  #isClosing = false;

  /** Makes a server, which does not listen yet. */
  make(app: RequestListener): Server {
    const server = createServer(app);
    server.on('connection', (socket: Socket) => {
      this.#unused.add(socket);
      socket.once('close', () => this.#unused.delete(socket));
    });
    return server;
  }

  /**
   * Lets a server listen, until {@link close}.
   *
   * @throws Error where it cannot listen, or once this has been closed
   */
  async listen(server: Server, target: ListenOptions): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(target, () => {
        server.off('error', reject);
        resolve();
      });
    });
    this.#servers.push(server);
    if (!this.#isClosing) return;
    await this.close();
    this.checkOpen();
  }

  /** @throws Error once this has been closed */
  checkOpen(): void {
    if (this.#isClosing) throw new Error('The session routing has been closed. Make another one.');
  }

  /** Learns of each request of a client, before anything answers it. */
  requested({ socket }: IncomingMessage, response: ServerResponse | undefined): void {
    this.#unused.delete(socket);
    if (this.#isClosing && response !== undefined) response.shouldKeepAlive = false;
  }

  /** Stops listening. Resolves once the requests that are under way have ended, and about two seconds later at most. */
  async close(): Promise<void> {
    this.#isClosing = true;
    for (const server of this.#servers) server.keepAliveTimeout = lastWaitMilliseconds;
    const timer = setTimeout(() => this.#closeUnused(), lastWaitMilliseconds);
    await Promise.all(this.#servers.map((server) => new Promise((closed) => server.close(closed))));
    clearTimeout(timer);
  }

  #closeUnused(): void {
    for (const socket of this.#unused) {
      if (socket.bytesWritten === 0) socket.destroy(); // else an app has made a tunnel of it (CONNECT)
    }
  }
}
