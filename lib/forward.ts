import {
  Agent,
  request as httpRequest,
  type ClientRequest,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout } from 'node:timers/promises';
import { refusalBytes, refuse, SessionRoutingError } from './errors.ts';
import { heldFields, originField, pairsOf, requestFields } from './headers.ts';
import { originOf } from './origin.ts';
import { flushHead, headOf, passInterim, passReply } from './replies.ts';
import { isSocketGone } from './socket-path.ts';

/** Shorter than the private socket keeps an idle connection, so that it is this side that closes it. */
const idleMilliseconds = 15_000;

/** Ample for a process that is being killed, which closes its connections just before the socket that it listens on. */
const dyingMilliseconds = 100;

/** As good as none: a reply's head has no limit where its app writes it. */
const maximumHeadBytes = 2 ** 31 - 1;

/** Options of {@link Forwarder}. */
export interface ForwarderOptions {
  /** Called before a reply says that the claimant is gone; it may add fields. */
  readonly onGone?: (response: ServerResponse) => void;
}

/** Where a request goes. */
export interface ForwardTarget {
  /** The claimant's private socket. */
  readonly socketPath: string;
  /** Whether the client still waits for `100 Continue`: then the claimant's app decides on it. Default: false. */
  readonly awaitsContinue?: boolean;
}

/** Keeps the connections of each claimant apart by its socket. (Node's own name for them also has a host and a port.) */
class ClaimantAgent extends Agent {
  override getName({ socketPath }: { socketPath?: string | undefined } = {}): string {
    return socketPath ?? '';
  }

  /** Ends the idle connections to one claimant, or to all. Replies that are under way finish. */
  dropIdle(socketPath?: string): void {
    const idle = socketPath === undefined ? Object.values(this.freeSockets).flat() : this.freeSockets[socketPath];
    for (const socket of idle ?? []) socket?.destroy();
  }
}

/**
 * Forwards requests to other workers over their private sockets, and their replies back, both as streams.
 *
 * Nothing is ever sent twice. What goes wrong before the reply's head is a refusal: 410 if the claimant's socket is
 * gone, 503 if it takes no more connections, 502 if it broke off. After the head the client's connection is destroyed,
 * so that a truncated reply looks truncated.
 */
export class Forwarder {
  readonly #agent = new ClaimantAgent({ keepAlive: true, timeout: idleMilliseconds });
  readonly #onGone: (response: ServerResponse) => void;

  constructor({ onGone = () => undefined }: ForwarderOptions = {}) {
    this.#onGone = onGone;
  }

  /**
   * Forwards a request whose body is still to be read, and answers it.
   *
   * @throws SessionRoutingError `BODY_ALREADY_READ`, or `CLAIMANT_UNREACHABLE` for what a lenient parser let in and
   *   Node does not write
   */
  forward(request: IncomingMessage, response: ServerResponse, target: ForwardTarget): void {
    if (request.socket.destroyed) return; // the client left while its session was looked up
    checkBody(request);
    const upstream = this.#send(request, target);
    abortWithClient(request, response, upstream);
    let hasReplied = false;
    upstream.on('information', (interim) => passInterim(interim, response));
    upstream.once('response', (reply) => {
      hasReplied = true;
      if (response.headersSent) upstream.destroy();
      else passReply(reply, response);
    });
    upstream.on('error', (error) => {
      if (!hasReplied) void this.#refuse(request, response, error, target.socketPath);
    });
    sendBody(request, upstream);
  }

  /**
   * Forwards an upgrade request, and passes on as they are the bytes that either side sends from then on.
   *
   * @param socket the client's connection, which Node's own server has let go
   * @param head what the client has sent behind the request
   */
  forwardUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, { socketPath }: ForwardTarget): void {
    const client = socket as Socket;
    if (client.destroyed) return;
    const claimant = connect({ path: socketPath, allowHalfOpen: true });
    let failure: Error = new Error('The claimant closed the connection of an upgrade before it replied.');
    claimant.on('error', (error) => (failure = error));
    claimant.once('close', () => {
      if (claimant.bytesRead === 0) void this.#refuseUpgrade(client, failure, socketPath);
    });
    claimant.once('readable', () => {
      if (claimant.bytesRead > 0) relay(claimant, client);
      else claimant.destroy();
    });
    const { method, httpVersion, rawHeaders } = request;
    const fields = [...requestFields(rawHeaders, new Set()), originField, originOf(request, false)];
    claimant.write(headOf(`${method} ${targetOf(request)} HTTP/${httpVersion}`, fields));
    // None of this can be taken for a request: on this connection, the private socket serves the upgrade and no more.
    claimant.write(head);
    relay(client, claimant);
  }

  /** Ends the idle connections. What is under way finishes, and its connections end with it. */
  close(): void {
    this.#agent.maxFreeSockets = 0;
    this.#agent.dropIdle();
  }

  #send(request: IncomingMessage, { socketPath, awaitsContinue = false }: ForwardTarget): ClientRequest {
    const { method = 'GET', rawHeaders } = request;
    const headers = [...requestFields(rawHeaders, heldFields), originField, originOf(request, awaitsContinue)];
    headers.push('Connection', 'keep-alive');
    try {
      const upstream = httpRequest({
        agent: this.#agent,
        socketPath,
        method,
        path: targetOf(request),
        headers,
        setHost: false,
        maxHeaderSize: maximumHeadBytes,
      });
      upstream.maxHeadersCount = 0; // no limit
      return upstream;
    } catch (error) {
      const detail = 'The request has a field that cannot be passed on to the worker that holds this session.';
      throw new SessionRoutingError('CLAIMANT_UNREACHABLE', detail, { cause: error });
    }
  }

  async #refuse({ socket }: IncomingMessage, response: ServerResponse, error: Error, path: string): Promise<void> {
    if (socket.destroyed) return; // it is the client that left
    const refusal = await this.#refusalFor(error, path);
    if (response.headersSent) return;
    if (refusal.code === 'SESSION_GONE') this.#onGone(response);
    refuse(response, refusal);
  }

  async #refuseUpgrade(client: Socket, error: Error, path: string): Promise<void> {
    if (client.destroyed) return;
    client.end(refusalBytes(await this.#refusalFor(error, path)));
    client.destroySoon();
  }

  async #refusalFor(error: NodeJS.ErrnoException, socketPath: string): Promise<SessionRoutingError> {
    const isConnecting = error.syscall === 'connect';
    const isRefused = isConnecting && (error.code === 'ECONNREFUSED' || error.code === 'ENOENT');
    if (isRefused || (!isConnecting && (await isGone(socketPath)))) {
      this.#agent.dropIdle(socketPath);
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

/** The request's target as its client sent it: Express cuts the path of a mount off `url`. */
function targetOf(request: IncomingMessage & { originalUrl?: string }): string {
  return request.originalUrl ?? request.url ?? '/';
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function checkBody(request: IncomingMessage): void {
  const { readableEnded, readableDidRead, readableFlowing } = request;
  if (!hasBody(request) || !(readableEnded || (readableDidRead && readableFlowing))) return;
  throw new SessionRoutingError(
    'BODY_ALREADY_READ',
    'Something read the body ahead of the session router, which has to forward it. Mount the router ahead of it.',
  );
}

/**
 * Aborts what is under way to the claimant when the client's connection closes. Only the socket says so at all times: the
 * reply does not while it waits behind others, nor the request once its body or its reply has ended.
 */
function abortWithClient({ socket }: IncomingMessage, response: ServerResponse, upstream: ClientRequest): void {
  const abort = (): void => void upstream.destroy();
  if (response.socket === null) socket.setMaxListeners(0); // a client may have any number of requests wait
  socket.once('close', abort);
  upstream.once('close', () => socket.off('close', abort));
}

function sendBody(request: IncomingMessage, upstream: ClientRequest): void {
  if (!hasBody(request)) return void upstream.end();
  // Once the whole reply has come, Node itself no longer says that more of the body can be written.
  upstream.once('socket', (socket) => {
    const drain = (): void => void upstream.emit('drain');
    socket.on('drain', drain);
    upstream.once('close', () => socket.off('drain', drain));
  });
  // So that the client's connection can be used again, whatever became of the hop.
  upstream.once('close', () => request.unpipe(upstream).resume());
  request.once('end', () => upstream.addTrailers(pairsOf(request.rawTrailers)));
  request.pipe(upstream);
  flushHead(upstream); // the app may answer before the body has come
}

/** Passes bytes on. When their source closes, so does where they go, once it has sent what it was given. */
function relay(from: Socket, to: Socket): void {
  from.on('error', () => to.destroy());
  from.once('close', () => (from.readableEnded ? to.destroySoon() : to.destroy()));
  from.pipe(to);
}
