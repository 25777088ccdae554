import express from 'express';
import { IncomingMessage, ServerResponse, type IncomingHttpHeaders } from 'node:http';
import { Socket } from 'node:net';
import { SessionRoutingError } from './errors.ts';
import { hasBody } from './headers.ts';

/**
 * Reads a request's body whole and puts it back, so that whatever the app mounts next (a parser, a pipe, an async
 * iterator) sees the same bytes, trailers and end. A request that declares no body is left untouched. Memory: the body
 * once, and briefly twice while its chunks are joined.
 *
 * An interim reply that the client waits for (`Expect: 100-continue`) is the caller's to send first.
 *
 * @param limit most bytes that the body may have, as it was sent
 * @returns the body, which the app will see too and nobody may write to; undefined if the client left,
 *   or something ahead of the router answered, before its end
 * @throws SessionRoutingError `BODY_TOO_LARGE`, once the rest of the body has been discarded as Express's parsers do it:
 *   so a client that reads no reply before it has sent everything gets it, and the connection can be used again.
 *   `BODY_ALREADY_READ` if something ahead of the router has read from the body or has begun to.
 */
export async function readBody(request: IncomingMessage, limit: number): Promise<Buffer | undefined> {
  if (!hasBody(request)) return Buffer.alloc(0);
  if (hasReader(request)) throw alreadyRead();
  if (request.destroyed) return undefined;
  if (request.complete) return readBuffered(request, limit);
  return readArriving(request, limit);
}

/** Whether somebody has read from the body, or is about to: what is put back would reach them and not the app. */
function hasReader(request: IncomingMessage): boolean {
  return (
    request.readableDidRead ||
    request.readableEnded ||
    request.readableFlowing === true ||
    request.readableEncoding !== null ||
    request.listenerCount('data') > 0 ||
    request.listenerCount('readable') > 0
  );
}

/** Reads a body that arrived before the router ran, behind an awaited middleware for instance. */
function readBuffered(request: IncomingMessage, limit: number): Buffer {
  if (request.readableLength > limit) throw tooLarge(limit);
  // Reading nothing from a stream at its end would announce the end before the app listens.
  if (request.readableLength === 0) return Buffer.alloc(0);
  const bytes = takeBuffered(request);
  // In the same tick, or Node would announce the end of a body that still has to be read.
  request.unshift(bytes);
  return bytes;
}

/** Takes all that is buffered. (Asked for no length, Node 26 gives a part of it.) */
function takeBuffered(request: IncomingMessage): Buffer {
  return request.read(request.readableLength) as Buffer;
}

/** Reads a body that is still arriving, by holding what the HTTP parser pushes into the request. */
function readArriving(request: IncomingMessage, limit: number): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    const { push } = request;
    const chunks: Buffer[] = [];
    let length = 0;
    let isTooLarge = Number(request.headers['content-length'] ?? 0) > limit;

    const hold = (chunk: Buffer): void => {
      length += chunk.length;
      isTooLarge ||= length > limit;
      if (isTooLarge) chunks.length = 0;
      else chunks.push(chunk);
    };
    const release = (): void => {
      request.push = push;
      request.off('close', leave);
    };
    const leave = (): void => {
      release();
      resolve(undefined);
    };

    request.on('close', leave);
    request.push = (chunk: Buffer | null): boolean => {
      if (chunk !== null) {
        hold(chunk);
        return true;
      }
      release();
      const isThrownAway = request.readableFlowing === true && request.listenerCount('data') === 0;
      const bytes = chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
      if (bytes.length > 0) request.push(bytes);
      request.push(null);
      // Once a reply has been sent, Node throws away what still arrives, so these bytes may be a part only.
      if (isThrownAway) resolve(undefined);
      else if (isTooLarge) reject(tooLarge(limit));
      else resolve(bytes);
      return false;
    };
    // Reading what is buffered also starts a socket again that was stopped because of it.
    if (request.readableLength > 0) hold(takeBuffered(request));
  });
}

function tooLarge(limit: number): SessionRoutingError {
  const detail = `The body has more than the ${limit} bytes that are allowed, as sent or once inflated.`;
  return new SessionRoutingError('BODY_TOO_LARGE', detail);
}

function alreadyRead(): SessionRoutingError {
  const detail =
    'Something read the body before the session router could. ' +
    'Mount sessionRouting() ahead of body parsers and of whatever else reads bodies.';
  return new SessionRoutingError('BODY_ALREADY_READ', detail);
}

/** Reads the JSON of a body, given the request's header fields: undefined where it holds none. */
export type JsonBodyReader = (bytes: Buffer, headers: IncomingHttpHeaders) => Promise<unknown>;

/**
 * Makes the function that reads a body's JSON, decoded as `express.json()` decodes it (compression, charset, byte order
 * mark), but whatever the content type, since an app may parse any as JSON. A body that `express.json()` refuses holds
 * none: it is the app that answers it.
 *
 * @param limit most bytes that the body may have after inflating
 * @throws (the function made) SessionRoutingError `BODY_TOO_LARGE` for a body that inflates to more than `limit` bytes
 */
export function jsonBodyReader(limit: number): JsonBodyReader {
  const parseJson = express.json({ type: () => true, strict: false, limit });
  let inflating: Promise<unknown> = Promise.resolve();

  return async function readJsonBody(bytes, headers) {
    if (bytes.length === 0) return undefined;
    if (headers['content-encoding'] === undefined) return parse(bytes, headers);
    // One after the other: a few kilobytes may inflate to `limit`, and a client may send many of them at once.
    const parsed = inflating.then(() => parse(bytes, headers));
    inflating = parsed.catch(() => undefined);
    return parsed;
  };

  async function parse(bytes: Buffer, headers: IncomingHttpHeaders): Promise<unknown> {
    const request: IncomingMessage & { body?: unknown } = replayRequest(bytes, headers);
    try {
      await new Promise<void>((resolve, reject) => {
        parseJson(request, new ServerResponse(request), (error) => (error ? reject(error) : resolve()));
      });
    } catch (error) {
      if ((error as { status?: unknown }).status === 413) throw tooLarge(limit);
      return undefined;
    }
    return request.body;
  }
}

/**
 * A request that was never on a socket, for a parser to read. It has to be a true one: at a broken compressed body
 * the parser waits for the end of the request, and tells only of Node's own requests that it has passed.
 */
function replayRequest(bytes: Buffer, headers: IncomingHttpHeaders): IncomingMessage {
  const request = new IncomingMessage(new Socket());
  for (const name of ['content-type', 'content-encoding'] as const) {
    if (headers[name] !== undefined) request.headers[name] = headers[name];
  }
  request.headers['content-length'] = String(bytes.length);
  request.push(bytes);
  request.push(null);
  request.complete = true;
  return request;
}
