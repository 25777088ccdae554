import type { ServerResponse } from 'node:http';
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
  _implicitHeader(): void;
  _storeHeader(firstLine: string, headers: unknown): void;
  _send(...args: unknown[]): unknown;
  /** Bytes of the body so far. */
  [written]?: number;
  /** Whether the client's connection ends with this reply. */
  [closesClient]?: boolean;
  /** Whether the app has ended the reply. */
  [isEnded]?: boolean;
  /** Whether the reply may be whole at the other end before the app has ended it. */
  [needsMark]?: boolean;
};

const written = Symbol('express-session-routing written');
const isEnded = Symbol('express-session-routing ended');
const needsMark = Symbol('express-session-routing needs mark');
const closesClient = Symbol('express-session-routing closes client');
const lengthField = /\r\ncontent-length: *\d+\r\n/i;
const chunkedCoding = /(?:^|\W)chunked(?:$|\W)/i;

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
  // On the reply itself: Express puts another prototype under it.
  response._storeHeader = storeHeader;
  response._send = send;
  response.write = write as typeof response.write;
  response.end = end as typeof response.end;
}

/** What a method of a reply would be without the one that is put over it here. */
function inherited<Key extends '_storeHeader' | '_send' | 'write' | 'end'>(response: ReplyInternals, key: Key) {
  return (Object.getPrototypeOf(response) as ReplyInternals)[key];
}

function storeHeader(this: ReplyInternals, firstLine: string, headers: unknown): void {
  inherited(this, '_storeHeader').call(this, firstLine, headers);
  const saysWhereItEnds = !this._hasBody || this.chunkedEncoding || lengthField.test(this._header ?? '');
  this[closesClient] = this._last;
  this._last = !saysWhereItEnds;
}

/**
 * Marks the head of a reply that is ended where its bytes are. Others get the mark once they have ended: the app may
 * have sent all of a reply long before it ends it, and until then Node sends no other on this connection.
 */
function send(this: ReplyInternals, ...args: unknown[]): unknown {
  if (!this._headerSent && this._header !== null) {
    if (this[isEnded] || this.chunkedEncoding) this._header = endMark + this._header;
    else this[needsMark] = true;
  }
  return Reflect.apply(inherited(this, '_send'), this, args);
}

function write(this: ReplyInternals, ...args: unknown[]): unknown {
  return Reflect.apply(inherited(this, 'write'), this, cut(this, args));
}

function end(this: ReplyInternals, ...args: unknown[]): unknown {
  const cutArgs = cut(this, args);
  const { headersSent, _contentLength: length, [written]: bytes = 0 } = this;
  // A body that falls short of its length can only be told by the end of the connection.
  if (headersSent && length !== null && bytes < length && this._hasBody && !this.chunkedEncoding) this._last = true;
  const { socket } = this;
  const isFirst = !this.writableEnded;
  this[isEnded] = true;
  const ended: unknown = Reflect.apply(inherited(this, 'end'), this, cutArgs);
  if (isFirst && this[needsMark] && !this._last) socket?.write(endMark);
  if (this[closesClient] && !this.req.complete) this.prependOnceListener('finish', endUnread);
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
function cut(response: ReplyInternals, args: unknown[]): unknown[] {
  if (!response.headersSent && response.hasHeader('content-length')) response._implicitHeader();
  const [chunk, encoding] = args;
  if (!response.headersSent || response.chunkedEncoding) return args;
  if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) return args;
  const { _contentLength: limit, [written]: before = 0 } = response;
  const length = typeof chunk === 'string' ? Buffer.byteLength(chunk, encodingOf(encoding)) : chunk.length;
  response[written] = before + length;
  if (limit === null || before + length <= limit) return args;
  const bytes = typeof chunk === 'string' ? Buffer.from(chunk, encodingOf(encoding)) : chunk;
  return [bytes.subarray(0, Math.max(0, limit - before)), ...args.slice(1)];
}

function encodingOf(argument: unknown): BufferEncoding | undefined {
  return typeof argument === 'string' ? (argument as BufferEncoding) : undefined;
}
