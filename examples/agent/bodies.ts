import { z } from 'zod';

const json = z.record(z.string(), z.unknown());

/** What asks for a response: the parts of OpenAI's Responses API that the agent looks at. Others are passed on. */
export const responseParams = z.looseObject({ input: z.union([z.string(), z.array(json)]) });

/** What the model answers. */
export const modelResponse = z.looseObject({ output: z.array(z.looseObject({ type: z.string() })) });

/** An item of the output by which the model calls a tool. */
export const functionCall = z.looseObject({
  type: z.literal('function_call'),
  call_id: z.string(),
  name: z.string(),
  arguments: z.string(),
});

/** One task of a flat data set: what it asks for, and whatever the resources server wants to know. */
export const row = z.looseObject({ responses_create_params: responseParams });

export type ResponseParams = z.output<typeof responseParams>;
export type ModelResponse = z.output<typeof modelResponse>;
export type FunctionCall = z.output<typeof functionCall>;
export type Row = z.output<typeof row>;
