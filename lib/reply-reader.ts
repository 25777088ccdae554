import { saysChunked } from './chunks.ts';

/**
 * What a private socket puts ahead of a reply that its app ended before its head left, and else behind the reply, once
 * its app has ended it. Only then is the connection free for another request, and that only where the mark says so.
 */
export const endMarks = { kept: '+', closed: '-' } as const;

const keptByte = endMarks.kept.charCodeAt(0);
const closedByte = endMarks.closed.charCodeAt(0);

/** What the head of a reply says. */
export interface ReplyHead {
  /** The head as it came, with the empty line that ends it, a character a byte. */
  readonly text: string;
  readonly statusCode: number;
  readonly statusMessage: string;
  /** The value of `Connection`; undefined where there is none. */
  readonly connection: string | undefined;
  /** Whether the end of the connection is what ends the body. */
  readonly endsWithConnection: boolean;
}

/** As long as a line may be that says how long a chunk is, or has a trailer field. */
const maximumLineLength = 2 ** 20;

const statusLine = /^HTTP\/1\.[01] (\d{3})(?: ([^\r\n]*))?\r\n/;
const chunkSize = /^[\da-f]{1,13}(?=[\t\r ;])/i;

/** How the end of a body is told (RFC 9112, section 6.3). */
type Framing = 'length' | 'chunked' | 'connection';

/**
 * Finds where one reply ends in the bytes of a connection, and reads its head. The bytes themselves go to the client as
 * they are: whatever a head says beyond its framing, and however a body is cut into chunks, is between the app and its
 * client.
 *
 * It reads what a sibling's Node has written. What that would never write is an error.
 */
export class ReplyReader {
  /** The head, once it has come. */
  head: ReplyHead | undefined;
  /** Whether the whole reply has come, and its app has ended it. */
  isComplete = false;
  /** Where, in the bytes that were read last, those of the body begin and end. */
  bodyStart = 0;
  bodyEnd = 0;
  /** Whether the connection can be used again: its end is not under way, and nothing is behind the reply. */
  isReusable = false;

  readonly #isHead: boolean;
  readonly #fieldName = /[\w!#$%&'*+.^`|~-]+:/y;
  readonly #onInterim: (head: string) => void;
  #framing: Framing = 'connection';
  /** Of the body, or of a chunk: bytes that are still to come. */
  #left = 0;
  /** What has come of a head or a line. */
  #part = '';
  /** Whether all bytes have come, and only the mark is missing. */
  #awaitsMark = false;
  #isMarked = false;
  /** What the next line of a body in chunks is. */
  #line: 'size' | 'end' | 'trailer' = 'size';

  /**
   * @param method of the request: the reply to HEAD has no body
   * @param onInterim is given the head of each interim reply (1xx), as it came
   */
  constructor(method: string | undefined, onInterim: (head: string) => void) {
    this.#isHead = method === 'HEAD';
    this.#onInterim = onInterim;
  }

  /**
   * Reads on.
   *
   * @throws Error for what is no reply
   */
  read(bytes: Buffer): void {
    this.bodyStart = this.bodyEnd = 0;
    while (this.head === undefined) {
      if (!this.#readHead(bytes)) return;
    }
    if (!this.#awaitsMark) this.bodyEnd = this.#endOfBody(bytes, this.bodyStart);
    let end = this.bodyEnd;
    if (this.#awaitsMark && end < bytes.length) {
      if (!this.#takeMark(bytes[end++])) throw new Error(notAReply);
      this.isComplete = true;
    }
    if (end < bytes.length) this.isReusable = false;
  }

  /** @returns whether the byte is a mark */
  #takeMark(byte: number | undefined): boolean {
    if (byte !== keptByte && byte !== closedByte) return false;
    this.#isMarked = true;
    this.isReusable = byte === keptByte;
    return true;
  }

  /** All bytes of the reply have come. */
  #finish(): void {
    if (this.#isMarked) this.isComplete = true;
    else this.#awaitsMark = true;
  }

  /** Reads one head, from `bodyStart` on. Returns whether all of it was there. */
  #readHead(bytes: Buffer): boolean {
    if (this.#part === '' && !this.#isMarked && this.#takeMark(bytes[this.bodyStart])) this.bodyStart++;
    const start = this.bodyStart;
    if (start === bytes.length) return false;
    const next = this.#nextBehindHead(bytes, start);
    if (next === undefined) {
      this.#part += bytes.toString('latin1', start);
      if (!this.#part.startsWith('HTTP/1.'.slice(0, this.#part.length))) throw new Error(notAReply);
      this.bodyStart = this.bodyEnd = bytes.length;
      return false;
    }
    this.bodyStart = next;
    const text = this.#part + bytes.toString('latin1', start, this.bodyStart);
    this.#part = '';
    this.#takeHead(text);
    return true;
  }

  /** Where what follows a head begins; undefined where the empty line that ends the head has not come. */
  #nextBehindHead(bytes: Buffer, start: number): number | undefined {
    if (this.#part !== '') {
      // The empty line may come in parts.
      const seam = this.#part.slice(-3);
      const at = (seam + bytes.toString('latin1', start, start + 3)).indexOf('\r\n\r\n');
      if (at !== -1) return start + at + 4 - seam.length;
    }
    const at = bytes.indexOf('\r\n\r\n', start, 'latin1');
    return at === -1 ? undefined : at + 4;
  }

  #takeHead(text: string): void {
    const [line = '', status = '', statusMessage = ''] = statusLine.exec(text) ?? [];
    if (line === '' || text.includes('\0')) throw new Error(notAReply);
    const statusCode = Number(status);
    if (statusCode < 200 && !this.#isMarked) return this.#onInterim(text);
    let connection: string | undefined;
    let length: string | undefined;
    let codings: string | undefined;
    for (let at = line.length; at < text.length - 2;) {
      const end = text.indexOf('\r\n', at);
      this.#fieldName.lastIndex = at;
      if (!this.#fieldName.test(text)) throw new Error(notAReply);
      const colon = this.#fieldName.lastIndex - 1;
      switch (colon - at) {
        case 10:
          if (text.slice(at, colon).toLowerCase() === 'connection') connection = joined(connection, text, colon, end);
          break;
        case 14:
          if (text.slice(at, colon).toLowerCase() === 'content-length') length = joined(length, text, colon, end);
          break;
        case 17:
          if (text.slice(at, colon).toLowerCase() === 'transfer-encoding') codings = joined(codings, text, colon, end);
          break;
      }
      at = end + 2;
    }
    const hasNoBody = this.#isHead || statusCode < 200 || statusCode === 204 || statusCode === 304;
    if (hasNoBody) this.#framing = 'length';
    else if (codings !== undefined && saysChunked(codings)) this.#framing = 'chunked';
    else if (length !== undefined) {
      const [, bytes] = /^(\d{1,15})(?:, \1)*$/.exec(length) ?? [];
      if (bytes === undefined) throw new Error(notAReply);
      this.#framing = 'length';
      this.#left = Number(bytes);
    }
    const endsWithConnection = this.#framing === 'connection';
    this.head = { text, statusCode, statusMessage, connection, endsWithConnection };
  }

  #endOfBody(bytes: Buffer, start: number): number {
    if (this.#framing === 'chunked') return this.#endOfChunks(bytes, start);
    if (this.#framing === 'connection') return bytes.length;
    const taken = Math.min(this.#left, bytes.length - start);
    this.#left -= taken;
    if (this.#left === 0) this.#finish();
    return start + taken;
  }

  #endOfChunks(bytes: Buffer, start: number): number {
    let at = start;
    while (at < bytes.length) {
      if (this.#left > 0) {
        const taken = Math.min(this.#left, bytes.length - at);
        this.#left -= taken;
        at += taken;
        continue;
      }
      const end = bytes.indexOf(10, at);
      const next = end === -1 ? bytes.length : end + 1;
      this.#part += bytes.toString('latin1', at, next);
      at = next;
      if (this.#part.length > maximumLineLength) throw new Error(brokenChunks);
      if (end === -1) continue;
      const line = this.#part;
      this.#part = '';
      if (this.#takeLine(line)) return at;
    }
    return at;
  }

  /** Takes a line of a body in chunks. Returns whether it is the last. */
  #takeLine(line: string): boolean {
    if (!line.endsWith('\r\n')) throw new Error(brokenChunks);
    if (this.#line === 'size') {
      const [size] = chunkSize.exec(line) ?? [];
      if (size === undefined) throw new Error(brokenChunks);
      this.#left = Number.parseInt(size, 16);
      this.#line = this.#left === 0 ? 'trailer' : 'end';
    } else if (this.#line === 'end') {
      if (line !== '\r\n') throw new Error(brokenChunks);
      this.#line = 'size';
    } else if (line === '\r\n') {
      this.#finish();
      return true;
    }
    return false;
  }
}

const notAReply = 'What came back is not an HTTP reply.';
const brokenChunks = 'A body in chunks is not one.';

function valueAt(text: string, colon: number, end: number): string {
  return text.slice(colon + 1, end).trim();
}

function joined(value: string | undefined, text: string, colon: number, end: number): string {
  const another = valueAt(text, colon, end);
  return value === undefined ? another : `${value}, ${another}`;
}
