import { OutgoingMessage, type ServerResponse } from 'node:http';
import type { ReplyHead } from './reply-reader.ts';

/** Members of Node's replies that its type declarations leave out. */
interface ReplyInternals extends ServerResponse {
  _header: string;
  _hasBody: boolean;
  _contentLength: number | null;
  /** Whether the connection ends with this reply. */
  _last: boolean;
  maxRequestsOnConnectionReached?: boolean;
  _writeRaw(data: string, encoding: BufferEncoding): boolean;
}

/** Node's own methods: what something ahead of the router has put over them would take a reply's bytes for its body. */
const { write, end } = OutgoingMessage.prototype;

const closeOption = /(?:^|\W)close(?:$|\W)/i;

/** Replies no longer than this are sent as one piece of text, which costs less than bytes. */
const shortReplyBytes = 8_192;

/** Passes the head of an interim reply (1xx) on, unless the reply itself has begun. */
export function passInterim(head: string, response: ServerResponse): void {
  if (response.headersSent || response.destroyed) return;
  if (head.startsWith('HTTP/1.1 100 ')) response.writeContinue();
  else (response as ReplyInternals)._writeRaw(head, 'latin1');
}

/**
 * Begins to answer with a claimant's reply: what is sent from now on are its bytes, as they come. Node keeps the order
 * of replies on the connection, and closes it where the head says so.
 */
export function beginReply(reply: ServerResponse, head: ReplyHead): void {
  const response = reply as ReplyInternals;
  response.statusCode = head.statusCode;
  response.statusMessage = head.statusMessage;
  response._header = isToClose(response) ? closing(head.text) : head.text;
  response._hasBody = true; // no byte is to be dropped, or framed again
  response.chunkedEncoding = false;
  response._contentLength = null;
  response._last = head.endsWithConnection || isToClose(response) || closes(head.connection, response);
}

/** Whether something ahead of the router, in this worker, has said that the connection is to end. */
function isToClose(response: ServerResponse): boolean {
  return response.hasHeader('connection') && closeOption.test(String(response.getHeader('connection')));
}

/** A head that says so. */
function closing(head: string): string {
  return head
    .replace(/\r\n(?:connection|keep-alive):[^\r]*/gi, '')
    .replace(/\r\n\r\n$/, '\r\nConnection: close\r\n\r\n');
}

/** As Node decides it for a reply that it has the fields of. */
function closes(connection: string | undefined, response: ReplyInternals): boolean {
  if (connection === undefined) return !response.shouldKeepAlive;
  if (response.shouldKeepAlive && response.maxRequestsOnConnectionReached) return false;
  return closeOption.test(connection);
}

/**
 * Sends what has come of a reply, and with it the head, unless that has left.
 *
 * @param bytes good for as long as the call lasts
 * @returns false if the client takes no more until the reply has drained
 */
export function passBytes(response: ServerResponse, bytes: Buffer): boolean {
  return Reflect.apply(write, response, [Buffer.from(bytes)]) as boolean;
}

/**
 * Sends the last of a reply.
 *
 * @param isWhole whether these are all of its bytes, and the head has not left
 */
export function passLastBytes(reply: ServerResponse, bytes: Buffer, isWhole: boolean): void {
  const response = reply as ReplyInternals;
  if (bytes.length === 0) return void Reflect.apply(end, response, []);
  if (isWhole && bytes.length < shortReplyBytes) {
    response._header += bytes.toString('latin1');
    return void Reflect.apply(end, response, []);
  }
  Reflect.apply(end, response, [Buffer.from(bytes)]);
}
