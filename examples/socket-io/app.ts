// Socket.IO without sticky connections, as every worker runs it. It may also run alone: `npx tsx examples/socket-io/app.ts`.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import express from 'express';
import { fromQuery, sessionKind, sessionRouting } from 'express-session-routing';
import { serveCounters } from './counters.ts';

const { PORT = '3000', ROUTING } = process.env;

// Every request of a connection but its first has the connection's ID in its query. That of another path is the app's.
const routing = sessionRouting({
  kind: sessionKind({ from: [fromQuery('sid', { path: '/socket.io/' })], idleSeconds: 0 }),
  routing: ROUTING !== 'off', // off: every worker answers for itself, which shows what goes wrong then
});

const app = express();
app.get('/health', (_req, res) => {
  res.json({ worker: process.pid });
});

const server = createServer(app);
const io = serveCounters(server, routing);
// Tells which worker served a request: only for you to see.
io.engine.use((req: IncomingMessage, res: ServerResponse, next: () => void) => {
  res.setHeader('X-Served-By', `worker ${process.pid}${routing.isForwarded(req) ? ', forwarded' : ''}`);
  next();
});

await routing.attach(server); // Express sees no request of Socket.IO's, so the routing stands in front of both
server.listen({ host: '127.0.0.1', port: Number(PORT) }, () => {
  console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
});
