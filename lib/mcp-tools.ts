import type { Express } from 'express';
import type { Session } from 'express-session';
import { STATUS_CODES, type IncomingMessage, type ServerResponse } from 'node:http';
import { z } from 'zod';
import { refusalHandler } from './errors.ts';
import { InProcessClient, type InProcessReply } from './in-process.ts';
import type { SessionTokenPlaces } from './session-kind.ts';
import type { SessionToken, SessionTokens } from './session-token.ts';
import { postRoutesOf } from './tool-routes.ts';
import { warn } from './warn.ts';

/** What clients are told of a tool. */
export interface McpTool {
  /** What the tool does, for the model that may call it. */
  description?: string | undefined;
  /**
   * What the tool takes: a zod schema of an object, or the JSON Schema of one. It is told to clients and not applied: the
   * route checks its body itself. Default: any object.
   */
  input?: unknown;
}

/** What the tools of a server are made of. */
export interface McpToolsParts {
  readonly app: Express;
  /** Lets the app serve a request of its own making in a session. */
  readonly adopt: (request: IncomingMessage, response: ServerResponse, sessionId: string) => void;
  /** Path below which the routes are mounted. */
  readonly basePath: string;
  readonly tokens: SessionTokens;
  readonly places: SessionTokenPlaces;
  readonly tools: Readonly<Record<string, McpTool>>;
  readonly exclude: readonly string[];
}

/** The call of a tool. */
export interface McpToolCall {
  /** The session token, as it came. */
  readonly token: string | undefined;
  /** The request with which it came. */
  readonly request: IncomingMessage;
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

/** A tool as `tools/list` tells of it. */
export interface ListedTool {
  name: string;
  description?: string;
  inputSchema: { type: 'object'; [member: string]: unknown };
}

/** What a call results in. */
export interface McpToolResult {
  content: { type: 'text'; text: string }[];
  structuredContent?: Record<string, unknown>;
  isError?: boolean;
  [member: string]: unknown;
}

/** Routes of the protocol of resources servers, which are no tools wherever seeds and closes are. */
const PROTOCOL_ROUTES = ['verify', 'seed_session', 'close_session', 'sandbox_access', 'aggregate_metrics', 'mcp'];

/**
 * Fields of a request to the endpoint that say nothing of the request to a tool's route: its own framing and content, what
 * is asked of a reply that nobody passes on, and the cookie, which the token beats.
 */
const OWN_FIELDS =
  /^(accept(-.*)?|connection|content-.*|cookie|expect|if-.*|keep-alive|last-event-id|mcp-.*|origin|range|te|trailer|transfer-encoding|upgrade)$/i;

/** What a tool takes of which nothing is known. */
const anyObject: ListedTool['inputSchema'] = { type: 'object', additionalProperties: true };

/** What is known of a request to a tool's route. */
interface Called {
  readonly sessionId: string;
  /** The request, as the app saw it. */
  request?: IncomingMessage;
}

/** The tool routes of a resources server, as MCP tools. */
export class McpTools {
  readonly #parts: McpToolsParts;
  readonly #schemas: ReadonlyMap<string, ListedTool['inputSchema']>;
  readonly #excluded: ReadonlySet<string>;
  readonly #client: InProcessClient<Called>;

  /** @throws TypeError for an input schema that is not one of an object */
  constructor(parts: McpToolsParts) {
    const { app, adopt, tools, exclude, places } = parts;
    this.#parts = parts;
    this.#schemas = new Map(Object.entries(tools).map(([name, { input }]) => [name, inputSchema(name, input)]));
    const own = [places.seedPath, places.closePath, places.mcpPath].map((path) => path.replace(/^\/|\/$/g, ''));
    this.#excluded = new Set([...PROTOCOL_ROUTES, ...own, ...exclude].map((name) => name.toLowerCase()));
    this.#client = new InProcessClient((request, response, called) => {
      called.request = request;
      try {
        adopt(request, response, called.sessionId);
      } catch (error) {
        return refusalHandler(error, request, response, () => response.destroy());
      }
      app(request, response);
    });
  }

  /** The tools; only those that a token allows, if it is valid. */
  list(token: string | undefined): ListedTool[] {
    const allowed = this.#read(token)?.tools ?? null;
    const { tools } = this.#parts;
    return this.#names()
      .filter((name) => allowed === null || allowed.includes(name))
      .map((name) => {
        const description = Object.hasOwn(tools, name) ? tools[name]?.description : undefined;
        return {
          name,
          ...(description !== undefined && { description }),
          inputSchema: this.#schemas.get(name) ?? anyObject,
        };
      });
  }

  /** Calls a tool in the session that the token names. What goes wrong is the result, for the model to read. */
  async call(
    name: string,
    args: Record<string, unknown>,
    { token, request, signal }: McpToolCall,
  ): Promise<McpToolResult> {
    const names = this.#names();
    if (!names.includes(name)) {
      return failure(`Unknown tool: '${name}'. Available tools: [${names.map((each) => `'${each}'`).join(', ')}]`);
    }
    if (token === undefined || token === '') {
      return failure(`Missing ${this.#parts.places.header} for Gym MCP tool call.`);
    }
    const session = this.#read(token);
    if (session === undefined) return failure('Invalid Gym MCP session token.');
    if (session.tools !== null && !session.tools.includes(name)) {
      return failure(`Tool '${name}' is not allowed for this session.`);
    }
    const called: Called = { sessionId: session.sid };
    try {
      const reply = await this.#client.send({
        context: called,
        method: 'POST',
        target: `${this.#parts.basePath}/${name}`,
        fields: [
          ...passedOn(request.rawHeaders, this.#parts.places.header.toLowerCase()),
          'Content-Type',
          'application/json',
          'Accept',
          'application/json',
        ],
        body: JSON.stringify(args),
        onBehalfOf: request,
        signal,
      });
      // The route has not seen the session, and so has answered of none.
      if (reply.status < 300 && hasSession(request) && !hasSession(called.request)) return sessionless(name);
      return resultOf(name, reply);
    } catch {
      return failure(`HTTP 500 from POST /${name}: the route broke off before its reply was complete`);
    } finally {
      await reloaded(request);
    }
  }

  #names(): string[] {
    const { app, basePath } = this.#parts;
    const root = `${basePath}/`;
    return postRoutesOf(app)
      .filter((path) => path.startsWith(root))
      .map((path) => path.slice(root.length))
      .filter((name) => !this.#excluded.has(name.toLowerCase()));
  }

  #read(token: string | undefined): SessionToken | undefined {
    return token === undefined ? undefined : this.#parts.tokens.read(token);
  }
}

/** Whether an express-session has seen a request. To look does not use the session. */
function hasSession(request: IncomingMessage | undefined): boolean {
  return request !== undefined && 'sessionID' in request;
}

/** Of an app that is a part of the one which has the session. */
function sessionless(name: string): McpToolResult {
  const text = 'no session is mounted on the app that exposeToolsOverMcp() was given, ahead of the route';
  warn(`A tool was called without its session: POST /${name}.`, new Error(text));
  return failure(`HTTP 500 from POST /${name}: ${text}`);
}

function failure(text: string): McpToolResult {
  return { content: [{ type: 'text', text }], isError: true };
}

/** What a route has answered, as the result of a tool. */
function resultOf(name: string, { status, contentType, text }: InProcessReply): McpToolResult {
  const json = /^application\/([\w.-]+\+)?json\b/i.test(contentType) ? parsed(text) : undefined;
  if (status < 200 || status > 299) {
    return failure(`HTTP ${status} from POST /${name}: ${detailOf(json, status, contentType, text)}`);
  }
  const content: McpToolResult['content'] = [{ type: 'text', text: json === undefined ? text : JSON.stringify(json) }];
  return isObject(json) ? { content, structuredContent: json } : { content };
}

/** What a reply says that went wrong: `detail`, as FastAPI and problem documents have it, or all that it says. */
function detailOf(json: unknown, status: number, contentType: string, text: string): string {
  if (isObject(json) && json.detail !== undefined) {
    return typeof json.detail === 'string' ? json.detail : JSON.stringify(json.detail);
  }
  if (json !== undefined) return typeof json === 'string' ? json : JSON.stringify(json);
  return text === '' || /^text\/html\b/i.test(contentType) ? (STATUS_CODES[status] ?? '') : text;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** The fields of a request to the endpoint that a route is to see: not the token either, which has done its work. */
function passedOn(rawHeaders: readonly string[], tokenField: string): string[] {
  const fields: string[] = [];
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    const [name = '', value = ''] = rawHeaders.slice(index, index + 2);
    if (!OWN_FIELDS.test(name) && name.toLowerCase() !== tokenField) fields.push(name, value);
  }
  return fields;
}

/**
 * Has the session of the request to the endpoint read from its store again: the route may have changed it, and
 * express-session would save it as it was before (`resave`).
 */
async function reloaded(request: IncomingMessage & { session?: Session | null }): Promise<void> {
  const { session } = request;
  if (!session) return;
  await new Promise<void>((resolve) => session.reload(() => resolve())); // fails for one that was never saved
}

/** @throws TypeError for what is no schema of an object */
function inputSchema(name: string, input: unknown): ListedTool['inputSchema'] {
  if (input === undefined) return anyObject;
  const schema =
    input instanceof z.core.$ZodType ? z.toJSONSchema(input, { io: 'input', unrepresentable: 'any' }) : input;
  if (isObject(schema)) {
    const { type = 'object' } = schema;
    if (type === 'object' && !('_zod' in schema) && !('_def' in schema)) return { ...schema, type };
  }
  throw new TypeError(
    `exposeToolsOverMcp(): the input of the tool "${name}" must be a schema of zod 4 for an object, or a JSON Schema`,
  );
}
