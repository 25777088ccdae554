import type { AgentSessionResult, AgentSessionSeed } from 'express-session-routing';
import { CookieJar } from 'express-session-routing/client';
import { Caller } from '../caller/caller.ts';
import { functionCall, modelResponse, type FunctionCall, type ModelResponse, type ResponseParams } from './bodies.ts';

/** The tools of one resources server, and the cookies of the session that they are called for. */
export interface Tools {
  readonly caller: Caller;
  /** Header fields that every call has. */
  readonly headers: Readonly<Record<string, string>>;
}

/** What the agent keeps of a session. */
export interface AgentState {
  /** None if the session was opened without access to tools. */
  readonly tools: Tools | undefined;
}

/** A seed that the agent cannot serve. */
export class Unsupported extends Error {
  readonly status = 422;
  readonly expose = true;
}

/**
 * Opens a session: takes the one access to tools that the agent knows how to use.
 *
 * @throws Unsupported for a seed that asks for more
 */
export function openSession({ tool_accesses: accesses, sandbox_access: sandbox }: AgentSessionSeed): AgentState {
  if (sandbox !== null) throw new Unsupported('This agent uses no sandbox');
  if (accesses.some(({ kind, required }) => kind === 'mcp' && required)) {
    throw new Unsupported('This agent calls no tools over MCP');
  }
  const [access, ...more] = accesses.filter(({ kind }) => kind === 'direct_http');
  if (more.length > 0) throw new Unsupported('This agent calls the tools of one server only');
  if (access?.kind !== 'direct_http') return { tools: undefined };
  const jar = new CookieJar();
  jar.replace(access.cookies);
  return { tools: { caller: new Caller(access.base_url.replace(/\/$/, ''), { jar }), headers: access.headers } };
}

/** Closes a session: hands the cookies back, with which its caller goes on. */
export function closeSession({ tools }: AgentState): AgentSessionResult {
  return { resources_cookies: tools === undefined ? null : tools.caller.jar.toRecord() };
}

/** How often the model is asked for one response. */
const mostSteps = 50;

/**
 * Asks the model for a response, and calls the tools that it wants until it wants none.
 *
 * @returns the last response, whose output is all that happened
 * @throws CallFailed if a server cannot be reached, or the model refuses; Error if the model wants tools and there are none
 */
export async function respond(params: ResponseParams, tools: Tools | undefined, model: Caller): Promise<ModelResponse> {
  const input = typeof params.input === 'string' ? [{ role: 'user', content: params.input }] : params.input;
  const output: ModelResponse['output'] = [];
  for (let step = 0; step < mostSteps; step++) {
    const response = modelResponse.parse(
      await model.post('/v1/responses', { ...params, input: [...input, ...output] }),
    );
    output.push(...response.output);
    const calls = response.output.flatMap((item) => functionCall.safeParse(item).data ?? []);
    if (calls.length === 0) return { ...response, output };
    for (const call of calls) {
      output.push({ type: 'function_call_output', call_id: call.call_id, output: await callTool(call, tools) });
    }
  }
  throw new Error(`The model wanted tools ${mostSteps} times`);
}

/** Calls a tool. What it replies is for the model to read, whatever its status. */
async function callTool(call: FunctionCall, tools: Tools | undefined): Promise<string> {
  let args: unknown;
  try {
    args = JSON.parse(call.arguments);
  } catch (error) {
    return JSON.stringify({ error: `Invalid tool call arguments: ${(error as Error).message}` });
  }
  if (tools === undefined) throw new Error(`The model wants the tool ${call.name}, and the session has no tools`);
  const { text } = await tools.caller.send(`/${encodeURIComponent(call.name)}`, args, tools.headers);
  return text;
}
