import { OutgoingMessage, type ServerResponse } from 'node:http';
import type { Origin } from './origin.ts';
import { endMark } from './reply-reader.ts';
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
  /** Whether the reply may be whole at the other end before that. */
  needsMark: boolean;
  /** Whether the client's connection ends with this reply. */
  closesClient: boolean;
}

const hop = Symbol('express-session-routing hop');
const chunkedCoding = /(?:^|\W)chunked(?:$|\W)/i;
const lengthField = /\r\ncontent-length: *\d+\r\n/i;
const { _send: sendBytes } = OutgoingMessage.prototype as unknown as { _send: SendBytes };

/**
 * Makes Node write the reply to a forwarded request as it would write it to the client itself, to the last byte of the
 * head. What a head says about a connection is about the client's; the hop's own connection outlasts every reply that
 * says where it ends.
 */
export function prepareReply(reply: ServerResponse, origin: Origin, publicServer: RoutedServer): void {
  const response = reply as ReplyInternals;
  response.shouldKeepAlive = origin.keepsAlive;
  response.maxRequestsOnConnectionReached = origin.isLast;
  response._keepAliveTimeout = publicServer.keepAliveTimeout;
  response._maxRequestsPerSocket = publicServer.maxRequestsPerSocket;
  // Node's own rule, for a client that knows no chunks.
  const { httpVersionMajor, httpVersionMinor, headers } = response.req;
  if (httpVersionMajor < 1 || (httpVersionMajor === 1 && httpVersionMinor < 1)) {
    response.useChunkedEncodingByDefault = chunkedCoding.test(String(headers['te']));
  }
  response[hop] = { left: undefined, isEnded: false, needsMark: false, closesClient: false };
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
  const bytes = state.left === undefined ? data : cut(state, state.left, data, encoding);
  return Reflect.apply(sendBytes, this, [bytes, encoding, callback, byteLength]);
}

/**
 * Decides what becomes of the connection, and marks a reply that is ended where its bytes are. Others get the mark once
 * they have ended: the app may have sent all of a reply long before it ends it, and until then Node sends no other on
 * this connection.
 */
function sendHead(response: ReplyInternals, state: HopState, head: string): void {
  const isChunked = response.chunkedEncoding;
  const saysLength = !isChunked && (head.includes('\r\nContent-Length: ') || lengthField.test(head));
  if (saysLength && response._hasBody) state.left = response._contentLength ?? undefined;
  state.closesClient = response._last;
  response._last = response._hasBody && !isChunked && !saysLength;
  if (state.isEnded || isChunked) response._header = endMark + head;
  else state.needsMark = true;
}

function end(this: ReplyInternals, chunk?: unknown, encoding?: unknown, callback?: unknown): unknown {
  const state = this[hop];
  const { socket } = this;
  const isFirst = !state.isEnded;
  state.isEnded = true;
  const inherited = Object.getPrototypeOf(this) as ReplyInternals;
  const ended: unknown = Reflect.apply(inherited.end, this, [chunk, encoding, callback]);
  if (!isFirst) return ended;
  // A body that falls short of its length can only be told by the end of the connection.
  if (state.left !== undefined && state.left > 0) this._last = true;
  if (state.needsMark && !this._last) socket?.write(endMark);
  // Nor does the app read on, where its client's connection ends with the reply.
  if (state.closesClient && !this.req.complete) this.prependOnceListener('finish', endUnread);
  return ended;
}

/** Ends the connection with a reply that ends its client's, where the app has left the body unread. */
function endUnread(this: ReplyInternals): void {
  if (!this.req.complete) this._last = true;
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
