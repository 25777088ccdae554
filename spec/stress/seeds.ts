import { randomUUID } from 'node:crypto';
import type { Agent } from 'node:http';
import { ResourcesSession } from 'express-session-routing/client';
import { Caller } from '../../examples/caller/caller.ts';
import type { TypedRun } from '../../examples/episode/bodies.ts';
import { runTypedEpisode } from '../../examples/episode/typed-episode.ts';
import { startBreakingProxy, type Fate, type ProxiedRequest } from '../fixtures/breaking-proxy.ts';
import { failingRollouts, type Servers } from './servers.ts';
import { tally, type Outcome } from './tally.ts';

const seedPath = '/seed_session';

function runOf(rolloutId: string, attempt: number, count: number): TypedRun {
  return {
    episode_id: { rollout_id: rolloutId, attempt },
    task: {
      task_id: { taskset: 'stress', task_id: `${count}` },
      task_input: {
        responses_create_params: { input: 'Add 1, then add 2.' },
        task_data: { initial_count: count, expected_count: count + 3 },
      },
    },
  };
}

/** Runs an episode from this process, so that its seed goes where it is told to. */
async function attempt(run: TypedRun, resourcesUrl: string, agentUrl: string, connections: Agent) {
  const cleanupFailures: string[] = [];
  const reply = await runTypedEpisode(run, {
    resourcesUrl,
    agentUrl,
    connections,
    onCleanupFailure: ({ message }) => void cleanupFailures.push(message),
  });
  return { reply, cleanupFailure: cleanupFailures[0] };
}

function problemOf({ reply, cleanupFailure }: Awaited<ReturnType<typeof attempt>>): string | undefined {
  if (cleanupFailure !== undefined) return cleanupFailure;
  if ('failure' in reply) return `${reply.failure.stage}: ${reply.failure.failure_reason}`;
  return reply.result.reward === 1 ? undefined : `reward ${reply.result.reward}`;
}

/**
 * Seeds that fail when half of the work is done, with 500 and no cookie. A close by the ID alone must find that half, and the
 * next attempt must go right. Every other one is sent by hand, to see that there is no cookie.
 */
export async function failingSeeds(
  { counter, agent }: Servers,
  count: number,
  connections: Agent,
  signal: AbortSignal,
): Promise<Outcome> {
  return tally(
    count,
    async (number) => {
      // The number last: about one random ID in 2,800 ends like the number of an attempt (`-a` and digits), which is refused.
      const rolloutId = `${failingRollouts}${randomUUID()}-${number}`;
      const first = runOf(rolloutId, 0, number);
      if (number % 2 === 0) {
        const { reply, cleanupFailure } = await attempt(first, counter.url, agent.url, connections);
        if (cleanupFailure !== undefined) return cleanupFailure;
        if (!('failure' in reply) || reply.failure.stage !== 'seed') {
          return `the first seed did not fail: ${JSON.stringify(reply)}`;
        }
      } else {
        const { episode_id, task } = first;
        const resources_session_id = randomUUID();
        const { task_id, task_input } = task;
        const seed = { resources_session_id, episode_id, task_id, task_data: task_input.task_data };
        const { status, headers } = await new Caller(counter.url, { agent: connections, signal }).send(seedPath, seed);
        if (status !== 500 || headers.has('set-cookie')) return `the first seed was answered with ${status}`;
        await new Caller(counter.url, { agent: connections, signal }).post('/close_session', {
          resources_session_id,
          episode_id,
        });
      }
      return problemOf(await attempt(runOf(rolloutId, 1, number), counter.url, agent.url, connections));
    },
    signal,
  );
}

/** Seeds that the counter executes, and whose first reply nobody gets, or nobody gets to the end. They are sent again. */
export async function brokenReplies(
  { counter, agent }: Servers,
  count: number,
  connections: Agent,
  signal: AbortSignal,
): Promise<Outcome> {
  const seeds = new Map<string, (string | undefined)[]>();
  function fateOf({ path, body, cookie }: ProxiedRequest): Fate {
    if (path !== seedPath) return 'pass';
    const cookies = seeds.get(body.resources_session_id) ?? [];
    seeds.set(body.resources_session_id, [...cookies, cookie]);
    if (cookies.length > 0) return 'pass';
    return seeds.size % 2 === 0 ? 'drop' : 'cut';
  }
  const proxy = await startBreakingProxy(counter.url, fateOf);
  try {
    const outcome = await tally(
      count,
      async (number) =>
        problemOf(await attempt(runOf(`broken-${number}`, 0, number), proxy.url, agent.url, connections)),
      signal,
    );
    const asMeant = [...seeds.values()].filter(
      (sent) => sent.length > 1 && sent.every((cookie) => cookie === undefined),
    );
    if (asMeant.length === count) return outcome;
    return { ...outcome, problem: `${asMeant.length} of ${count} seeds were sent again without a cookie` };
  } finally {
    await proxy.close();
  }
}

/** Seeds that are on their way while their caller gives up, closes the session, and hears that it is closed. */
export async function delayedSeeds(
  { counter }: Servers,
  count: number,
  connections: Agent,
  signal: AbortSignal,
): Promise<Outcome> {
  const leaving = new Map<string, AbortController>();
  const closed = new Map<string, () => void>();
  const seeds = new Map<string, ProxiedRequest>();
  async function decide(request: ProxiedRequest): Promise<Fate> {
    const { resources_session_id: id } = request.body;
    if (request.path === seedPath) {
      seeds.set(id, request);
      const isClosed = new Promise<void>((resolve) => closed.set(id, resolve));
      leaving.get(id)?.abort(new Error('The caller gives up'));
      await isClosed;
    }
    return 'pass';
  }
  const proxy = await startBreakingProxy(counter.url, decide);
  try {
    return await tally(
      count,
      async (number) => {
        const resourcesSessionId = randomUUID();
        const caller = new AbortController();
        leaving.set(resourcesSessionId, caller);
        let problem: string | undefined = 'the caller did not give up';
        try {
          await ResourcesSession.open({
            url: proxy.url,
            agent: connections,
            signal: AbortSignal.any([caller.signal, signal]),
            resourcesSessionId,
            episodeId: { rollout_id: 'delayed' },
            taskId: { taskset: 'stress', task_id: `${number}` },
            taskData: { initial_count: number, expected_count: number },
            onCleanupFailure: ({ message }) => void (problem = message),
          });
        } catch {
          if (problem === 'the caller did not give up' && caller.signal.aborted) problem = undefined;
        } finally {
          closed.get(resourcesSessionId)?.();
        }
        const status = await seeds.get(resourcesSessionId)?.status;
        return problem ?? (status === 409 ? undefined : `the delayed seed was answered with ${status}`);
      },
      signal,
    );
  } finally {
    await proxy.close();
  }
}
