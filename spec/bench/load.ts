import { connect, type Socket } from 'node:net';

/**
 * Sends one request over and over on a number of connections, each as soon as the reply to the one before is complete.
 * Works in bytes, so that it is the server that is busy and not the client. Every reply must have the length of the first.
 *
 * @returns replies per second
 */
export async function load(port: number, request: string, connections: number, seconds: number): Promise<number> {
  const bytes = Buffer.from(request.replaceAll('\n', '\r\n'));
  const replyLength = await lengthOfReply(port, bytes);
  let replies = 0;
  const begin = performance.now();
  const end = begin + seconds * 1000;
  await Promise.all(
    Array.from({ length: connections }, async () => {
      const socket = connect(port, '127.0.0.1');
      await new Promise<void>((resolve, reject) => {
        let missing = replyLength;
        socket.on('error', reject);
        socket.on('close', () => reject(new Error('the server closed the connection')));
        socket.on('data', (chunk) => {
          missing -= chunk.length;
          if (missing > 0) return;
          if (missing < 0) return reject(new Error('a reply is longer than the first'));
          replies++;
          missing = replyLength;
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
  const replyLength = await lengthOfReply(port, bytes);
  const socket = connect(port, '127.0.0.1').setNoDelay();
  const taken: number[] = [];
  const end = performance.now() + seconds * 1000;
  let began = performance.now();
  let missing = replyLength;
  socket.write(bytes);
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    missing -= chunk.length;
    if (missing > 0) continue;
    const now = performance.now();
    taken.push((now - began) * 1000);
    if (now >= end) break;
    missing = replyLength;
    began = performance.now();
    socket.write(bytes);
  }
  return taken;
}

async function lengthOfReply(port: number, request: Buffer): Promise<number> {
  const socket: Socket = connect(port, '127.0.0.1');
  socket.write(request);
  let head = Buffer.alloc(0);
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf('\r\n\r\n');
    const length = /^content-length: *(\d+)/im.exec(head.subarray(0, end).toString('latin1'))?.[1];
    if (end > 0 && !head.toString('latin1').startsWith('HTTP/1.1 200 ')) throw new Error(head.toString('latin1'));
    if (end > 0 && length === undefined) throw new Error(`no Content-Length: ${head.toString('latin1')}`);
    if (end > 0 && head.length >= end + 4 + Number(length)) break;
  }
  return head.length;
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? NaN;
}
