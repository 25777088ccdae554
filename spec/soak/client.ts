import { Agent, request, type IncomingHttpHeaders } from 'node:http';
import { connect, type Socket } from 'node:net';

/** How an exchange went, from its first moment to its last, in milliseconds of `performance.now()`. */
export type Outcome = { readonly begin: number; readonly end: number } & (
  | { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: string }
  /** There is no whole reply: the connection ended, or this client ended it itself. */
  | { readonly status: undefined; readonly reason: string; readonly isOwnDoing: boolean }
);

export interface Exchange {
  readonly method?: 'GET' | 'POST';
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly json?: unknown;
  readonly agent?: Agent | undefined;
  /** When to leave, with or without a reply. Default: never. */
  readonly leaveAfterMs?: number | undefined;
  /** How long the body is said to be, of which nothing is sent. */
  readonly promisedBytes?: number;
}

/** After so long without a reply, the server has forgotten the client. */
const forgottenMs = 60_000;

/** Sends a request, on a new connection unless there is an agent. Does not throw. */
export function exchange(port: number, sent: Exchange): Promise<Outcome> {
  const { method = 'POST', path, headers = {}, json, agent, leaveAfterMs, promisedBytes } = sent;
  const begin = performance.now();
  return new Promise((resolve) => {
    let isOwnDoing = false;
    const text = json === undefined ? '' : JSON.stringify(json);
    const type = json === undefined ? {} : { 'content-type': 'application/json' };
    const outgoing = request({
      port,
      host: '127.0.0.1',
      method,
      path,
      agent: agent ?? false,
      headers: { 'content-length': promisedBytes ?? Buffer.byteLength(text), ...type, ...headers },
    });
    const timers = [
      setTimeout(() => outgoing.destroy(new Error('no reply in a minute')), forgottenMs),
      ...(leaveAfterMs === undefined
        ? []
        : [setTimeout(() => ((isOwnDoing = true), outgoing.destroy(new Error('left'))), leaveAfterMs)]),
    ];
    const settle = (outcome: { status: number; headers: IncomingHttpHeaders; body: string } | { reason: string }) => {
      for (const timer of timers) clearTimeout(timer);
      const times = { begin, end: performance.now() };
      if ('reason' in outcome) resolve({ ...times, status: undefined, ...outcome, isOwnDoing });
      else resolve({ ...times, ...outcome });
    };
    outgoing.on('error', ({ message }) => settle({ reason: message }));
    outgoing.on('response', (incoming) => {
      let body = '';
      incoming.setEncoding('utf8').on('data', (piece: string) => (body += piece));
      incoming.on('error', ({ message }) => settle({ reason: `${message} after ${body.length} characters` }));
      incoming.on('end', () => settle({ status: incoming.statusCode ?? 0, headers: incoming.headers, body }));
    });
    if (promisedBytes === undefined) outgoing.end(text);
    else outgoing.flushHeaders();
  });
}

/** Sends bytes as they are and closes its side. Resolves with what came back, once the other side has closed too. */
export function talk(port: number, bytes: Buffer, halfClosesAfterMs: number): Promise<string> {
  return new Promise((resolve) => {
    const socket: Socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    let received = '';
    // Some of it is a request that goes on: the server waits, as it should, and this client goes.
    const timer = setTimeout(() => socket.destroy(), 2_000);
    socket.setEncoding('latin1').on('data', (piece: string) => (received += piece));
    socket.on('error', () => socket.destroy());
    socket.on('end', () => socket.end());
    socket.on('close', () => (clearTimeout(timer), resolve(received)));
    socket.write(bytes);
    setTimeout(() => socket.end(), halfClosesAfterMs);
  });
}

/**
 * Upgrades a connection and lets each of some lines come back.
 *
 * @returns the worker that spoke, and whether every line came back right; a status without an upgrade, if one came
 */
export function echo(
  port: number,
  cookie: string,
  lines: readonly string[],
): Promise<{ begin: number; end: number; worker?: number; isRight: boolean; received: string }> {
  const begin = performance.now();
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    let received = '';
    let sent = 0;
    const timer = setTimeout(() => socket.destroy(), forgottenMs);
    socket.on('error', () => socket.destroy());
    socket.setEncoding('latin1').on('data', (piece: string) => {
      received += piece;
      const [head, rest] = received.split('\r\n\r\n', 2);
      if (rest === undefined || !head?.startsWith('HTTP/1.1 101 ')) return;
      // The worker's own line, and those that have come back.
      if (rest.split('\n').length - 2 < sent) return;
      const next = lines[sent++];
      if (next === undefined) socket.end();
      else socket.write(`${next}\n`);
    });
    socket.on('close', () => {
      clearTimeout(timer);
      const [worker, ...echoed] = received.split('\r\n\r\n', 2)[1]?.split('\n') ?? [];
      const isRight = echoed.join('\n') === [...lines, ''].join('\n');
      const end = performance.now();
      resolve({ begin, end, ...(worker && { worker: Number(worker) }), isRight, received });
    });
    const fields = ['Host: soak', 'Connection: Upgrade', 'Upgrade: echo', `Cookie: ${cookie}`];
    socket.write(`GET /echo HTTP/1.1\r\n${fields.join('\r\n')}\r\n\r\n`);
  });
}
