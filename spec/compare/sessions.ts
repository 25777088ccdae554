import { setTimeout as wait } from 'node:timers/promises';
import { runEpisodes } from 'express-session-routing/client';
import { CallFailed, Caller, newConnections, type Reply } from '../../examples/caller/caller.ts';
import { runEpisode } from '../../examples/main-job/episode.ts';

/** Which process served a request, by what the app says. */
export function servedBy(reply: Pick<Reply, 'headers'>): number {
  return Number(/^worker (\d+)/.exec(reply.headers.get('x-served-by') ?? '')?.[1]);
}

/** Runs episodes at the same time, each request on a new connection. Returns how many counted right. */
export async function rightEpisodes(url: string, episodes: number, signal: AbortSignal): Promise<number> {
  const agent = newConnections();
  const outcomes = await runEpisodes(
    Array(episodes).keys(),
    (initialCount) => runEpisode({ url, initialCount, agent, signal }),
    { concurrency: episodes, signal },
  );
  return outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value.reward === 1).length;
}

/**
 * Sends seeds whose first reply is taken for lost: the same seed again, then its close, none with a cookie. Returns how many were
 * served by the process that has the state each time.
 */
export async function repeatedSeeds(url: string, seeds: number, signal: AbortSignal): Promise<number> {
  const isRoutedByBody = async (number: number): Promise<boolean> => {
    const named = { resources_session_id: `repeated-${number}`, episode_id: { rollout_id: `repeated-${number}` } };
    const task = { task_id: { taskset: 'counting', task_id: `${number}` }, task_data: { initial_count: number } };
    const replies: Reply[] = [];
    const send = async (path: string, body: object): Promise<void> => {
      const withoutCookies = new Caller(url, { signal });
      replies.push(await withoutCookies.send(path, body));
    };
    await send('/seed_session', { ...named, ...task });
    await send('/seed_session', { ...named, ...task });
    await send('/close_session', named);
    return replies.every(({ ok }) => ok) && new Set(replies.map(servedBy)).size === 1;
  };
  const results = await Promise.all(Array.from({ length: seeds }, (_, number) => isRoutedByBody(number)));
  return results.filter(Boolean).length;
}

/** How sessions went on after a worker was killed. */
export interface Outcomes {
  /** Every reply was one of success, and the count was right. */
  right: number;
  /** Every reply was one of success, and the count was wrong. */
  empty: number;
  /** A reply was none of success. */
  refused: number;
  /** A request got no reply. */
  unanswered: number;
}

export interface AfterKill {
  /** How many workers had opened the sessions. */
  readonly openedBy: number;
  /** The sessions that the killed worker had opened, and the others. */
  readonly lost: Outcomes;
  readonly others: Outcomes;
  /** The statuses of refusals, and how many there were of each. */
  readonly refusals: Record<string, number>;
}

/** Long enough for a proxy that tries a process again; a request that a worker never reads would wait for ever. */
const requestSeconds = 15;
const replacedSeconds = 20;

const outcomes = (): Outcomes => ({ right: 0, empty: 0, refused: 0, unanswered: 0 });

/**
 * Opens sessions, kills the worker that opened most of them, and goes on with all of them: half of them at once, the others when it
 * has been replaced.
 */
export async function killWorker(url: string, sessions: number, signal: AbortSignal): Promise<AfterKill> {
  const opened = await Promise.all(Array.from({ length: sessions }, (_, number) => open(url, number, signal)));
  const pids = await seenPids(url, signal);
  const victim = mostFrequent(opened.map(({ pid }) => pid));
  process.kill(victim, 'SIGKILL');
  while (isAlive(victim)) await wait(5, undefined, { signal });

  const openedBy = new Set(opened.map(({ pid }) => pid)).size;
  const result: AfterKill = { openedBy, lost: outcomes(), others: outcomes(), refusals: {} };
  const goOn = async ({ pid, ...session }: Opened): Promise<void> => {
    const { outcome, status } = await proceed(session);
    result[pid === victim ? 'lost' : 'others'][outcome]++;
    if (outcome === 'refused') result.refusals[`${status}`] = (result.refusals[`${status}`] ?? 0) + 1;
  };
  // By turns for either group, whichever sessions the killed worker had.
  const [lost, others] = [opened.filter(({ pid }) => pid === victim), opened.filter(({ pid }) => pid !== victim)];
  const half = (isFirst: boolean): Opened[] =>
    [lost, others].flatMap((group) => group.filter((_, index) => (index % 2 === 0) === isFirst));
  await Promise.all(half(true).map(goOn));
  await replaced(url, victim, pids.size, signal);
  await Promise.all(half(false).map(goOn));
  return result;
}

interface Opened {
  readonly caller: Caller;
  readonly count: number;
  readonly pid: number;
}

async function open(url: string, count: number, signal: AbortSignal): Promise<Opened> {
  const caller = new Caller(url, { signal, requestSeconds });
  const pid = servedBy(await caller.send('/seed_session', { initial_count: count }));
  const { ok } = await caller.send('/increment_counter', { count: 1 });
  return { caller, count: ok ? count + 1 : count, pid };
}

/** Adds 1, and reads the count. */
async function proceed({ caller, count }: Omit<Opened, 'pid'>): Promise<{ outcome: keyof Outcomes; status?: number }> {
  try {
    const added = await caller.send('/increment_counter', { count: 1 });
    if (!added.ok) return { outcome: 'refused', status: added.status };
    const read = await caller.send('/get_counter_value', {});
    if (!read.ok) return { outcome: 'refused', status: read.status };
    return { outcome: (JSON.parse(read.text) as { count: number }).count === count + 1 ? 'right' : 'empty' };
  } catch (error) {
    if (error instanceof CallFailed) return { outcome: 'unanswered' };
    throw error;
  }
}

/** The processes that serve who has no session. */
async function seenPids(url: string, signal: AbortSignal): Promise<Set<number>> {
  const caller = (): Caller => new Caller(url, { signal, requestSeconds: 1 });
  const asked = Array.from({ length: 24 }, () => caller().send('/health', {}));
  const settled = await Promise.allSettled(asked);
  const pids = settled.map((reply) => (reply.status === 'fulfilled' ? servedBy(reply.value) : NaN));
  return new Set(pids.filter((pid) => !Number.isNaN(pid)));
}

/** Waits until as many processes serve as before the kill, or 20 seconds. */
async function replaced(url: string, victim: number, processes: number, signal: AbortSignal): Promise<void> {
  const end = performance.now() + replacedSeconds * 1_000;
  while (performance.now() < end) {
    const pids = await seenPids(url, signal);
    if (pids.size >= processes && !pids.has(victim)) return;
    await wait(100, undefined, { signal });
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

function mostFrequent(values: readonly number[]): number {
  const counts = new Map<number, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].toSorted(([, a], [, b]) => b - a)[0]?.[0] ?? NaN;
}
