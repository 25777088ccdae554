// The environment server: runs episodes against a resources server and an agent. It keeps nothing, so it needs no routing.
// `RESOURCES_URL=http://127.0.0.1:3000 AGENT_URL=http://127.0.0.1:3001 PORT=3003 npx tsx examples/episode/app.ts`.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import express, { type Request, type Response } from 'express';
import fetch from 'node-fetch';
import { newConnections } from '../caller/caller.ts';
import { parse } from '../counter/bodies.ts';
import { answerError, awaited } from '../counter/routes.ts';
import { typedRun } from './bodies.ts';
import { runTypedEpisode } from './typed-episode.ts';

const { PORT = '3003', RESOURCES_URL = 'http://127.0.0.1:3000', AGENT_URL = 'http://127.0.0.1:3001' } = process.env;

const connections = newConnections();
const app = express();

app.get(['/', '/health', '/healthz', '/livez', '/readyz'], (_req, res) => {
  res.json({ status: 'ok' });
});

app.post(
  '/run',
  express.raw({ type: () => true, limit: '50mb' }),
  awaited(async (req, res) => {
    const bytes: Buffer = Buffer.isBuffer(req.body) ? req.body : Buffer.alloc(0);
    if (isTyped(bytes)) await answerTyped(JSON.parse(bytes.toString()), res);
    else await relay(req, bytes, res);
  }),
);

/** Whether a body asks for an episode. Anything else is a flat row, or is for the agent to refuse. */
function isTyped(bytes: Buffer): boolean {
  try {
    const body: unknown = JSON.parse(bytes.toString());
    return typeof body === 'object' && body !== null && 'episode_id' in body;
  } catch {
    return false;
  }
}

async function answerTyped(body: unknown, res: Response): Promise<void> {
  const served = { local: 0, forwarded: 0 };
  const reply = await runTypedEpisode(parse(body, typedRun), {
    resourcesUrl: RESOURCES_URL,
    agentUrl: AGENT_URL,
    connections,
    onReply({ stage, headers }) {
      const servedBy = headers.get('x-served-by');
      if (servedBy !== null && stage !== 'seed') served[/forwarded/.test(servedBy) ? 'forwarded' : 'local'] += 1;
    },
    onCleanupFailure: ({ message }) => console.error(message),
  });
  // Only for `npm start` to count.
  res.set('X-Calls', `local ${served.local}, forwarded ${served.forwarded}`).json(reply);
}

/** The older way: the agent runs the episode, and the environment server passes bytes and cookies on. */
async function relay(req: Request, body: Buffer, res: Response): Promise<void> {
  const { 'content-type': type, cookie } = req.headers;
  const reply = await fetch(`${AGENT_URL}/run`, {
    method: 'POST',
    headers: { ...(type && { 'Content-Type': type }), ...(cookie && { Cookie: cookie }) },
    body,
    redirect: 'manual',
    agent: connections,
  });
  res.status(reply.status).type(reply.headers.get('content-type') ?? 'application/octet-stream');
  for (const setCookie of reply.headers.raw()['set-cookie'] ?? []) res.append('Set-Cookie', setCookie);
  res.send(Buffer.from(await reply.arrayBuffer()));
}

app.use(answerError);

const server = createServer(app).listen(Number(PORT), '127.0.0.1', () => {
  console.log(`The environment listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
});
