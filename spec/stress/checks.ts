import { setTimeout as wait } from 'node:timers/promises';
import { Agent } from 'node:http';
import { Caller } from '../../examples/caller/caller.ts';
import { flatEpisode, mcpSequence, steppedSession, typedEpisode } from './episodes.ts';
import { killedWorker } from './killed.ts';
import { brokenReplies, delayedSeeds, failingSeeds } from './seeds.ts';
import { ServerPark, windowSeconds, type Servers } from './servers.ts';
import { none, tally, type Outcome } from './tally.ts';
import { liveSessions, splitSessions, workerStates } from './workers.ts';

/** How much is asked of the servers. */
export interface Scale {
  readonly episodes: number;
  /** Sessions of every other check. */
  readonly sessions: number;
}

/** In the order of the table. */
export type CheckName =
  'typed' | 'flat' | 'failing' | 'broken' | 'delayed' | 'workers' | 'stepped' | 'mcp' | 'claims' | 'killed' | 'strict';

/** Told of each check that is done. */
export type OnOutcome = (check: CheckName, outcome: Outcome) => void;

/** Runs every check at one scale, each request on a new connection, on servers that are stopped at the end. */
export async function runChecks(
  { episodes, sessions }: Scale,
  signal: AbortSignal,
  onOutcome: OnOutcome,
): Promise<void> {
  await using park = new ServerPark(signal);
  // A new connection for each request. (One with `maxSockets` would let those that wait have the ones that get free.)
  const agent = new Agent({ keepAlive: false });
  const servers = await park.startAll();
  const { counter, environment, mcp } = servers;

  onOutcome('typed', await tally(episodes, (n) => typedEpisode(environment.url, n, agent, signal), signal));
  onOutcome('flat', await tally(episodes, (n) => flatEpisode(environment.url, n, agent, signal), signal));
  for (const [name, check] of Object.entries({ failing: failingSeeds, broken: brokenReplies, delayed: delayedSeeds })) {
    onOutcome(name as 'failing' | 'broken' | 'delayed', await check(servers, sessions, agent, signal));
  }
  const stepped = await tally(sessions, () => steppedSession(counter.url, agent, signal), signal);
  onOutcome('mcp', await tally(sessions, (n) => mcpSequence(mcp.url, n), signal));
  onOutcome('strict', await strictness(counter.url, sessions, agent, signal));

  const workers = await workerStates(counter.folder);
  if (workers.length < counter.workers) throw new Error(`Only ${workers.length} workers say what they hold`);
  const ofCounters = workers.map((worker) => worker.counters);
  const ofSteps = workers.map((worker) => worker.steps);
  onOutcome('workers', none([...splitSessions(ofCounters), ...liveSessions(ofCounters)]));
  const { problem } = none([...splitSessions(ofSteps), ...liveSessions(ofSteps)]);
  onOutcome('stepped', { ...stepped, ...(problem !== undefined && { problem }) });
  onOutcome('claims', await claimsLeft(servers, signal));
  onOutcome('killed', await killedWorker(counter, sessions, agent, signal));
}

/** Tool calls of sessions that no worker has a counter for: each must be refused, or a lost counter could count from 0. */
async function strictness(url: string, count: number, agent: Agent, signal: AbortSignal): Promise<Outcome> {
  return tally(
    count,
    async () => {
      const { status } = await new Caller(url, { agent, signal }).send('/increment_counter', { count: 1 });
      return status === 409 ? undefined : `a call without a counter was answered with ${status}`;
    },
    signal,
  );
}

/** What is claimed a second after the window that began with the last request. */
async function claimsLeft({ counter, agent, mcp }: Servers, signal: AbortSignal): Promise<Outcome> {
  await wait((windowSeconds + 1) * 1_000, undefined, { signal });
  const claims = await Promise.all([counter, agent, mcp].map((server) => server.claims()));
  const left = Object.entries({ counter: claims[0] ?? 0, agent: claims[1] ?? 0, mcp: claims[2] ?? 0 });
  return none(left.flatMap(([name, number]) => Array<string>(number).fill(`a claim of the ${name} server`)));
}
