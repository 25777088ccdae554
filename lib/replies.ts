import type { ClientRequest, IncomingMessage, InformationEvent, ServerResponse } from 'node:http';
import { pairsOf, replyFields, type RawHeaders } from './headers.ts';

const noBytes = Buffer.alloc(0);

/** Passes an interim reply (1xx) on, unless the reply itself has begun. */
export function passInterim(interim: InformationEvent, response: ServerResponse): void {
  if (response.headersSent || response.destroyed) return;
  const { statusCode, statusMessage, rawHeaders } = interim;
  if (statusCode === 100) return response.writeContinue();
  // `writeEarlyHints()` would refuse several links in one field, which is how it writes them itself.
  const raw = response as ServerResponse & { _writeRaw(bytes: Buffer): void };
  raw._writeRaw(headOf(`HTTP/1.1 ${statusCode} ${statusMessage}`, rawHeaders));
}

/**
 * Answers with a claimant's reply, as a stream. One that breaks off destroys the client's connection, so that it looks
 * truncated there, too.
 */
export function passReply(reply: IncomingMessage, response: ServerResponse): void {
  const { statusCode = 502, statusMessage = '' } = reply;
  const fields = replyFields(reply.rawHeaders);
  response.sendDate = false; // the claimant's own is among the fields, or its app wants none
  if (isUntouched(response)) {
    response.writeHead(statusCode, statusMessage, fields);
  } else {
    // Where a reply has ever had a field, Node keeps only the last of repeated fields in a raw list.
    for (const name of response.getHeaderNames()) if (name !== 'connection') response.removeHeader(name);
    for (const [name, value] of pairsOf(fields)) response.appendHeader(name, value);
    response.writeHead(statusCode, statusMessage);
  }

  // Before the pipe's own listener, which ends the reply.
  reply.once('end', () => response.addTrailers(pairsOf(reply.rawTrailers)));
  reply.on('error', () => response.destroy());
  reply.pipe(response);
  const hasNoBody = response.req.method === 'HEAD' || statusCode === 204 || statusCode === 304;
  if (!hasNoBody) flushHead(response);
}

/** Whether nothing can have set a field on the reply yet. */
function isUntouched(response: ServerResponse): boolean {
  const { originalUrl } = response.req as { originalUrl?: string }; // as Express and Connect set it
  return originalUrl === undefined && response.getHeaderNames().length === 0;
}

/** Sends a head, and what is written in the same tick along with it. (Node's `flushHeaders()` sends it in UTF-8.) */
export function flushHead(message: ClientRequest | ServerResponse): void {
  message.write(noBytes);
}

/** A head in bytes. */
export function headOf(startLine: string, fields: RawHeaders): Buffer {
  const lines = pairsOf(fields).map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.from(`${startLine}\r\n${lines.join('')}\r\n`, 'latin1');
}
