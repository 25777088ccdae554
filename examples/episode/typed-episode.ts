import type { Agent } from 'node:http';
import {
  runEpisodes,
  SessionClientError,
  type CleanupError,
  type Episode,
  type ReplyInfo,
  type VerifyReply,
} from 'express-session-routing/client';
import type { TypedRun } from './bodies.ts';

/** At which call an episode ended: `cleanup` is the close of the agent's session, without which there is no verdict. */
export type Stage = 'seed' | 'agent_seed' | 'respond' | 'cleanup' | 'verify';

/** What an episode came to: a verdict, or why there is none. */
export type EpisodeReply = Pick<TypedRun, 'episode_id'> & { task_id: TypedRun['task']['task_id'] } & (
    | { result: VerifyReply }
    /** `terminal`: another attempt would fail too. */
    | { failure: { failure_reason: string; terminal: boolean; stage: Stage } }
  );

export interface TypedEpisodeOptions {
  readonly resourcesUrl: string;
  readonly agentUrl: string;
  /** Opens the connections. */
  readonly connections: Agent;
  /** Told of each reply. */
  readonly onReply?: (reply: ReplyInfo) => void;
  /** Told of what could not be closed. */
  readonly onCleanupFailure: (error: CleanupError) => void;
  /** For closing everything. Default: 30. */
  readonly cleanupSeconds?: number;
}

/** How long a reason may be. */
const mostCharacters = 2_000;

/**
 * Runs an episode: opens a session on the resources server and one on the agent, lets the agent work with the tools, closes
 * its session, has the outcome verified, and closes the other session too, however it went.
 */
export async function runTypedEpisode(run: TypedRun, options: TypedEpisodeOptions): Promise<EpisodeReply> {
  const { onCleanupFailure, cleanupSeconds } = options;
  const [outcome] = await runEpisodes([run], (_, episode) => play(run, episode, options), {
    onCleanupFailure,
    cleanupSeconds,
  });
  const about = { episode_id: run.episode_id, task_id: run.task.task_id };
  if (outcome?.status === 'fulfilled') return { ...about, result: outcome.value };
  return { ...about, failure: failureOf(outcome?.reason) };
}

async function play(
  { episode_id: episodeId, task: { task_id: taskId, task_input } }: TypedRun,
  episode: Episode,
  { resourcesUrl, agentUrl, connections, onReply }: TypedEpisodeOptions,
): Promise<VerifyReply> {
  const { task_data: taskData, responses_create_params: params, agent_timeout_seconds: requestSeconds } = task_input;
  const common = { episodeId, taskId, agent: connections, onReply };

  // 1. The resources server opens its session. What was opened is closed at the end, also if its reply was lost.
  const resources = await episode.openResources({ ...common, url: resourcesUrl, taskData });
  // 2. The agent opens one, and is given the cookies of the first.
  const toolAccesses = [resources.directHttpAccess('resources.direct_http')];
  const agent = await episode.openAgent({ ...common, url: agentUrl, toolAccesses });
  // 3. The agent works.
  const response = await agent.respond(params, { requestSeconds });
  // 4. The agent's session is closed, which gives the cookies back.
  const { resources_cookies: cookies } = await agent.close();
  if (cookies !== null) resources.useCookies(cookies);
  // 5. The resources server says how it went, and is told that a close follows. 6. Which the clean-up sends.
  return resources.verify({ ...taskData, responses_create_params: params, response });
}

function failureOf(error: unknown): { failure_reason: string; terminal: boolean; stage: Stage } {
  const failure_reason = (error instanceof Error ? error.message : String(error)).slice(0, mostCharacters);
  if (!(error instanceof SessionClientError)) return { failure_reason, terminal: true, stage: 'respond' };
  return { failure_reason, terminal: error.isOver, stage: stageOf(error) };
}

function stageOf({ server, stage }: SessionClientError): Stage {
  if (stage === 'close') return 'cleanup';
  if (stage === 'seed') return server === 'agent' ? 'agent_seed' : 'seed';
  return stage === 'verify' ? 'verify' : 'respond';
}
