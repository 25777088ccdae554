import { z } from 'zod';

/** An integer as pydantic takes one by default: 3, 3.0, "3" and true; but not 3.5, "3.0" or null. */
const integer = z.preprocess((value) => {
  const isIntegral = typeof value === 'boolean' || (typeof value === 'string' && /^[+-]?\d+$/.test(value));
  return isIntegral ? Number(value) : value;
}, z.int());

const episodeId = z.strictObject({
  rollout_id: z
    .string()
    .regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/)
    .refine((id) => !/-a[1-9]\d*$/.test(id), 'must not end in the number of an attempt'),
  attempt: integer.refine((attempt) => attempt >= 0, 'must not be negative').default(0),
});

const taskId = z.strictObject({ taskset: z.string().min(1), task_id: z.string().min(1) });
const json = z.record(z.string(), z.unknown());

/** A seed whose caller chose the session's ID. */
export const typedSeed = z.strictObject({
  resources_session_id: z.string().min(1),
  episode_id: episodeId,
  task_id: taskId,
  task_data: json,
});

/** What the counter needs to find in the `task_data` of a typed seed. */
export const taskData = z.object({ initial_count: integer });

/** Any other seed: the cookie of its reply names the session. Further keys are ignored. */
export const untypedSeed = taskData;

export const close = z.strictObject({ resources_session_id: z.string(), episode_id: episodeId });

export const increment = z.object({ count: integer });

export const verify = z.object({
  responses_create_params: json.optional(),
  response: json.optional(),
  expected_count: integer,
});

export type TypedSeed = z.output<typeof typedSeed>;
export type Close = z.output<typeof close>;

/** A body that fits none of the schemas it was tried on. `detail` says why, in the form that FastAPI answers with. */
export class BadBody extends Error {
  readonly detail: { type: string; loc: PropertyKey[]; msg: string; input: unknown }[];

  constructor(issues: readonly z.core.$ZodIssue[]) {
    super('The body is refused');
    this.detail = issues.map(({ code, path, message, input }) => ({
      type: code,
      loc: ['body', ...path],
      msg: message,
      input,
    }));
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
