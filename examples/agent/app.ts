// An agent that calls the tools of a resources server, as every worker runs it. It may also run alone:
// `RESOURCES_URL=http://127.0.0.1:3000 MODEL_URL=http://127.0.0.1:3002 PORT=3001 npx tsx examples/agent/app.ts`.
import type { AddressInfo } from 'node:net';
import express from 'express';
import { agent, AgentSessions, refusalHandler, sessionRouting } from 'express-session-routing';
import { answerError, servedBy } from '../counter/routes.ts';
import { agentRoutes } from './routes.ts';
import { closeSession, openSession, type AgentState } from './simple-agent.ts';

const { PORT = '3001', SESSION_SECRET = 'for development only', WINDOW_SECONDS = '300' } = process.env;
const { RESOURCES_URL = 'http://127.0.0.1:3000', MODEL_URL = 'http://127.0.0.1:3002' } = process.env;

const sessions = new AgentSessions<AgentState>({
  seed: openSession,
  close: closeSession,
  closeRetryWindowSeconds: Number(WINDOW_SECONDS),
});
const routing = sessionRouting({ secret: SESSION_SECRET, kind: agent({ sessions }) });

const app = express();
app.use(routing);
app.use(routing.session({ resave: false, saveUninitialized: false }));
app.use(servedBy(routing));
app.use(sessions.router());
app.use(express.json({ limit: '50mb' }));
const ownUrl = (): string => `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
const routes = agentRoutes({ sessions, resourcesUrl: RESOURCES_URL, modelUrl: MODEL_URL, ownUrl });
app.use('/ng-rollout/:rolloutId/training-token-capture', routes);
app.use('/ng-rollout/:rolloutId', routes);
app.use(routes);
app.use((_req, res) => {
  res.status(404).json({ detail: 'Not Found' });
});
app.use(refusalHandler);
app.use(answerError);

const server = await routing.listen(app, { host: '127.0.0.1', port: Number(PORT) });
console.log(`Worker ${process.pid} listens on ${ownUrl()}`);
