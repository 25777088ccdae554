import { randomUUID } from 'node:crypto';
import type { Agent } from 'node:http';
import { CallFailed, Caller } from '../caller/caller.ts';
import { CookieJar } from '../caller/cookie-jar.ts';
import {
  agentCloseReply,
  agentSeedReply,
  captureKey,
  resourcesSeedReply,
  verdict,
  type TypedRun,
  type Verdict,
} from './bodies.ts';
import { Cleanup } from './cleanup.ts';

/** At which call an episode ended. */
export type Stage = 'seed' | 'agent_seed' | 'respond' | 'cleanup' | 'verify';

/** What an episode came to: a verdict, or why there is none. */
export type EpisodeReply = Pick<TypedRun, 'episode_id'> & { task_id: TypedRun['task']['task_id'] } & (
    | { result: Verdict }
    /** `terminal`: another attempt would fail too. */
    | { failure: { failure_reason: string; terminal: boolean; stage: Stage } }
  );

export interface TypedEpisodeOptions {
  readonly resourcesUrl: string;
  readonly agentUrl: string;
  /** Opens the connections. */
  readonly connections: Agent;
  /** Told of each reply, and of which worker served the request. */
  readonly onHead?: (path: string, servedBy: string | null) => void;
  /** Told of what could not be undone. */
  readonly onCleanupFailure: (what: string, error: unknown) => void;
  /** For undoing everything. Default: 30. */
  readonly cleanupSeconds?: number;
}

/** How often a close is tried. */
const closeAttempts = 2;

/** How long a reason may be. */
const mostCharacters = 2_000;

/**
 * Runs an episode: opens a session on the resources server and one on the agent, lets the agent work with the tools, closes
 * its session, has the outcome verified, and closes the other session too, however it went.
 */
export async function runTypedEpisode(run: TypedRun, options: TypedEpisodeOptions): Promise<EpisodeReply> {
  const { episode_id, task } = run;
  const { task_id } = task;
  const { cleanupSeconds = 30, onCleanupFailure } = options;
  const cleanup = new Cleanup();
  const progress: { stage: Stage } = { stage: 'seed' };
  try {
    return { episode_id, task_id, result: await play(run, options, cleanup, progress) };
  } catch (error) {
    const terminal = !(error instanceof CallFailed && error.mayBeTriedAgain);
    const failure_reason = String((error as Error).message).slice(0, mostCharacters);
    return { episode_id, task_id, failure: { failure_reason, terminal, stage: progress.stage } };
  } finally {
    await cleanup.run(cleanupSeconds, onCleanupFailure);
  }
}

async function play(
  { episode_id, task: { task_id, task_input } }: TypedRun,
  { resourcesUrl, agentUrl, connections, onHead }: TypedEpisodeOptions,
  cleanup: Cleanup,
  progress: { stage: Stage },
): Promise<Verdict> {
  const { task_data, responses_create_params, agent_timeout_seconds } = task_input;
  const calling = { agent: connections, ...(onHead && { onHead }) };
  const resources = new Caller(resourcesUrl, calling);
  const agent = new Caller(agentUrl, calling);
  const resourcesSession = {
    resources_session_id: `resources-session-${randomUUID().replaceAll('-', '')}`,
    episode_id,
  };
  const agentSession = { agent_session_id: `agent-session-${randomUUID().replaceAll('-', '')}`, episode_id };

  // 1. The resources server opens its session. A close may have to go out without the cookie of the reply.
  cleanup.add('close the resources session', (signal) =>
    close(resources.with({ signal }), '/close_session', resourcesSession),
  );
  const seeded = await resources.post('/seed_session', { ...resourcesSession, task_id, task_data });
  checkId(resourcesSeedReply.parse(seeded).resources_session_id, resourcesSession.resources_session_id);
  if (resources.jar.header === '') throw new Error('POST /seed_session: the reply set no cookie');

  // 2. The agent opens one, and is given the cookies of the first.
  progress.stage = 'agent_seed';
  let isClosed = false;
  cleanup.add('close the agent session', async (signal) => {
    if (!isClosed) await close(agent.with({ signal }), '/v1/agent_sessions/close', agentSession);
  });
  const access = {
    kind: 'direct_http',
    name: 'resources.direct_http',
    required: true,
    base_url: resourcesUrl,
    cookies: resources.jar.cookies,
  };
  const opened = await agent.post('/v1/agent_sessions', { ...agentSession, task_id, tool_accesses: [access] });
  checkId(agentSeedReply.parse(opened).agent_session_id, agentSession.agent_session_id);

  // 3. The agent works.
  progress.stage = 'respond';
  const working = agent.with(agent_timeout_seconds === undefined ? {} : { requestSeconds: agent_timeout_seconds });
  const response = await working.post(`/ng-rollout/${captureKey(episode_id)}/v1/responses`, responses_create_params);

  // 4. The agent's session is closed, which gives the cookies back.
  progress.stage = 'cleanup';
  const closed = agentCloseReply.parse(await close(agent, '/v1/agent_sessions/close', agentSession));
  isClosed = true;
  if (closed.resources_cookies !== null) resources.jar = new CookieJar(closed.resources_cookies);

  // 5. The resources server says how it went. 6. Its session is closed, with the clean-up.
  progress.stage = 'verify';
  const body = { ...task_data, responses_create_params, response };
  return verdict.parse(await resources.post('/verify', body, { 'x-ng-checkpoint-close-follows': '1' }));
}

/** Closes a session, which may be tried again. */
async function close(caller: Caller, path: string, session: object): Promise<unknown> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await caller.post(path, session);
    } catch (error) {
      if (attempt === closeAttempts || !(error instanceof CallFailed && error.mayBeTriedAgain)) throw error;
    }
  }
}

/** Checks that a reply is about the session that was asked for. */
function checkId(replied: string, sent: string): void {
  if (replied !== sent) throw new Error('The reply is about another session');
}
