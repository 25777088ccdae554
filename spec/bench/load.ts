import { connect, type Socket } from 'node:net';

/**
 * Sends one request over and over on a number of connections, each as soon as the reply to the one before is complete.
 * Works in bytes, so that it is the server that is busy and not the client. A reply is complete when it has the length
 * of the first, or, in chunks, with the last chunk.
 *
 * @returns replies per second
 */
export async function load(port: number, request: string, connections: number, seconds: number): Promise<number> {
  const bytes = Buffer.from(request.replaceAll('\n', '\r\n'));
  const length = await lengthOfReply(port, bytes);
  let replies = 0;
  const begin = performance.now();
  const end = begin + seconds * 1000;
  await Promise.all(
    Array.from({ length: connections }, async () => {
      const socket = connect(port, '127.0.0.1');
      await new Promise<void>((resolve, reject) => {
        const isComplete = replyCounter(length);
        socket.on('error', reject);
        socket.on('close', () => reject(new Error('the server closed the connection')));
        socket.on('data', (chunk) => {
          if (!isComplete(chunk)) return;
          replies++;
          if (performance.now() >= end) resolve();
          else socket.write(bytes);
        });
        socket.write(bytes);
      });
      socket.destroy();
    }),
  );
  return replies / ((performance.now() - begin) / 1000);
}

/** Sends one request over and over on one connection. Returns how long each reply took, in microseconds. */
export async function latencies(port: number, request: string, seconds: number): Promise<number[]> {
  const bytes = Buffer.from(request.replaceAll('\n', '\r\n'));
  const isComplete = replyCounter(await lengthOfReply(port, bytes));
  const socket = connect(port, '127.0.0.1').setNoDelay();
  const taken: number[] = [];
  const end = performance.now() + seconds * 1000;
  let began = performance.now();
  socket.write(bytes);
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    if (!isComplete(chunk)) continue;
    const now = performance.now();
    taken.push((now - began) * 1000);
    if (now >= end) break;
    began = performance.now();
    socket.write(bytes);
  }
  return taken;
}

const lastChunk = '0\r\n\r\n';

/** The length of the whole reply; undefined for one in chunks, which proxies may cut as they like. */
async function lengthOfReply(port: number, request: Buffer): Promise<number | undefined> {
  const socket: Socket = connect(port, '127.0.0.1');
  socket.write(request);
  let bytes = Buffer.alloc(0);
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    bytes = Buffer.concat([bytes, chunk]);
    const end = bytes.indexOf('\r\n\r\n');
    if (end === -1) continue;
    const head = bytes.toString('latin1', 0, end);
    if (!head.startsWith('HTTP/1.1 200 ')) throw new Error(bytes.toString('latin1'));
    const length = /^content-length: *(\d+)/im.exec(head)?.[1];
    if (length === undefined && !/^transfer-encoding: chunked/im.test(head)) throw new Error(`of no length: ${head}`);
    if (
      length === undefined ? bytes.toString('latin1').endsWith(lastChunk) : bytes.length >= end + 4 + Number(length)
    ) {
      return length === undefined ? undefined : bytes.length;
    }
  }
  throw new Error('the server closed the connection');
}

/** Tells, of the pieces that come in on a connection, which ones complete a reply. */
function replyCounter(length: number | undefined): (piece: Buffer) => boolean {
  let missing = length ?? 0;
  let tail = '';
  return (piece) => {
    if (length === undefined) {
      tail = (tail + piece.toString('latin1', Math.max(0, piece.length - lastChunk.length))).slice(-lastChunk.length);
      return tail === lastChunk;
    }
    missing -= piece.length;
    if (missing < 0) throw new Error('a reply is longer than the first');
    if (missing > 0) return false;
    missing = length;
    return true;
  };
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? NaN;
}
