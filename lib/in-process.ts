import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import { duplexPair, type Duplex } from 'node:stream';
import { text } from 'node:stream/consumers';

/** A request to an app in this process. */
export interface InProcessRequest<Context> {
  /** What the listener is to know of it. */
  readonly context: Context;
  readonly method: string;
  /** The request target. */
  readonly target: string;
  /** Names and values in turn, without those that frame the body. */
  readonly fields: readonly string[];
  readonly body: string;
  /** The request on whose behalf it is made: the app sees the same client. */
  readonly onBehalfOf: IncomingMessage;
  /** Ends the request as a client does that leaves. */
  readonly signal?: AbortSignal;
}

/** What an app has answered. */
export interface InProcessReply {
  readonly status: number;
  readonly contentType: string;
  readonly text: string;
}

/** What an app may know of the connection of its client. */
type ClientConnection = Duplex &
  Partial<Pick<Socket, 'remoteAddress' | 'remotePort' | 'remoteFamily' | 'localAddress' | 'localPort'>> & {
    encrypted?: boolean;
  };

/** Handles a request, as a listener of an HTTP server does. */
export type InProcessListener<Context> = (request: IncomingMessage, response: ServerResponse, context: Context) => void;

/**
 * Sends requests to a listener in this process as HTTP, over a pair of streams in the place of a connection: so whatever
 * the app mounts sees Node's own requests and replies.
 */
export class InProcessClient<Context> {
  readonly #server: Server;
  readonly #contexts = new WeakMap<object, Context>();

  constructor(listener: InProcessListener<Context>) {
    this.#server = createServer((request, response) => {
      listener(request, response, this.#contexts.get(request.socket) as Context);
    });
  }

  /**
   * Sends a request and reads its reply whole.
   *
   * @returns the reply. Rejects if the app ends the connection before its reply is complete, or the signal says so.
   */
  async send({
    context,
    method,
    target,
    fields,
    body,
    onBehalfOf,
    signal,
  }: InProcessRequest<Context>): Promise<InProcessReply> {
    const [near, far] = duplexPair();
    near.once('close', () => far.destroy());
    far.once('close', () => {
      if (!far.writableFinished) near.destroy(new Error('The app closed the connection.'));
    });
    this.#contexts.set(far, context);
    this.#server.emit('connection', connectionOf(far, onBehalfOf));
    const headers = [...fields, 'Content-Length', String(Buffer.byteLength(body)), 'Connection', 'close'];
    const request = httpRequest({
      createConnection: () => near,
      method,
      path: target,
      headers,
      setHost: false,
      signal,
    });
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      request.once('response', resolve).once('error', reject).end(body);
    });
    const { statusCode = 0, headers: replyFields } = response;
    return { status: statusCode, contentType: replyFields['content-type'] ?? '', text: await text(response) };
  }
}

/** What an app may ask of its client's connection that makes no difference to a pair of streams. */
const withoutEffect = ['setKeepAlive', 'setNoDelay', 'ref', 'unref'] as const;

/** A stream that looks to the app as the connection of the client does. */
function connectionOf(stream: ClientConnection, { socket }: IncomingMessage): Duplex {
  const { remoteAddress, remotePort, remoteFamily, localAddress, localPort, encrypted } = socket as ClientConnection;
  const chained = (): Duplex => stream;
  return Object.assign(
    stream,
    { remoteAddress, remotePort, remoteFamily, localAddress, localPort },
    { address: () => ({ address: localAddress, port: localPort, family: remoteFamily }) },
    Object.fromEntries(withoutEffect.map((name) => [name, chained])),
    { setTimeout: idleTimeoutOf(stream) },
    encrypted === undefined ? {} : { encrypted },
  );
}

/** The `setTimeout()` of a connection, which Node's requests and replies call for theirs: what writes puts it off. */
function idleTimeoutOf(stream: Duplex): (milliseconds: number, callback?: () => void) => Duplex {
  let timer: NodeJS.Timeout | undefined;
  const { _write } = stream;
  stream._write = (...args) => {
    timer?.refresh();
    _write.apply(stream, args);
  };
  stream.once('close', () => clearTimeout(timer));
  return function setIdleTimeout(milliseconds, callback) {
    clearTimeout(timer);
    timer = undefined;
    if (milliseconds > 0 && !stream.destroyed) timer = setTimeout(() => stream.emit('timeout'), milliseconds).unref();
    if (callback !== undefined) stream.once('timeout', callback);
    return stream;
  };
}
