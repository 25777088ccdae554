import { episodeIdSchema, taskIdSchema } from 'express-session-routing';
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
      agent_timeout_seconds: z.number().positive().max(86_400).optional(),
    }),
  }),
});

export type TypedRun = z.output<typeof typedRun>;
