import {
  Agent,
  request as httpRequest,
  type ClientRequest,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import type { Duplex } from 'node:stream';
import { refusalBytes, refuse, SessionRoutingError } from './errors.ts';
import { originField, pairsOf, replyFields, requestFields } from './headers.ts';
import { originOf } from './origin.ts';
import { isSocketGone } from './runtime-directory.ts';

/** Shorter than the private socket keeps an idle connection, so that it is this side that closes it. */
const idleMilliseconds = 15_000;

/** Options of {@link Forwarder}. */
export interface ForwarderOptions {
  /** Called before a reply says that the claimant is gone; it may add fields. */
  readonly onGone?: (response: ServerResponse) => void;
}

/** Where a request goes. */
export interface ForwardTarget {
  /** The claimant's private socket. */
  readonly socketPath: string;
  /** Whether the client still waits for `100 Continue`: then the claimant's is passed on. Default: false. */
  readonly awaitsContinue?: boolean;
}

/**
 * Forwards requests to other workers over their private sockets, and their replies back, both as streams.
 *
 * Nothing is ever sent twice. What goes wrong before the reply's head is a refusal: 410 if the claimant's socket is
 * gone, 503 if it takes no more connections, 502 if it broke off. After the head the client's connection is destroyed,
 * so that a truncated reply looks truncated.
 */
export class Forwarder {
  readonly #agent = new Agent({ keepAlive: true, timeout: idleMilliseconds });
  readonly #onGone: (response: ServerResponse) => void;

  constructor({ onGone = () => undefined }: ForwarderOptions = {}) {
    this.#onGone = onGone;
  }

  /** Forwards a request whose body is still to be read, and answers it. */
  forward(request: IncomingMessage, response: ServerResponse, target: ForwardTarget): void {
    const upstream = this.#send(request, target, ['Connection', 'keep-alive']);
    const clientLeft = (): boolean => response.destroyed && !response.writableFinished;
    response.once('close', () => {
      if (clientLeft()) upstream.destroy();
    });
    upstream.on('information', ({ statusCode, headers }) => {
      if (response.headersSent || clientLeft()) return;
      if (statusCode === 100 && target.awaitsContinue) response.writeContinue();
      else if (statusCode === 102) response.writeProcessing();
      else if (statusCode === 103) response.writeEarlyHints(headers as Record<string, string | string[]>);
    });
    upstream.once('response', (reply) => passReply(reply, response));
    upstream.on('error', (error) => {
      request.unpipe(upstream);
      request.resume(); // so that the connection can be used again
      if (clientLeft()) return;
      if (response.headersSent) return void response.destroy();
      void this.#refusalFor(error, target.socketPath).then((refusal) => {
        if (refusal.code === 'SESSION_GONE' && !response.headersSent) this.#onGone(response);
        refuse(response, refusal);
      });
    });

    if (hasBody(request)) {
      // The app may answer before the body has come, or wait for it to be let in.
      if (request.readableLength === 0 && !request.complete) upstream.flushHeaders();
      request.once('end', () => upstream.addTrailers(pairsOf(request.rawTrailers)));
      request.on('error', () => upstream.destroy());
      request.pipe(upstream);
    } else {
      upstream.end();
    }
  }

  /** Forwards an upgrade request, and joins both connections once the claimant has switched protocols. */
  forwardUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, target: ForwardTarget): void {
    const { connection = 'Upgrade' } = request.headers;
    const upstream = this.#send(request, target, ['Connection', connection]);
    socket.on('error', () => upstream.destroy());
    socket.once('close', () => upstream.destroy());
    upstream.once('upgrade', (reply, claimant, claimantHead) => {
      socket.write(headOf(reply, reply.rawHeaders));
      socket.write(claimantHead);
      claimant.write(head);
      join(socket, claimant);
    });
    upstream.once('response', (reply) => {
      socket.write(headOf(reply, [...replyFields(reply.rawHeaders), 'Connection', 'close']));
      reply.on('error', () => socket.destroy());
      reply.pipe(socket);
    });
    upstream.on('error', (error) => {
      if (socket.destroyed) return;
      void this.#refusalFor(error, target.socketPath).then((refusal) => socket.end(refusalBytes(refusal)));
    });
    upstream.end();
  }

  /** Closes the connections that are idle. */
  close(): void {
    this.#agent.destroy();
  }

  #send(request: IncomingMessage, { socketPath }: ForwardTarget, connection: [string, string]): ClientRequest {
    const { method = 'GET', url = '/', rawHeaders } = request;
    const headers = [...requestFields(rawHeaders), originField, originOf(request), ...connection];
    // Node would send such a request in chunks, which nobody may ever end.
    if (!hasBody(request) && request.headers['content-length'] === undefined && bodyIsExpected(method)) {
      headers.push('Content-Length', '0');
    }
    // Express cuts the path of a mount off `url`.
    const { originalUrl: path = url } = request as { originalUrl?: string };
    return httpRequest({ socketPath, method, path, headers, agent: this.#agent, setHost: false });
  }

  async #refusalFor(error: NodeJS.ErrnoException, socketPath: string): Promise<SessionRoutingError> {
    const isConnecting = error.syscall === 'connect';
    const isRefused = isConnecting && (error.code === 'ECONNREFUSED' || error.code === 'ENOENT');
    if (isRefused || (!isConnecting && (await isSocketGone(socketPath)))) {
      this.#dropIdle(socketPath);
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

  /** Drops the idle connections to a worker that is gone. Replies that are under way finish. */
  #dropIdle(socketPath: string): void {
    for (const socket of this.#agent.freeSockets[this.#agent.getName({ socketPath })] ?? []) socket.destroy();
  }
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

/** Methods whose requests Node's client takes to have a body (see its `useChunkedEncodingByDefault`). */
function bodyIsExpected(method: string): boolean {
  return !['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'CONNECT'].includes(method);
}

function passReply(reply: IncomingMessage, response: ServerResponse): void {
  const fields = replyFields(reply.rawHeaders);
  response.sendDate = false; // the claimant's own is among the fields, or its app wants none
  if (/\bclose\b/i.test(reply.headers.connection ?? '')) response.shouldKeepAlive = false;
  const { statusCode = 502, statusMessage = '' } = reply;
  const ownFields = response.getHeaderNames();
  if (ownFields.length === 0) {
    response.writeHead(statusCode, statusMessage, fields);
  } else {
    // Node merges a raw list into fields that are set already, and of a repeated field only the last remains.
    for (const name of ownFields) response.removeHeader(name);
    for (const [name, value] of pairsOf(fields)) response.appendHeader(name, value);
    response.writeHead(statusCode, statusMessage);
  }
  response.flushHeaders();

  // Before the pipe's own listener, which ends the reply.
  reply.once('end', () => response.addTrailers(pairsOf(reply.rawTrailers)));
  reply.on('error', () => response.destroy());
  reply.once('close', () => {
    if (!reply.complete) response.destroy();
  });
  reply.pipe(response);
}

/** The head of a reply in bytes, for a connection that Node's own server has let go. */
function headOf({ statusCode = 502, statusMessage = '' }: IncomingMessage, raw: readonly string[]): Buffer {
  const lines = pairsOf(raw).map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.from(`HTTP/1.1 ${statusCode} ${statusMessage}\r\n${lines.join('')}\r\n`, 'latin1');
}

/** Passes bytes both ways until one side ends, and closes both together. */
function join(client: Duplex, claimant: Duplex): void {
  for (const [from, to] of [
    [client, claimant],
    [claimant, client],
  ] as const) {
    from.on('error', () => to.destroy());
    from.once('close', () => to.destroy());
    from.pipe(to);
  }
}
