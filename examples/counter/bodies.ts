import { bodyIssues, episodeIdSchema, integerSchema, taskIdSchema, type BodyIssue } from 'express-session-routing';
import { z } from 'zod';

const json = z.record(z.string(), z.unknown());

/** A seed whose caller chose the session's ID. */
export const typedSeed = z.strictObject({
  resources_session_id: z.string().min(1),
  episode_id: episodeIdSchema,
  task_id: taskIdSchema,
  task_data: json,
});

/** What the counter needs to find in the `task_data` of a typed seed. */
export const taskData = z.object({ initial_count: integerSchema });

/** Any other seed: the cookie of its reply names the session. Further keys are ignored. */
export const untypedSeed = taskData;

export const close = z.strictObject({ resources_session_id: z.string(), episode_id: episodeIdSchema });

export const increment = z.object({ count: integerSchema });

export const verify = z.object({
  responses_create_params: json.optional(),
  response: json.optional(),
  expected_count: integerSchema,
});

export type TypedSeed = z.output<typeof typedSeed>;
export type Close = z.output<typeof close>;

/** A body that fits none of the schemas it was tried on. `detail` says why, in the form that FastAPI answers with. */
export class BadBody extends Error {
  readonly detail: BodyIssue[];

  constructor(issues: readonly z.core.$ZodIssue[]) {
    super('The body is refused');
    this.detail = bodyIssues(issues);
  }
}

/**
 * Parses a body with the first schema that it fits.
 *
 * @throws BadBody with the issues of every schema
 */
export function parse<Schemas extends z.ZodType[]>(body: unknown, ...schemas: Schemas): z.output<Schemas[number]> {
  const issues: z.core.$ZodIssue[] = [];
  for (const schema of schemas) {
    const result = schema.safeParse(body, { reportInput: true });
    if (result.success) return result.data as z.output<Schemas[number]>;
    issues.push(...result.error.issues);
  }
  throw new BadBody(issues);
}
