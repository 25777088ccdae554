import { setTimeout as wait } from 'node:timers/promises';
import { runEpisodes as runAll } from 'express-session-routing/client';
import type { StartServer } from '../episode/servers.ts';
import type { EpisodeResult } from './episode.ts';
import { startServer, type ServerProcess } from '../processes/server-process.ts';

export interface RunOptions {
  readonly name: string;
  readonly episodes: number;
  /** Starts the servers that the run needs. Resolves to what runs an episode, given its number. */
  readonly prepare: (start: StartServer, signal: AbortSignal) => Promise<(number: number) => Promise<EpisodeResult>>;
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

/**
 * Runs all episodes at the same time, against servers of their own.
 *
 * @throws Error if a server does not start, and the signal's reason if it is aborted. The servers are stopped anyway.
 */
export async function runEpisodes({ name, episodes, prepare, onProgress, signal }: RunOptions): Promise<RunResult> {
  signal.throwIfAborted();
  const servers: ServerProcess[] = [];
  const start: StartServer = async (file, env) => {
    const server = await startServer({ file, env: { WINDOW_SECONDS: `${windowSeconds}`, ...env }, signal });
    servers.push(server);
    signal.throwIfAborted();
    return server;
  };
  try {
    const runEpisode = await prepare(start, signal);
    const began = performance.now();
    const outcomes = await runAll(Array(episodes).keys(), runEpisode, {
      concurrency: episodes,
      signal,
      onProgress: ({ ended }) => onProgress?.(ended),
    });
    const results = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
    const seconds = (performance.now() - began) / 1_000;
    const reward1 = results.filter(({ reward }) => reward === 1).length;
    const problem = results.find((result) => result.problem !== undefined)?.problem;
    return {
      name,
      reward1,
      reward0: episodes - reward1,
      forwarded: sum(results.map(({ forwarded }) => forwarded)),
      local: sum(results.map(({ local }) => local)),
      claimsLeft: await claimsLeft(servers, signal),
      seconds,
      ...(problem !== undefined && { problem }),
    };
  } finally {
    await Promise.all(servers.map((server) => server.stop()));
  }
}

/** Waits until no session is claimed, or the window and some grace are over. Returns how many are claimed then. */
async function claimsLeft(servers: readonly ServerProcess[], signal: AbortSignal): Promise<number> {
  const end = performance.now() + (windowSeconds + graceSeconds) * 1_000;
  for (;;) {
    const claims = sum(await Promise.all(servers.map((server) => server.claims())));
    if (claims === 0 || performance.now() > end) return claims;
    await wait(50, undefined, { signal });
  }
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
