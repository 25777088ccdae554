import type { IncomingMessage, ServerResponse } from 'node:http';
import express, { Router, type RequestHandler } from 'express';
import type { z } from 'zod';
import { refusalHandler } from './errors.ts';
import {
  agentSessionCloseSchema,
  agentSessionPaths,
  agentSessionSeedSchema,
  bodyIssues,
  type AgentSessionClose,
  type AgentSessionReceipt,
  type AgentSessionSeed,
  type BodyIssue,
} from './protocol.ts';
import { rolloutPaths } from './route-pattern.ts';
import type { Middleware } from './session-cookie.ts';

/** What the routes of agent sessions call. */
export interface AgentRouteHandlers {
  /** Most bytes that a body may have: those of the routing, which is known once there are requests. */
  bodyLimit(): number;
  seed(request: IncomingMessage, body: AgentSessionSeed): Promise<{ agent_session_id: string }>;
  close(request: IncomingMessage, body: AgentSessionClose): Promise<AgentSessionReceipt>;
}

/**
 * The routes that open and close agent sessions, bare and under a rollout prefix.
 *
 * They parse their bodies themselves, unless the app has. A body that is refused is a 422 that says why, as FastAPI does; a
 * refusal is its problem document; any other error goes to the app's error handlers.
 */
export function agentRoutes({ bodyLimit, seed, close }: AgentRouteHandlers): Middleware {
  const routes = Router();
  let parser: RequestHandler | undefined;
  const parse: RequestHandler = function parseBody(request, response, next) {
    parser ??= express.json({ limit: bodyLimit() });
    const { body } = request;
    parser(request, response, (error) => {
      // Express 4 puts an empty object in the place of a body that it does not parse, and Express 5 nothing.
      if (body === undefined && !request.is('application/json')) request.body = undefined;
      if (error?.type !== 'entity.parse.failed') return next(error);
      refuseBody(response, [{ type: 'json_invalid', loc: ['body'], msg: error.message }]);
    });
  };
  routes.post(rolloutPaths(agentSessionPaths.seed), parse, route(agentSessionSeedSchema, seed));
  routes.post(rolloutPaths(agentSessionPaths.close), parse, route(agentSessionCloseSchema, close));
  routes.use(refusalHandler);
  return routes as unknown as Middleware;
}

/** A handler that answers with what comes of a body. */
function route<Schema extends z.ZodType>(
  schema: Schema,
  answer: (request: IncomingMessage, body: z.output<Schema>) => Promise<object>,
): RequestHandler {
  return function agentSessionRoute(request, response, next) {
    const { success, data, error } = schema.safeParse(request.body, { reportInput: true });
    if (!success) return refuseBody(response, bodyIssues(error.issues));
    // Express 4 does not await. What the app makes of the reply may throw, too.
    answer(request, data)
      .then((reply) => void response.json(reply))
      .catch((error: unknown) => next(errorOf(error)));
  };
}

/**
 * What a hook has thrown, for Express, which takes `'route'`, `undefined` and the like for no error. An object is passed on
 * as it is: it may be an error of another realm, or have no prototype to become a text by.
 */
function errorOf(thrown: unknown): unknown {
  const isObject = (typeof thrown === 'object' && thrown !== null) || typeof thrown === 'function';
  return isObject ? thrown : new Error(`A hook threw ${String(thrown)}`);
}

function refuseBody(response: ServerResponse & { json(body: unknown): unknown }, detail: BodyIssue[]): void {
  response.statusCode = 422;
  response.json({ detail });
}
