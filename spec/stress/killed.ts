import { setTimeout as wait } from 'node:timers/promises';
import type { Agent } from 'node:http';
import { ResourcesSession, SessionClientError } from 'express-session-routing/client';
import { Caller } from '../../examples/caller/caller.ts';
import type { CounterServer } from './servers.ts';
import { tally, type Outcome } from './tally.ts';
import { workerStates } from './workers.ts';

interface OpenSession {
  readonly session: ResourcesSession;
  readonly number: number;
  /** The process ID of the worker that holds it. */
  readonly holder: number;
}

/** How long another worker may take to be in the place of one that was killed. */
const replacementSeconds = 30;

async function open({ url }: CounterServer, number: number, agent: Agent, signal: AbortSignal): Promise<OpenSession> {
  let holder = 0;
  const session = await ResourcesSession.open({
    url,
    agent,
    signal,
    episodeId: { rollout_id: `killed-${number}` },
    taskId: { taskset: 'stress', task_id: `${number}` },
    taskData: { initial_count: number },
    onReply({ stage, headers }) {
      if (stage === 'seed') holder = Number(/^worker (\d+)/.exec(headers.get('x-served-by') ?? '')?.[1]);
    },
  });
  await session.callTool('increment_counter', { count: 1 });
  return { session, number, holder };
}

/** Ends a worker, and waits until another has taken its place. */
async function kill({ folder, workers }: CounterServer, pid: number, signal: AbortSignal): Promise<void> {
  process.kill(pid, 'SIGKILL');
  for (const end = performance.now() + replacementSeconds * 1_000; performance.now() < end;) {
    const states = await workerStates(folder);
    if (states.length === workers && states.every((state) => state.pid !== pid)) return;
    await wait(50, undefined, { signal });
  }
  throw new Error(`No worker took the place of the one that was killed in ${replacementSeconds} s`);
}

/** What is wrong with a session whose worker is gone: every request, and a close by its ID alone, must get 410. */
async function lostProblem({ session, number }: OpenSession, url: string, agent: Agent) {
  const statuses: (number | undefined)[] = [];
  for (const request of [
    () => session.callTool('increment_counter', { count: 2 }),
    () => session.callTool('get_counter_value'),
    () => session.verify({ expected_count: number + 3 }),
    () => session.close(),
  ]) {
    statuses.push(await request().then(() => 200, statusOf));
  }
  const close = { resources_session_id: session.id, episode_id: { rollout_id: `killed-${number}` } };
  statuses.push((await new Caller(url, { agent }).send('/close_session', close)).status);
  return statuses.every((status) => status === 410) ? undefined : `a lost session was answered with ${statuses.join()}`;
}

function statusOf(error: unknown): number | undefined {
  return error instanceof SessionClientError ? error.status : undefined;
}

async function keptProblem({ session, number }: OpenSession): Promise<string | undefined> {
  await session.callTool('increment_counter', { count: 2 });
  const { reward } = await session.verify({ expected_count: number + 3 });
  await session.close();
  return reward === 1 ? undefined : `a session of another worker ended with reward ${reward}`;
}

/** A worker is killed with sessions open: its sessions are refused, and all others go on. Then the server is stopped. */
export async function killedWorker(
  counter: CounterServer,
  count: number,
  agent: Agent,
  signal: AbortSignal,
): Promise<Outcome & { readonly lost: number }> {
  const sessions: OpenSession[] = [];
  const opened = await tally(
    count,
    async (number) => void (sessions[number] = await open(counter, number, agent, signal)),
    signal,
  );
  if (opened.right < count) return { ...opened, lost: 0 };
  const victim = sessions[0]?.holder ?? 0;
  const lost = sessions.filter(({ holder }) => holder === victim).length;
  await kill(counter, victim, signal);
  const outcome = await tally(
    count,
    async (number) => {
      const session = sessions[number] as OpenSession;
      return session.holder === victim ? lostProblem(session, counter.url, agent) : keptProblem(session);
    },
    signal,
  );
  const problem = outcome.problem ?? (lost === count ? 'one worker held every session' : await leftProblem(counter));
  return { ...outcome, lost, ...(problem !== undefined && { problem }) };
}

/** Claims of a dead worker stay while the server runs, so that its sessions are refused, and go with the runtime directory. */
async function leftProblem(counter: CounterServer): Promise<string | undefined> {
  await counter.stop();
  const left = await counter.claims().catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  return left === undefined ? undefined : `${left} claims were left when the server had stopped`;
}
