import type { RequestHandler, Response } from 'express';
import { z } from 'zod';
import type { McpServerMetadata } from './client-replies.ts';

/** Decides which tools the holder of a session's token may call: their names, or null for all. */
export type AllowedTools = (body: unknown) => readonly string[] | null | Promise<readonly string[] | null>;

/** What the tokens in the replies to seeds are made of. */
export interface SeedTokenParts {
  /** Mints how to reach the tools of a session. */
  readonly describe: (sessionId: string, tools: readonly string[] | null) => McpServerMetadata;
  readonly allowedTools: AllowedTools;
}

/**
 * Puts into the successful replies to seeds how to reach the tools of the session over MCP: into `resources_tools` of a
 * typed reply, unless the handler has filled it, and into `mcp` of any other, unless it is there.
 *
 * The hook `allowedTools` gets the `task_data` of a typed seed, or the whole body of any other. If it fails, the seed does.
 */
export function describeToolsInSeedReplies({ describe, allowedTools }: SeedTokenParts): RequestHandler {
  return function describeTools(request, response, next) {
    changeJson(response, next, (reply) => {
      const isTyped = Object.hasOwn(reply, 'resources_session_id');
      const member = isTyped ? 'resources_tools' : 'mcp';
      if (isTyped ? (reply[member] ?? null) !== null : Object.hasOwn(reply, member)) return reply;
      const { sessionID, body } = request;
      const tools = allowedTools(isTyped ? (body as { task_data?: unknown }).task_data : body);
      const describedBy = (allowed: unknown): JsonObject => ({
        ...reply,
        [member]: describe(sessionID, checkAllowed(allowed)),
      });
      return isPromise(tools) ? Promise.resolve(tools).then(describedBy) : describedBy(tools);
    });
    next();
  };
}

const allowedSchema = z.array(z.string()).nullable();

/**
 * What a hook says, which may hand on what its client has sent.
 *
 * @throws TypeError for what would make a token that allows everything unasked, or one that nobody can read
 */
function checkAllowed(allowed: unknown): readonly string[] | null {
  const { success, data } = allowedSchema.safeParse(allowed);
  if (!success) throw new TypeError('exposeToolsOverMcp(): allowedTools must return a list of names, or null for all');
  return data;
}

function isPromise<Value>(value: Value | PromiseLike<Value>): value is PromiseLike<Value> {
  return typeof (value as Partial<PromiseLike<Value>> | null | undefined)?.then === 'function';
}

/**
 * Lets a verdict take the tools that were called over MCP for what they are: clients know them as
 * `mcp__<server>__<tool>`, which stands in the `response.output` of a request to verify. The reply has the names as they came.
 */
export function renameToolsInVerdicts(serverName: string): RequestHandler {
  const prefix = `mcp__${serverName}__`;
  return function renameTools(request, response, next) {
    const sent = (request.body as { response?: { output?: unknown } } | undefined)?.response?.output;
    if (!Array.isArray(sent)) return next();
    const output: unknown[] = sent.map((item) =>
      isCall(item) && item.name.startsWith(prefix) ? { ...item, name: item.name.slice(prefix.length) } : item,
    );
    if (output.every((item, index) => item === sent[index])) return next();
    request.body = { ...request.body, response: { ...request.body.response, output } };
    changeJson(response, next, (reply) => {
      const { response: echoed } = reply as { response?: { output?: unknown } };
      if (!Array.isArray(echoed?.output)) return reply;
      const restored: unknown[] = echoed.output.map((item, index) => {
        const [before, after]: unknown[] = [sent[index], output[index]];
        return isCall(item) && isCall(before) && isCall(after) && item.name === after.name
          ? { ...item, name: before.name }
          : item;
      });
      return { ...reply, response: { ...echoed, output: restored } };
    });
    next();
  };
}

type JsonObject = Record<string, unknown>;

function isCall(item: unknown): item is { type: 'function_call'; name: string } {
  if (typeof item !== 'object' || item === null) return false;
  const { type, name } = item as { type?: unknown; name?: unknown };
  return type === 'function_call' && typeof name === 'string';
}

/** Changes the JSON object that a handler answers with, if it succeeds (2xx). What fails goes to the error handlers. */
function changeJson(
  response: Response,
  onError: (error: unknown) => void,
  change: (reply: JsonObject) => JsonObject | Promise<JsonObject>,
): void {
  const { json } = response;
  response.json = function changedJson(this: Response, reply: unknown) {
    response.json = json;
    const { statusCode } = response;
    if (statusCode < 200 || statusCode > 299 || typeof reply !== 'object' || reply === null || Array.isArray(reply)) {
      return json.call(response, reply);
    }
    const changed = change(reply as JsonObject);
    if (!(changed instanceof Promise)) return json.call(response, changed);
    changed.then((value) => json.call(response, value)).catch(onError);
    return response;
  } as Response['json'];
}
