import { episodeIdSchema, taskIdSchema, type EpisodeId } from 'express-session-routing';
import { z } from 'zod';
import { responseParams } from '../agent/bodies.ts';

const json = z.record(z.string(), z.unknown());

/** What asks for an episode. */
export const typedRun = z.strictObject({
  episode_id: episodeIdSchema,
  task: z.strictObject({
    task_id: taskIdSchema,
    task_input: z.strictObject({
      responses_create_params: responseParams,
      task_data: json,
      agent_timeout_seconds: z.number().positive().finite().optional(),
    }),
  }),
});

export const resourcesSeedReply = z.looseObject({ resources_session_id: z.string() });
export const agentSeedReply = z.looseObject({ agent_session_id: z.string() });
export const agentCloseReply = z.looseObject({ resources_cookies: z.record(z.string(), z.string()).nullable() });
export const verdict = z.looseObject({ reward: z.number() });

export type TypedRun = z.output<typeof typedRun>;
export type Verdict = z.output<typeof verdict>;

/** The name of an episode in paths: that of its rollout, and of the attempt at it, if it is not the first. */
export function captureKey({ rollout_id: rollout, attempt }: EpisodeId): string {
  return attempt === 0 ? rollout : `${rollout}-a${attempt}`;
}
