import { OutgoingMessage, type Server, type ServerResponse } from 'node:http';
import { saysChunked } from './chunks.ts';
import type { Origin } from './origin.ts';
import { hasBody } from './headers.ts';
import { endMarks } from './reply-reader.ts';
import type { RoutedServer } from './routed-servers.ts';

/** Members of Node's replies that its type declarations leave out. */
type ReplyInternals = ServerResponse & {
  /** How many bytes the head says that the body has; null where it says nothing. */
  _contentLength: number | null;
  _hasBody: boolean;
  _header: string | null;
  _headerSent: boolean;
  /** Whether the connection ends with this reply. */
  _last: boolean;
  _keepAliveTimeout: number;
  _maxRequestsPerSocket: number | null;
  maxRequestsOnConnectionReached: boolean;
  _send: SendBytes;
  [hop]: HopState;
};

type SendBytes = (data: unknown, encoding?: unknown, callback?: unknown, byteLength?: unknown) => unknown;

/** What becomes of a reply on the hop. */
interface HopState {
  /** Bytes of the body that are still to come; undefined where the head does not say how many it has. */
  left: number | undefined;
  /** Whether the app has ended the reply. */
  isEnded: boolean;
  /** Whether the reply has its mark already. */
  isMarked: boolean;
  /** Whether the client's connection ends with this reply. */
  closesClient: boolean;
  /** Whether the hop's connection does. */
  closesHop: boolean;
  /** The private server, which may be closing. */
  readonly server: Server;
}

const hop = Symbol('express-session-routing hop');
const lengthField = /\r\ncontent-length: *\d+\r\n/i;
const { _send: sendBytes } = OutgoingMessage.prototype as unknown as { _send: SendBytes };

/**
 * Makes Node write the reply to a forwarded request as it would write it to the client itself, to the last byte of the
 * head. What a head says about a connection is about the client's; the hop's own connection outlasts every reply that
 * says where it ends.
 */
export function prepareReply(
  reply: ServerResponse,
  origin: Origin,
  publicServer: RoutedServer,
  privateServer: Server,
): void {
  const response = reply as ReplyInternals;
  response.shouldKeepAlive = origin.keepsAlive;
  response.maxRequestsOnConnectionReached = origin.isLast;
  response._keepAliveTimeout = publicServer.keepAliveTimeout;
  response._maxRequestsPerSocket = publicServer.maxRequestsPerSocket;
  // Node's own rule, for a client that knows no chunks.
  const { httpVersionMajor, httpVersionMinor, headers } = response.req;
  if (httpVersionMajor < 1 || httpVersionMinor < 1) {
    response.useChunkedEncodingByDefault = saysChunked(String(headers['te']));
  }
  response[hop] = {
    left: undefined,
    isEnded: false,
    isMarked: false,
    closesClient: false,
    closesHop: false,
    server: privateServer,
  };
  // On the reply itself: Express puts another prototype under it.
  response._send = send;
  response.end = end as typeof response.end;
}

/** What Node calls with every piece of a reply; with the first, it sends the head. */
function send(
  this: ReplyInternals,
  data: unknown,
  encoding?: unknown,
  callback?: unknown,
  byteLength?: unknown,
): unknown {
  const state = this[hop];
  if (!this._headerSent && this._header !== null) sendHead(this, state, this._header);
  let bytes = data;
  if (state.left !== undefined) bytes = cut(state, state.left, data, encoding);
  else if (state.isEnded && !state.isMarked && isLastChunk(data, encoding, callback)) {
    state.isMarked = true;
    bytes = `${data}${markOf(this, state)}`;
  }
  return Reflect.apply(sendBytes, this, [bytes, encoding, callback, byteLength]);
}

/** Whether this is what Node sends behind a body in chunks. (An app's own text never comes with the callback.) */
function isLastChunk(data: unknown, encoding: unknown, callback: unknown): data is string {
  return typeof data === 'string' && encoding === 'latin1' && callback instanceof Function && data.startsWith('0\r\n');
}

/**
 * Decides what becomes of the connection, and marks a reply that the app has ended. Others get the mark once they have
 * ended: the app may have sent all of a reply long before it ends it, and until then Node sends no other on this
 * connection.
 */
function sendHead(response: ReplyInternals, state: HopState, head: string): void {
  const isChunked = response.chunkedEncoding && response._hasBody;
  const saysLength = !isChunked && (head.includes('\r\nContent-Length: ') || lengthField.test(head));
  if (saysLength && response._hasBody) state.left = response._contentLength ?? undefined;
  state.closesClient = response._last;
  response._last = response._hasBody && !isChunked && !saysLength;
  if (!state.isEnded || isChunked || response._last) return;
  state.isMarked = true;
  response._header = markOf(response, state) + head;
}

/**
 * The mark of a reply. Its connection is not used again where the private socket closes, nor where the reply ends its
 * client's connection and the app has left the body unread.
 */
function markOf({ req }: ReplyInternals, state: HopState): string {
  const isUnread = state.closesClient && !req.complete && hasBody(req);
  state.closesHop = isUnread || !state.server.listening;
  return state.closesHop ? endMarks.closed : endMarks.kept;
}

function end(this: ReplyInternals, chunk?: unknown, encoding?: unknown, callback?: unknown): unknown {
  const state = this[hop];
  const { socket } = this;
  const isFirst = !state.isEnded;
  state.isEnded = true;
  const inherited = Object.getPrototypeOf(this) as ReplyInternals;
  let ended: unknown;
  try {
    ended = Reflect.apply(inherited.end, this, [chunk, encoding, callback]);
  } catch (error) {
    if (isFirst) state.isEnded = false; // it may be ended in another way
    throw error;
  }
  if (!isFirst) return ended;
  // A body that falls short of its length can only be told by the end of the connection.
  if (state.left !== undefined && state.left > 0) this._last = true;
  if (!state.isMarked && !this._last) {
    state.isMarked = true;
    socket?.write(markOf(this, state));
  }
  if (state.closesHop) this._last = true;
  return ended;
}

/**
 * Cuts off what a body has beyond its `Content-Length`. To the client that sent the request it would be a nuisance;
 * behind the reply, on the shared connection, it would be the beginning of another client's.
 */
function cut(state: HopState, left: number, data: unknown, encoding: unknown): unknown {
  if (typeof data !== 'string' && !(data instanceof Uint8Array)) return data;
  const bufferEncoding = typeof encoding === 'string' ? (encoding as BufferEncoding) : undefined;
  const length = typeof data === 'string' ? Buffer.byteLength(data, bufferEncoding) : data.length;
  state.left = Math.max(0, left - length);
  if (length <= left) return data;
  return (typeof data === 'string' ? Buffer.from(data, bufferEncoding) : data).subarray(0, left);
}
