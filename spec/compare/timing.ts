import { connect, type Socket } from 'node:net';
import { Caller } from '../../examples/caller/caller.ts';
import { measured, type Measured } from './statistics.ts';

/** A call that was timed. */
interface TimedCall {
  readonly milliseconds: number;
  readonly isForwarded: boolean;
}

/** The tool calls of sessions, as bytes. */
export interface Target {
  readonly port: number;
  /** One request for each session. */
  readonly requests: readonly Buffer[];
}

/** Calls at once, where it is not one after another. */
export const manyConnections = 32;

/** Opens sessions, of which each connection then has its own. */
export async function openTarget(url: string, signal: AbortSignal): Promise<Target> {
  const requests = await Promise.all(
    Array.from({ length: manyConnections }, async () => {
      const caller = new Caller(url, { signal });
      await caller.post('/seed_session', { initial_count: 0 });
      return toolCall(caller.jar.header ?? '');
    }),
  );
  return { port: Number(new URL(url).port), requests };
}

function toolCall(cookies: string): Buffer {
  const body = JSON.stringify({ count: 1 });
  const head = [
    'POST /increment_counter HTTP/1.1',
    'Host: localhost',
    `Cookie: ${cookies}`,
    'Content-Type: application/json',
    `Content-Length: ${body.length}`,
  ];
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`);
}

/** What one round measured of one target. */
export interface Round {
  readonly one: Measured;
  readonly many: Measured;
  /** How long each call took at concurrency 1. */
  readonly calls: readonly TimedCall[];
}

const slices = 12;
const sliceMilliseconds = 50;
const loadMilliseconds = 800;

/**
 * Measures one round of all targets in turns. What is measured at concurrency 1 is taken in short slices, one target after another,
 * so that whatever else the machine does falls on all of them; each slice has a connection and a session of its own.
 */
export async function measureRound(targets: readonly Target[], signal: AbortSignal): Promise<Round[]> {
  const calls = targets.map(() => [] as TimedCall[]);
  for (let slice = 0; slice < slices; slice++) {
    for (const [index, target] of targets.entries()) {
      signal.throwIfAborted();
      calls[index]?.push(...(await repeat(target, slice, sliceMilliseconds)));
    }
  }
  const rounds: Round[] = [];
  for (const [index, target] of targets.entries()) {
    signal.throwIfAborted();
    const one = calls[index] ?? [];
    const inAll = one.reduce((sum, { milliseconds }) => sum + milliseconds, 0);
    rounds.push({
      one: measured(millisecondsOf(one), inAll / 1_000),
      many: await measureLoad(target),
      calls: one,
    });
  }
  return rounds;
}

const millisecondsOf = (calls: readonly TimedCall[]): number[] => calls.map(({ milliseconds }) => milliseconds);

async function measureLoad(target: Target): Promise<Measured> {
  const begin = performance.now();
  const calls = await Promise.all(target.requests.map((_, session) => repeat(target, session, loadMilliseconds)));
  return measured(millisecondsOf(calls.flat()), (performance.now() - begin) / 1_000);
}

/** Calls a tool over and over on one connection, as a session. */
async function repeat(target: Target, session: number, milliseconds: number): Promise<TimedCall[]> {
  const request = target.requests[session % target.requests.length];
  if (request === undefined) return [];
  const connection = new CallConnection(target.port);
  const calls: TimedCall[] = [];
  try {
    await connection.call(request); // opens the connection
    const end = performance.now() + milliseconds;
    do calls.push(await connection.call(request));
    while (performance.now() < end);
  } finally {
    connection.destroy();
  }
  return calls;
}

/** Sends requests one after another on a connection, and on a new one where the server has ended it. */
class CallConnection {
  readonly #port: number;
  #socket: Socket | undefined;

  constructor(port: number) {
    this.#port = port;
  }

  /** @throws Error for a reply other than 200, and if there is none */
  async call(request: Buffer): Promise<TimedCall> {
    const begin = performance.now();
    const socket = (this.#socket ??= connect({ port: this.#port, host: '127.0.0.1', noDelay: true }));
    const head = await new Promise<string>((resolve, reject) => {
      let text = '';
      const onData = (piece: Buffer): void => {
        text += piece.toString('latin1');
        const end = text.indexOf('\r\n\r\n');
        if (end === -1) return;
        const length = /\r\ncontent-length: *(\d+)/i.exec(text)?.[1];
        if (length === undefined) reject(new Error(`A reply of no length: ${text}`));
        else if (text.length >= end + 4 + Number(length)) settle(() => resolve(text.slice(0, end)));
      };
      const onClose = (): void => settle(() => reject(new Error('The connection was closed before the reply.')));
      const onError = (error: Error): void => settle(() => reject(error));
      const settle = (outcome: () => void): void => {
        socket.off('data', onData).off('close', onClose).off('error', onError);
        outcome();
      };
      socket.on('data', onData).on('close', onClose).on('error', onError);
      socket.write(request);
    });
    const milliseconds = performance.now() - begin;
    if (!head.startsWith('HTTP/1.1 200 ')) throw new Error(`A tool call was answered: ${head}`);
    if (/\r\nconnection: *close/i.test(head)) this.destroy();
    return { milliseconds, isForwarded: /\r\nx-served-by: .*forwarded/i.test(head) };
  }

  destroy(): void {
    this.#socket?.on('error', () => undefined).destroy();
    this.#socket = undefined;
  }
}
