import { toNodeHandler } from '@modelcontextprotocol/node';
import {
  createMcpHandler,
  isLegacyRequest,
  Server,
  WebStandardStreamableHTTPServerTransport,
  type McpHandlerRequestOptions,
} from '@modelcontextprotocol/server';
import type { Express, RequestHandler, Response } from 'express';
import { AsyncLocalStorage } from 'node:async_hooks';
import { setMaxListeners } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { z } from 'zod';
import { checked, functionSchema } from './checked.ts';
import { describeToolsInSeedReplies, renameToolsInVerdicts, type AllowedTools } from './mcp-replies.ts';
import { McpTools, type McpTool } from './mcp-tools.ts';
import { rolloutPaths } from './route-pattern.ts';
import type { SessionRouting } from './routing.ts';
import { postRoutesOf } from './tool-routes.ts';

/** What `exposeToolsOverMcp()` takes. */
export interface McpToolsOptions {
  /** The routing of the app, of the kind `resources()`. */
  routing: SessionRouting;
  /** The name of the server, for clients and in the names that they give the tools (`mcp__<server>__<tool>`). Default: `resources`. */
  serverName?: string;
  /** What clients are told of tools, by name. Default: that each takes any JSON object. */
  tools?: Record<string, McpTool>;
  /** Names of routes that are no tools, besides those that seed, verify and close sessions. Default: none. */
  exclude?: readonly string[];
  /**
   * Decides which tools the token of a new session lets its holder call: names, or null for all. It gets the `task_data` of
   * a typed seed, or the whole body of any other. If it fails, so does the seed. Default: all.
   */
  allowedTools?: AllowedTools;
}

const schema = z.strictObject({
  routing: z.custom<SessionRouting>(
    (value) => typeof value === 'function' && (value as Partial<SessionRouting>).tokens !== undefined,
    'must be a sessionRouting() of the kind resources()',
  ),
  serverName: z
    .string()
    .regex(/^[\w.-]+$/, 'must be a word')
    .default('resources'),
  tools: z
    .record(z.string(), z.strictObject({ description: z.string().optional(), input: z.unknown().optional() }))
    .default({}),
  exclude: z.array(z.string()).readonly().default([]),
  allowedTools: functionSchema<AllowedTools>().default(() => () => null),
});

/** A request to the MCP endpoint that is being served. */
interface Served {
  readonly request: IncomingMessage;
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

/**
 * Exposes the tool routes of a resources server as MCP tools, on `/mcp` and below it, bare and under a rollout prefix: every
 * POST route without parameters whose path is not that of a seed, close, verdict or other part of the protocol, named by its
 * path. A tool that is called runs its route, in the session that the request's token names.
 *
 * The endpoint is stateless Streamable HTTP with JSON replies, for clients of any revision of the protocol. It checks neither
 * `Host` nor `Origin`, and lists tools to whoever asks; a call needs a session token (header field
 * `X-NeMo-Gym-Session-Token`), which the replies to seeds carry from now on.
 *
 * To be called behind the routing, its session and the body parser, and ahead of the routes.
 *
 * @param app the app on which all of these are mounted
 * @throws TypeError for an option that is refused or unknown, a tool's input schema that is none of an object among them;
 *   for what is no Express app, and for one that has the route for seeds already
 */
export function exposeToolsOverMcp(app: Express, options: McpToolsOptions): void {
  const { routing, serverName, tools, exclude, allowedTools } = checked('exposeToolsOverMcp()', schema, options);
  const { tokens, kind } = routing;
  const places = kind.tokens;
  if (tokens === undefined || places === undefined) throw new TypeError('exposeToolsOverMcp(): the kind has no tokens');
  const { header, seedPath, mcpPath } = places;
  checkApp(app, kind.basePath + seedPath);
  const mcpTools = new McpTools({ app, adopt: routing.adopt, basePath: kind.basePath, tokens, places, tools, exclude });
  const serving = new AsyncLocalStorage<Served>();

  const describe = describeToolsInSeedReplies({
    allowedTools,
    describe: (sessionId, allowed) => ({
      server_name: serverName,
      url_path: mcpPath,
      transport: 'http',
      headers: { [header]: tokens.mint(sessionId, allowed) },
    }),
  });
  app.post(mounted(seedPath), describe);
  app.post(mounted('/verify'), renameToolsInVerdicts(serverName));
  app.use(mounted(mcpPath), endpoint());

  function mounted(path: string): string[] {
    return rolloutPaths(path).map((each) => kind.basePath + each);
  }

  function endpoint(): RequestHandler {
    const modern = createMcpHandler(newServer, { legacy: 'reject' });
    const handle = toNodeHandler({
      async fetch(request, options) {
        const isLegacy = await isLegacyRequest(request.clone(), options?.parsedBody);
        return isLegacy ? serveLegacy(request, options) : modern.fetch(request, options);
      },
    });
    return function mcpEndpoint(request, response, next) {
      if (request.method !== 'POST') return refuseMethod(response);
      const leaving = new AbortController();
      setMaxListeners(0, leaving.signal); // each call of a batch listens
      response.once('close', () => leaving.abort());
      serving.run({ request, signal: leaving.signal }, () => {
        handle(request, response, request.body).catch(next);
      });
    };
  }

  /** Serves a request of the protocol's revisions up to 2025-11-25, for which a new server stands for each. */
  async function serveLegacy(
    request: globalThis.Request,
    options?: McpHandlerRequestOptions,
  ): Promise<globalThis.Response> {
    const server = newServer();
    const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true });
    await server.connect(transport);
    try {
      return await transport.handleRequest(request, options);
    } finally {
      await server.close();
    }
  }

  function newServer(): Server {
    const { request, signal } = serving.getStore() as Served;
    const server = new Server({ name: serverName, version: '1.0.0' }, { capabilities: { tools: {} } });
    const token = request.headers[header.toLowerCase()]?.toString();
    server.setRequestHandler('tools/list', () => ({ tools: mcpTools.list(token) }));
    server.setRequestHandler('tools/call', ({ params }) =>
      mcpTools.call(params.name, params.arguments ?? {}, { token, request, signal }),
    );
    return server;
  }
}

/**
 * @throws TypeError for what would expose nothing: a router, whose routes cannot be called as the app calls them, or an app
 *   whose replies to seeds would not get to know of tokens any more
 */
function checkApp(app: Express, seedPath: string): void {
  if (typeof app !== 'function' || typeof (app as { set?: unknown }).set !== 'function') {
    throw new TypeError(
      'exposeToolsOverMcp(): the first argument must be the Express app, and no router: the app on which the routing and ' +
        'its session are mounted',
    );
  }
  const seed = seedPath.replace(/\/$/, '').toLowerCase();
  if (postRoutesOf(app).some((path) => path.toLowerCase() === seed)) {
    throw new TypeError(
      `exposeToolsOverMcp(): the app has the route POST ${seedPath} already; call it once, and ahead of the routes`,
    );
  }
}

/** Refuses what is no POST: without sessions there is no stream to open, and nothing to delete. */
function refuseMethod(response: Response): void {
  response
    .status(405)
    .set('Allow', 'POST')
    .json({
      jsonrpc: '2.0',
      error: { code: -32_000, message: 'Method not allowed.' },
      id: null,
    });
}
