import { fieldLines, type RawHeaders } from './headers.ts';

/** A body in chunks (RFC 9112, section 7.1): what stands ahead of each, and behind it. */
export const chunkStart = (bytes: Uint8Array): string => `${bytes.length.toString(16)}\r\n`;
export const chunkEnd = '\r\n';

/** The end of a body in chunks, with its trailers; undefined where one of them cannot be written. */
export function lastChunk(rawTrailers: RawHeaders): string | undefined {
  const trailers = fieldLines(rawTrailers);
  return trailers === undefined ? undefined : `0\r\n${trailers}\r\n`;
}

/** Whether a field says that a body is in chunks, by the pattern with which Node looks for that in what it writes. */
export function saysChunked(value: string): boolean {
  return /(?:^|\W)chunked(?:$|\W)/i.test(value);
}
