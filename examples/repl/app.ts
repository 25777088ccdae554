// A JavaScript REPL for each session, as every worker runs it. It may also run alone: `npx tsx examples/repl/app.ts`.
import type { AddressInfo } from 'node:net';
import express from 'express';
import { resources, sessionRouting } from 'express-session-routing';
import { z } from 'zod';
import { Repls } from './repls.ts';

const { PORT = '3000', SESSION_SECRET = 'for development only', WINDOW_SECONDS = '300' } = process.env;
const closeRetryWindowSeconds = Number(WINDOW_SECONDS);

// A session begins with its first call, without a seed, so its claim ends a window after its last call. The REPL's
// time runs from within that call, so the REPL never outlives the claim.
const routing = sessionRouting({ secret: SESSION_SECRET, kind: resources({ closeRetryWindowSeconds }) });
const repls = new Repls(closeRetryWindowSeconds);
const evalBody = z.object({ code: z.string() });

const app = express();
app.use(routing);
app.use(routing.session({ resave: false, saveUninitialized: false }));
app.use(express.json({ limit: '50mb' }));

app.get('/health', (_req, res) => {
  res.json({ worker: process.pid, repls: repls.size });
});

app.post('/eval', (req, res) => {
  const body = evalBody.safeParse(req.body);
  if (body.success) res.json(repls.evaluate(req.sessionID, body.data.code));
  else res.status(422).json({ detail: body.error.issues });
});

app.post('/close_session', (req, res) => {
  repls.drop(req.sessionID);
  res.json({});
});

// This server runs any code that it is sent, so nobody but this machine may reach it.
const server = await routing.listen(app, { host: '127.0.0.1', port: Number(PORT) });
console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
