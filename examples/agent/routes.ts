import { Router } from 'express';
import type { AgentSessions } from 'express-session-routing';
import { CookieJar, ResourcesSession } from 'express-session-routing/client';
import { Caller } from '../caller/caller.ts';
import { parse } from '../counter/bodies.ts';
import { awaited } from '../counter/routes.ts';
import { modelResponse, responseParams, row, type Row } from './bodies.ts';
import { respond, type AgentState } from './simple-agent.ts';

export interface AgentRoutesOptions {
  readonly sessions: AgentSessions<AgentState>;
  /** Where requests without an agent session find their tools. */
  readonly resourcesUrl: string;
  readonly modelUrl: string;
  /** Where the agent itself listens. */
  readonly ownUrl: () => string;
}

/** The routes of the agent besides those that open and close its sessions. */
export function agentRoutes({ sessions, resourcesUrl, modelUrl, ownUrl }: AgentRoutesOptions): Router {
  const routes = Router();

  routes.get(['/', '/health', '/healthz', '/livez', '/readyz'], (_req, res) => {
    res.json({ status: 'ok' });
  });

  routes.post(
    '/v1/responses',
    awaited(async (req, res) => {
      const session = sessions.current(req);
      const params = parse(req.body, responseParams);
      const model = new Caller(modelUrl);
      if (session !== undefined) {
        res.json(await respond(params, session.tools, model));
        return;
      }
      // The older way: the caller's cookies are those of the resources server, and it gets what the tools made of them.
      const jar = new CookieJar();
      jar.merge((req.headers.cookie ?? '').split(';'));
      const { 'agent.sid': _, ...before } = jar.toRecord(); // the agent's own is for nobody else
      jar.replace(before);
      const caller = new Caller(resourcesUrl, { jar });
      const response = await respond(params, { caller, headers: {} }, model);
      for (const [name, value] of Object.entries(jar.toRecord())) {
        if (before[name] !== value) res.append('Set-Cookie', `${name}=${value}; Path=/; HttpOnly; SameSite=Lax`);
      }
      res.json(response);
    }),
  );

  routes.post(
    '/run',
    awaited(async (req, res) => {
      res.json(await runFlatEpisode(parse(req.body, row), resourcesUrl, ownUrl()));
    }),
  );
  return routes;
}

/**
 * An episode of the older kind, from one flat row: its session is named by the resources server's cookie, and ends with
 * the verdict.
 *
 * @returns the verdict
 * @throws SessionClientError or CallFailed if a server refuses or cannot be reached
 */
async function runFlatEpisode(task: Row, resourcesUrl: string, ownUrl: string): Promise<unknown> {
  const resources = await ResourcesSession.openUntyped({ url: resourcesUrl, body: task });
  // To itself, by whichever worker gets it.
  const self = new Caller(ownUrl);
  self.jar.replace(resources.cookies);
  const response = modelResponse.parse(await self.post('/v1/responses', task.responses_create_params));
  resources.useCookies(self.jar.toRecord());
  return resources.verify({ ...task, response });
}
