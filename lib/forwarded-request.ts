import { AsyncResource } from 'node:async_hooks';
import { EventEmitter } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ClaimantConnection, ClaimantConnections, ConnectionUser } from './claimant-connections.ts';
import { chunkEnd, chunkStart, lastChunk } from './chunks.ts';
import { endsConnection } from './headers.ts';
import { onReplyClosed } from './reply-end.ts';
import type { RequestHead } from './request-head.ts';
import { ReplyReader } from './reply-reader.ts';
import { beginReply, passBytes, passInterim, passLastBytes } from './replies.ts';

const noBytes = Buffer.alloc(0);

/** What is written at once and has no more bytes than this, its reader reads whole or not at all. */
const atomicBytes = 16_384;

/**
 * One request on its way to a claimant, and its reply on the way back. What the connection calls runs in the asynchronous
 * context of the request, and not of the one for which the connection was made.
 */
export class ForwardedRequest extends AsyncResource implements ConnectionUser {
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #connections: ClaimantConnections;
  readonly #onFailure: (error: Error) => void;
  readonly #reply: ReplyReader;
  #connection: ClaimantConnection;
  /** The head, until it is written. */
  #head: string;
  /** What was written first, where it can be written again: nothing else was, and nothing has come back. */
  #first: string | undefined;
  /** What waits until the system has taken what was written first; undefined while nothing has to wait. */
  #waiting: (Uint8Array | string)[] | undefined;
  /** Bytes of the body that are still to be sent; undefined where it goes in chunks. */
  #left: number | undefined;
  #isReusable = true;
  #isAwaitingClient = false;
  #isSent = false;
  #isAnswered = false;
  #isOver = false;
  #leave: (() => void) | undefined;

  /**
   * Sends a request, and answers it with what comes back.
   *
   * @param path the claimant's private socket
   * @param onFailure is called where the reply itself has not begun
   */
  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    { text, framing }: RequestHead,
    connections: ClaimantConnections,
    path: string,
    onFailure: (error: Error) => void,
  ) {
    super('ForwardedRequest', { requireManualDestroy: true });
    this.#request = request;
    this.#response = response;
    this.#connections = connections;
    this.#onFailure = onFailure;
    this.#head = text;
    this.#reply = new ReplyReader(request.method, (interim) => passInterim(interim, response));
    this.#connection = connections.take(path);
    this.#connection.use(this);
    onReplyClosed(request, response, () => {
      if (!this.#isAnswered) this.#abandon();
    });
    this.#left = framing === 'chunked' ? undefined : framing;
    if (framing === 0) this.#writeFirst(text, true);
    else this.#sendBody();
  }

  received(bytes: Buffer): boolean {
    return !this.#isOver && this.runInAsyncScope(this.#pass, this, bytes);
  }

  drained(): void {
    this.#request.resume();
  }

  closed(error: Error | undefined): void {
    if (!this.#isOver) this.runInAsyncScope(this.#end, this, error);
  }

  #pass(bytes: Buffer): boolean {
    this.#first = undefined;
    const reply = this.#reply;
    const isBegun = reply.head !== undefined;
    try {
      reply.read(bytes);
    } catch (error) {
      this.#fail(error as Error);
      return false;
    }
    const { head, isComplete, bodyStart, bodyEnd } = reply;
    if (head === undefined) return true;
    const response = this.#response;
    if (!isBegun) {
      if (response.headersSent) return this.#abandon(); // by something ahead of the router
      beginReply(response, head);
    }
    const body = bytes.subarray(bodyStart, bodyEnd);
    if (!isComplete) return passBytes(response, body) || this.#awaitClient();
    if (!reply.isReusable) this.#isReusable = false;
    this.#answered();
    passLastBytes(response, body, !isBegun);
    return true;
  }

  #end(error: Error | undefined): void {
    if (this.#reply.head?.endsWithConnection && error === undefined) {
      this.#isOver = true;
      this.#isAnswered = true;
      this.#request.resume();
      passLastBytes(this.#response, noBytes, false);
    } else if (this.#first !== undefined && wasNeverRead(error)) {
      this.#sendAgain(this.#first);
    } else {
      this.#fail(error ?? new Error('The claimant closed the connection before its reply was complete.'));
    }
  }

  /**
   * Writes the head, and what goes with it.
   *
   * @param isAll whether nothing follows
   * @returns as {@link #write} does
   */
  #writeFirst(text: string, isAll: boolean): boolean {
    this.#head = '';
    this.#isSent ||= isAll;
    // A connection that was kept may have been closed at the other end just now.
    const isSafe = !this.#connection.isReused || text.length > atomicBytes;
    if (!isSafe) this.#first = text;
    if (isSafe || isAll) return this.#connection.write(text);
    this.#waiting = [];
    this.#connection.write(text, () => this.#sendWaiting());
    return false;
  }

  /** @returns false if no more is to be written for now; `drained()` says when */
  #write(...pieces: (Uint8Array | string)[]): boolean {
    if (this.#waiting !== undefined) return this.#waiting.push(...pieces) < 0;
    this.#first = undefined;
    return this.#connection.writeAll(pieces);
  }

  #sendWaiting(): void {
    const pieces = this.#waiting ?? [];
    this.#waiting = undefined;
    if (pieces.length === 0 || this.#write(...pieces)) this.drained();
  }

  #sendAgain(text: string): void {
    this.#first = undefined;
    this.#connection = this.#connections.open(this.#connection.path);
    this.#connection.use(this);
    this.#connection.write(text);
    this.#sendWaiting();
  }

  #sendBody(): void {
    const request = this.#request;
    request.on('data', (chunk: Buffer | string) => {
      if (this.#isOver) return; // so that the client's connection can be used again
      const bytes = typeof chunk === 'string' ? Buffer.from(chunk, request.readableEncoding ?? 'utf8') : chunk;
      if (!this.#sendChunk(bytes)) request.pause();
    });
    request.once('end', () => this.#endBody());
    request.resume();
    // What came along with the head has been read by then. The app may answer before there is more.
    process.nextTick(() => {
      if (this.#head !== '' && !this.#isOver) this.#writeFirst(this.#head, false);
    });
  }

  #sendChunk(bytes: Buffer): boolean {
    const [before, after] = this.#left === undefined ? [chunkStart(bytes), chunkEnd] : ['', ''];
    const isAll = this.#left !== undefined && (this.#left -= bytes.length) <= 0;
    const head = this.#head;
    let takesMore: boolean;
    if (head !== '' && head.length + bytes.length < atomicBytes) {
      takesMore = this.#writeFirst(head + before + bytes.toString('latin1') + after, isAll);
    } else {
      if (head !== '') this.#writeFirst(head, false);
      takesMore = before === '' ? this.#write(bytes) : this.#write(before, bytes, after);
    }
    if (isAll) this.#sent();
    return takesMore;
  }

  #endBody(): void {
    if (this.#isOver || this.#isSent) return;
    if (this.#left === undefined) {
      const last = lastChunk(this.#request.rawTrailers);
      if (last === undefined) return this.#fail(new Error('A trailer has a value that cannot be passed on.'));
      // Node's parser takes some of them for fields of the head, and the connection for one that ends.
      if (endsConnection(this.#request.rawTrailers)) this.#isReusable = false;
      if (this.#head === '') this.#write(last);
      else this.#writeFirst(this.#head + last, true);
    }
    this.#sent();
  }

  #sent(): void {
    this.#isSent = true;
    if (this.#leave !== undefined) this.#request.socket.off('close', this.#leave);
    if (this.#isAnswered) this.#release();
  }

  #answered(): void {
    this.#isAnswered = true;
    if (this.#isSent) return this.#release();
    // The app may still read the body. From now on, only the socket says whether the client has left.
    this.#leave = () => this.#abandon();
    this.#request.socket.once('close', this.#leave);
  }

  #release(): void {
    this.#isOver = true;
    if (this.#isReusable) this.#connections.release(this.#connection);
    else this.#connection.destroy();
  }

  /** Waits until the client takes more. (What wraps a reply ahead of the router may also take its listeners.) */
  #awaitClient(): false {
    if (this.#isAwaitingClient) return false;
    this.#isAwaitingClient = true;
    EventEmitter.prototype.on.call(this.#response, 'drain', () => {
      if (!this.#isOver) this.#connection.resume(); // else it may be another request's
    });
    return false;
  }

  #abandon(): false {
    this.#isOver = true;
    this.#request.resume();
    this.#connection.destroy();
    return false;
  }

  #fail(error: Error): void {
    this.#abandon();
    if (this.#isAnswered) return;
    // A reply that was cut off is to look cut off.
    if (this.#response.headersSent) this.#response.destroy();
    else this.#onFailure(error);
  }
}

/**
 * Whether a claimant has closed a connection without having read the one thing that was written to it. Then the write
 * failed, or, on Linux, the close says that something was left unread.
 */
function wasNeverRead(error: NodeJS.ErrnoException | undefined): boolean {
  return error?.code === 'EPIPE' || (error?.code === 'ECONNRESET' && process.platform === 'linux');
}
