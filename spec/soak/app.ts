// The app of the soak, as every worker runs it: a strict counter, with its tools over MCP, streams, uploads and an
// upgrade. Whatever answers for a session says which worker it is. Its primary asks it for what it holds.
import express from 'express';
import { randomInt } from 'node:crypto';
import { createServer, type IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { z } from 'zod';
import { BoundedMap } from '../../lib/bounded-map.ts';
import { ClaimFiles } from '../../lib/claim-files.ts';
import { ClosedResourcesSessionRecords, resources, sessionRouting } from '../../lib/index.ts';
import { exposeToolsOverMcp } from '../../lib/mcp.ts';
import type { WorkerSample } from './samples.ts';

// What a worker remembers of the latest 10,000 claims, cookies and connections would fill up all through the run, and look
// like a leak. So it may remember a few only, and what is remembered is also forgotten.
const remembered = 200;
const { set } = BoundedMap.prototype;
BoundedMap.prototype.set = function setFew<Key, Value>(this: BoundedMap<Key, Value>, key: Key, value: Value) {
  const [oldest] = this.size >= remembered ? this.keys() : [];
  if (oldest !== undefined) this.delete(oldest);
  return set.call(this, key, value) as BoundedMap<Key, Value>;
};

const closeRetryWindowSeconds = Number(process.env['WINDOW_SECONDS']);
const worker = process.pid;
const routing = sessionRouting({ secret: 'a secret for the soak', kind: resources({ closeRetryWindowSeconds }) });

// To see the run fail: a worker now and then takes for its own what another claims, or nobody.
if (process.env['SABOTAGE'] === '1') {
  const { find } = ClaimFiles.prototype;
  ClaimFiles.prototype.find = function findWrongly(sessionId) {
    return randomInt(300) === 0 ? routing.workerId : find.call(this, sessionId);
  };
}

const counts = new Map<string, number>();
const closed = new ClosedResourcesSessionRecords<{ readonly count: number | undefined }>({ closeRetryWindowSeconds });
const adding = z.object({ amount: z.int() });

const app = express();
app.set('env', 'test'); // Express prints errors otherwise, and odd bytes make many
app.use(routing);
app.use(routing.session({ resave: false, saveUninitialized: false }));
app.use(express.json());
exposeToolsOverMcp(app, {
  routing,
  serverName: 'soak',
  tools: { add: { description: 'Adds to the count', input: adding }, read: { description: 'Tells the count' } },
});

app.post('/seed_session', (req, res) => {
  if (closed.get(req.sessionID) !== undefined) return void res.status(409).json({ detail: 'closed', worker });
  if (!counts.has(req.sessionID)) counts.set(req.sessionID, 0);
  const { resources_session_id: id } = req.body;
  res.json(id === undefined ? { worker } : { worker, resources_session_id: id, resources_tools: null });
});
app.post('/add', (req, res) => {
  const count = counts.get(req.sessionID);
  if (count === undefined) return void res.status(409).json({ detail: 'no counter', worker });
  counts.set(req.sessionID, count + adding.parse(req.body).amount);
  res.json({ worker });
});
app.post('/read', (req, res) => {
  const count = counts.get(req.sessionID);
  if (count === undefined) return void res.status(409).json({ detail: 'no counter', worker });
  res.json({ worker, count });
});
// Both may be repeated: the first one's answer stands.
app.post(['/verify', '/close_session'], (req, res) => {
  const record = closed.close(req.sessionID, { count: counts.get(req.sessionID) });
  counts.delete(req.sessionID);
  res.json({ worker, ...record });
});
app.post('/upload', async (req, res) => {
  let bytes = counts.has(req.sessionID) ? 0 : NaN;
  for await (const chunk of req as AsyncIterable<Buffer>) bytes += chunk.length;
  res.json({ worker, bytes });
});
app.get('/stream', (req, res) => {
  const ticks = Number(req.query['ticks']);
  if (!counts.has(req.sessionID)) return void res.status(409).json({ detail: 'no counter', worker });
  res.type('text/plain').write(`${worker}\n`);
  let tick = 0;
  const timer = setInterval(() => {
    res.write(`${tick++}\n`);
    if (tick < ticks) return;
    clearInterval(timer);
    res.end('end\n');
  }, 20);
  res.once('close', () => clearInterval(timer));
});

const server = createServer(app);
server.keepAliveTimeout = 0; // or a client's next request might meet the end of its idle connection
server.on('upgrade', (_request: IncomingMessage, socket: Duplex) => {
  socket.on('error', () => socket.destroy());
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n${worker}\n`);
  socket.pipe(socket);
});
await routing.attach(server);
server.listen({ host: '127.0.0.1', port: Number(process.env['PORT']) });

process.on('message', () => {
  globalThis.gc?.();
  globalThis.gc?.();
  const { heapUsed, rss } = process.memoryUsage();
  const sample: WorkerSample = {
    pid: worker,
    workerId: routing.workerId,
    heapBytes: heapUsed,
    rssBytes: rss,
    handles: process.getActiveResourcesInfo(),
    counters: counts.size,
    closed: closed.size,
  };
  process.send?.(sample);
});
