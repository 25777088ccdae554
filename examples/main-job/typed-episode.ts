import { z } from 'zod';
import { Caller } from '../caller/caller.ts';
import type { EpisodeOptions, EpisodeResult } from './episode.ts';

const reply = z.object({
  result: z.object({ reward: z.number() }).optional(),
  failure: z.object({ stage: z.string(), failure_reason: z.string() }).optional(),
});

/**
 * Has an environment server run an episode, as its client would.
 *
 * Never rejects: an episode that breaks off scores 0, and says why.
 */
export async function runTypedEpisode({ url, initialCount, ...options }: EpisodeOptions): Promise<EpisodeResult> {
  let served = { local: 0, forwarded: 0 };
  const environment = new Caller(url, options);
  try {
    const { ok, status, text, headers } = await environment.send('/run', episodeOf(initialCount));
    const [, local = 0, forwarded = 0] = /^local (\d+), forwarded (\d+)$/.exec(headers.get('x-calls') ?? '') ?? [];
    served = { local: Number(local), forwarded: Number(forwarded) };
    if (!ok) throw new Error(`POST /run: status ${status}, ${text.slice(0, 200)}`);
    const { result, failure } = reply.parse(JSON.parse(text));
    if (failure !== undefined) throw new Error(`${failure.stage}: ${failure.failure_reason}`);
    if (result === undefined) throw new Error('POST /run: the reply holds no result');
    return { ...served, reward: result.reward === 1 ? 1 : 0 };
  } catch (error) {
    return { ...served, reward: 0, problem: (error as Error).message };
  }
}

/** An episode whose model adds 1 and 2. */
export function episodeOf(initialCount: number): object {
  return {
    episode_id: { rollout_id: `rollout-${initialCount}` },
    task: {
      task_id: { taskset: 'counting', task_id: `${initialCount}` },
      task_input: {
        responses_create_params: { input: 'Add 1, then add 2.' },
        task_data: { initial_count: initialCount, expected_count: initialCount + 3 },
      },
    },
  };
}
