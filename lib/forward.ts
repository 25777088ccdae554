import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { setTimeout } from 'node:timers/promises';
import { ClaimantConnections } from './claimant-connections.ts';
import { problemDocument, refusalBytes, refuse, SessionRoutingError, type RefusalFormat } from './errors.ts';
import { ForwardedRequest } from './forwarded-request.ts';
import { passUpgrade } from './forwarded-upgrade.ts';
import { hasBody } from './headers.ts';
import type { Expectation } from './origin.ts';
import { requestHead } from './request-head.ts';
import { isSocketGone } from './socket-path.ts';

/** Ample for a process that is being killed, which closes its connections just before the socket that it listens on. */
const dyingMilliseconds = 100;

/** Options of {@link Forwarder}. */
export interface ForwarderOptions {
  /** Called before a reply says that the claimant is gone; it may add fields. */
  readonly onGone?: (response: ServerResponse) => void;
  /** How clients are told of refusals. Default: by problem documents. */
  readonly refusalFormat?: RefusalFormat | undefined;
}

/** Where a request goes. */
export interface ForwardTarget {
  /** The claimant's private socket. */
  readonly socketPath: string;
  /** What the client still waits for: then the claimant's app decides on it. Default: nothing. */
  readonly expectation?: Expectation | undefined;
}

/**
 * Forwards requests to other workers over their private sockets, and their replies back, both as streams.
 *
 * A request is sent again, once, only where its claimant closed a connection that it had kept and never read it. What
 * goes wrong before the reply's head is a refusal: 410 if the claimant's socket is gone, 503 if it takes no more
 * connections, 502 if it broke off. After the head the client's connection is destroyed, so that a truncated reply looks
 * truncated.
 */
export class Forwarder {
  readonly #connections = new ClaimantConnections();
  readonly #onGone: (response: ServerResponse) => void;
  readonly #refusalFormat: RefusalFormat;

  constructor({ onGone = () => undefined, refusalFormat = problemDocument }: ForwarderOptions = {}) {
    this.#onGone = onGone;
    this.#refusalFormat = refusalFormat;
  }

  /**
   * Forwards a request whose body is still to be read, and answers it.
   *
   * @throws SessionRoutingError `BODY_ALREADY_READ`, or `CLAIMANT_UNREACHABLE` for what a lenient parser let in and
   *   cannot be written
   */
  forward(request: IncomingMessage, response: ServerResponse, { socketPath, expectation }: ForwardTarget): void {
    if (request.socket.destroyed) return; // the client left while its session was looked up
    checkBody(request);
    const head = requestHead(request, response, expectation);
    // It lives on as the user of a connection.
    new ForwardedRequest(request, response, head, this.#connections, socketPath, (error) => {
      void this.#refuse(request, response, error, socketPath);
    });
  }

  /**
   * Forwards an upgrade request, and passes on as they are the bytes that either side sends from then on.
   *
   * @param socket the client's connection, which Node's own server has let go
   * @param head what the client has sent behind the request
   */
  forwardUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, { socketPath }: ForwardTarget): void {
    passUpgrade(request, socket, head, socketPath, (error) => void this.#refuseUpgrade(socket, error, socketPath));
  }

  /** Ends the idle connections. What is under way finishes, and its connections end with it. */
  close(): void {
    this.#connections.close();
  }

  async #refuse({ socket }: IncomingMessage, response: ServerResponse, error: Error, path: string): Promise<void> {
    if (socket.destroyed) return; // it is the client that left
    const refusal = await this.#refusalFor(error, path);
    if (response.headersSent) return;
    if (refusal.code === 'SESSION_GONE') this.#onGone(response);
    refuse(response, refusal, this.#refusalFormat);
  }

  async #refuseUpgrade(client: Duplex, error: Error, path: string): Promise<void> {
    if (client.destroyed) return;
    const refusal = await this.#refusalFor(error, path);
    // A claimant that lives has closed the connection because its app did. So some refuse an upgrade.
    if (refusal.code === 'CLAIMANT_UNREACHABLE') client.destroy();
    else client.end(refusalBytes(refusal, this.#refusalFormat), () => client.destroy());
  }

  async #refusalFor(error: NodeJS.ErrnoException, socketPath: string): Promise<SessionRoutingError> {
    const isConnecting = error.syscall === 'connect';
    const isRefused = isConnecting && (error.code === 'ECONNREFUSED' || error.code === 'ENOENT');
    if (isRefused || (!isConnecting && (await isGone(socketPath)))) {
      this.#connections.dropIdle(socketPath);
      return new SessionRoutingError(
        'SESSION_GONE',
        'The worker that held this session is no longer running, and the state of the session is lost with it. ' +
          'Start a new session.',
        { cause: error },
      );
    }
    if (isConnecting) {
      return new SessionRoutingError(
        'CLAIMANT_BUSY',
        'The worker that holds this session takes no connection now. Nothing was done; send the request again later.',
        { cause: error },
      );
    }
    return new SessionRoutingError(
      'CLAIMANT_UNREACHABLE',
      'The worker that holds this session broke off before it replied. The request may have been executed.',
      { cause: error },
    );
  }
}

/** Whether a claimant is gone that has broken a connection off. */
async function isGone(socketPath: string): Promise<boolean> {
  if (await isSocketGone(socketPath)) return true;
  await setTimeout(dyingMilliseconds);
  return isSocketGone(socketPath);
}

function checkBody(request: IncomingMessage): void {
  const { readableEnded, readableDidRead, readableFlowing } = request;
  if (!hasBody(request) || !(readableEnded || (readableDidRead && readableFlowing))) return;
  throw new SessionRoutingError(
    'BODY_ALREADY_READ',
    'Something read the body ahead of the session router, which has to forward it. Mount the router ahead of it.',
  );
}
