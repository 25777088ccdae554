import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
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
type ClientConnection = Duplex & {
  remoteAddress?: string | undefined;
  remotePort?: number | undefined;
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

/** A stream that looks to the app as the connection of the client does. */
function connectionOf(stream: ClientConnection, { socket }: IncomingMessage): Duplex {
  const { remoteAddress, remotePort, encrypted } = socket as ClientConnection;
  return Object.assign(stream, { remoteAddress, remotePort }, encrypted === undefined ? {} : { encrypted });
}
