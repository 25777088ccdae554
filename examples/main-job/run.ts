import { Agent } from 'node:http';
import { setTimeout as wait } from 'node:timers/promises';
import { startCounterServer, type CounterServer } from './counter-server.ts';
import { runEpisode } from './episode.ts';

export interface RunOptions {
  readonly name: string;
  readonly workers: number;
  readonly routed: boolean;
  readonly episodes: number;
  /** Told after each episode how many have ended. */
  readonly onProgress?: (ended: number) => void;
  readonly signal: AbortSignal;
}

/** What came of the episodes of one run. */
export interface RunResult {
  readonly name: string;
  /** Episodes that scored 1.0, and 0.0. */
  readonly reward1: number;
  readonly reward0: number;
  /** Requests after the seeds that were forwarded to another worker, and that were served where they arrived. */
  readonly forwarded: number;
  readonly local: number;
  /** Sessions that were still claimed when they should not have been any longer. */
  readonly claimsLeft: number;
  /** How long the episodes took. */
  readonly seconds: number;
  /** Why the first episode that broke off did. */
  readonly problem?: string;
}

/** How long sessions are remembered after their last request, and how long to wait for the claims to go after that. */
const windowSeconds = 2;
const graceSeconds = 5;
/** Connections at once, of all episodes: fewer than a listening socket lets wait. */
const mostConnections = 256;

/**
 * Runs all episodes at the same time, each request on a new connection, against a server of its own.
 *
 * @throws Error if the server does not start, and the signal's reason if it is aborted. The server is stopped anyway.
 */
export async function runCounter(options: RunOptions): Promise<RunResult> {
  const { name, workers, routed, episodes, onProgress, signal } = options;
  signal.throwIfAborted();
  const server = await startCounterServer({ workers, routed, windowSeconds, signal });
  try {
    signal.throwIfAborted();
    const agent = new Agent({ keepAlive: false, maxSockets: mostConnections });
    const began = performance.now();
    let ended = 0;
    const results = await Promise.all(
      Array.from({ length: episodes }, async (_, initialCount) => {
        const result = await runEpisode({ url: server.url, initialCount, agent, signal });
        onProgress?.(++ended);
        return result;
      }),
    );
    const seconds = (performance.now() - began) / 1_000;
    signal.throwIfAborted();
    const reward1 = results.filter(({ reward }) => reward === 1).length;
    const problem = results.find((result) => result.problem !== undefined)?.problem;
    return {
      name,
      reward1,
      reward0: episodes - reward1,
      forwarded: sum(results.map(({ forwarded }) => forwarded)),
      local: sum(results.map(({ local }) => local)),
      claimsLeft: await claimsLeft(server, signal),
      seconds,
      ...(problem !== undefined && { problem }),
    };
  } finally {
    await server.stop();
  }
}

/** Waits until no session is claimed, or the window and some grace are over. Returns how many are claimed then. */
async function claimsLeft(server: CounterServer, signal: AbortSignal): Promise<number> {
  const end = performance.now() + (windowSeconds + graceSeconds) * 1_000;
  for (;;) {
    const claims = await server.claims();
    if (claims === 0 || performance.now() > end) return claims;
    await wait(50, undefined, { signal });
  }
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
