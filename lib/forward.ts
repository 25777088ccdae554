import {
  Agent,
  request as httpRequest,
  type ClientRequest,
  type IncomingMessage,
  type RequestOptions,
  type ServerResponse,
} from 'node:http';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { refusalBytes, refuse, SessionRoutingError } from './errors.ts';
import { heldOfRequest, heldOfUpgrade, originField, pairsOf, replyFields, requestFields } from './headers.ts';
import { originOf } from './origin.ts';
import { flushHead, headOf, passInterim, passReply } from './replies.ts';
import { isSocketGone } from './socket-path.ts';

/** Shorter than the private socket keeps an idle connection, so that it is this side that closes it. */
const idleMilliseconds = 15_000;

/** Node cuts the fields of a head off, or takes it for an attack, where the worker that wrote it has set no limit. */
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
    const upstream = this.#send(request, target, heldOfRequest, { agent: this.#agent });
    abortWithClient(request, response, upstream);
    let reply: IncomingMessage | undefined;
    upstream.on('information', (interim) => passInterim(interim, response));
    upstream.once('response', (incoming) => {
      reply = incoming;
      if (response.headersSent) upstream.destroy();
      else passReply(incoming, response);
    });
    upstream.on('error', (error) => {
      if (reply === undefined) void this.#refuse(request, response, error, target.socketPath);
      else if (!reply.complete) response.destroy();
    });
    sendBody(request, upstream);
  }

  /**
   * Forwards an upgrade request, and joins both connections once the claimant has switched protocols.
   *
   * @param socket the client's connection, which Node's own server has let go
   * @param head what the client has sent behind the request
   * @throws SessionRoutingError as {@link forward}
   */
  forwardUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, target: ForwardTarget): void {
    if (socket.destroyed) return;
    const client = socket as Socket;
    const { socketPath } = target;
    const upstream = this.#send(request, target, heldOfUpgrade, {
      createConnection: () => connect({ path: socketPath, allowHalfOpen: true }),
    });
    client.on('error', () => upstream.destroy());
    client.once('close', () => upstream.destroy());
    upstream.on('information', (interim) => client.write(headOf(interim, interim.rawHeaders)));
    upstream.once('upgrade', (reply, claimant, claimantHead) => {
      client.write(headOf(reply, reply.rawHeaders));
      client.write(claimantHead);
      join(client, claimant);
    });
    upstream.once('response', (reply) => {
      const fields = pairsOf(replyFields(reply.rawHeaders)).filter(([name]) => !/^transfer-encoding$/i.test(name));
      client.write(headOf(reply, fields.flat())); // what was in chunks ends with the connection
      reply.on('error', () => client.destroy());
      reply.once('end', () => client.destroySoon());
      reply.pipe(client);
    });
    upstream.on('error', (error) => {
      void this.#refusalFor(error, socketPath).then((refusal) => {
        client.end(refusalBytes(refusal));
        client.destroySoon();
      });
    });
    // Not to be taken for a request of its own: the private socket serves nothing but an upgrade on this connection.
    upstream.end(head);
  }

  /** Ends the idle connections. What is under way finishes, and its connections end with it. */
  close(): void {
    this.#agent.maxFreeSockets = 0;
    this.#agent.dropIdle();
  }

  #send(
    request: IncomingMessage,
    { socketPath, awaitsContinue = false }: ForwardTarget,
    held: ReadonlySet<string>,
    options: RequestOptions,
  ): ClientRequest {
    const { method = 'GET', url = '/', rawHeaders } = request;
    // Express cuts the path of a mount off `url`.
    const { originalUrl: path = url } = request as { originalUrl?: string };
    const headers = [...requestFields(rawHeaders, held), originField, originOf(request, awaitsContinue)];
    if (held.has('connection')) headers.push('Connection', 'keep-alive');
    if (!isFramed(request, held) && impliesBody(method)) headers.push('Content-Length', '0');
    const limits = { maxHeaderSize: maximumHeadBytes };
    try {
      const upstream = httpRequest({ socketPath, method, path, headers, setHost: false, ...limits, ...options });
      upstream.maxHeadersCount = 0; // no limit
      return upstream;
    } catch (error) {
      const detail =
        'The request has a field or a target that cannot be passed on to the worker that holds this session.';
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

  async #refusalFor(error: NodeJS.ErrnoException, socketPath: string): Promise<SessionRoutingError> {
    const isConnecting = error.syscall === 'connect';
    const isRefused = isConnecting && (error.code === 'ECONNREFUSED' || error.code === 'ENOENT');
    if (isRefused || (!isConnecting && (await isSocketGone(socketPath)))) {
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

function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function isFramed({ headers }: IncomingMessage, held: ReadonlySet<string>): boolean {
  if (headers['content-length'] !== undefined) return true;
  return headers['transfer-encoding'] !== undefined && !held.has('transfer-encoding');
}

/** Whether Node's client would send chunks where nothing frames a request (see its `useChunkedEncodingByDefault`). */
function impliesBody(method: string): boolean {
  return !['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'CONNECT'].includes(method);
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

/** Passes bytes both ways. When one connection closes, so does the other, once it has sent what it was given. */
function join(client: Socket, claimant: Socket): void {
  for (const [from, to] of [
    [client, claimant],
    [claimant, client],
  ] as const) {
    from.on('error', () => to.destroy());
    from.once('close', () => (from.readableEnded ? to.destroySoon() : to.destroy()));
    from.pipe(to);
  }
}
