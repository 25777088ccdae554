// The app that every arrangement runs: the counter of examples/counter, on express-session and its MemoryStore. Nothing but how it
// listens, and who makes the session middleware, depends on the arrangement.
import { once } from 'node:events';
import { createServer } from 'node:http';
import { setupWorker } from '@socket.io/sticky';
import express, { type Request } from 'express';
import session from 'express-session';
import { resources, sessionRouting } from 'express-session-routing';
import { Server } from 'socket.io';
import { close, increment, parse, typedSeed, untypedSeed, verify } from '../../examples/counter/bodies.ts';
import { Counters } from '../../examples/counter/counter.ts';
import { answerError } from '../../examples/counter/routes.ts';
import { cookieName } from './proxies.ts';

const { PORT, START, STRICT } = process.env;
const secret = 'for measuring only';
const sessionOptions = { resave: false, saveUninitialized: false };

const app = express();
const routing = START === 'routed' ? sessionRouting({ secret, name: cookieName, kind: resources() }) : undefined;
if (routing) {
  app.use(routing);
  app.use(routing.session(sessionOptions));
} else {
  app.use(session({ ...sessionOptions, secret, name: cookieName }));
}
app.use((req, res, next) => {
  res.set('X-Served-By', `worker ${process.pid}${routing?.isForwarded(req) ? ', forwarded' : ''}`);
  next();
});
app.use(express.json());

const counters = new Counters({ strict: STRICT === '1' });

/** A session that a body named is kept by that name, which its express-session remembers. Any other is kept by the cookie's. */
const counterOf = (req: Request): string => (req.session as { counter?: string }).counter ?? req.sessionID;

app.all('/health', (_req, res) => {
  res.json({ status: 'ok' });
});
app.post('/seed_session', (req, res) => {
  const seed = parse(req.body, typedSeed, untypedSeed);
  const counter = 'initial_count' in seed ? req.sessionID : seed.resources_session_id;
  if ('initial_count' in seed) counters.start(counter, seed.initial_count);
  else counters.seed(seed);
  Object.assign(req.session, { counter }); // only for a session that holds something does express-session set a cookie
  res.json({ resources_session_id: counter });
});
app.post('/increment_counter', (req, res) => {
  counters.add(counterOf(req), parse(req.body, increment).count);
  res.json({ success: true });
});
app.post('/get_counter_value', (req, res) => {
  res.json({ count: counters.read(counterOf(req)) });
});
app.post('/verify', (req, res) => {
  res.json({ reward: counters.reward(counterOf(req), parse(req.body, verify).expected_count) });
});
app.post('/close_session', (req, res) => {
  const body = parse(req.body, close);
  counters.close(body);
  res.json({ resources_session_id: body.resources_session_id });
});
app.use(answerError);

const listening = (): void => void process.send?.({ type: 'listening' });
const address = { host: '127.0.0.1', port: Number(PORT) };
if (routing) {
  await routing.listen(app, address);
} else if (START === 'sticky') {
  // The primary listens, and hands the connections over.
  const server = createServer(app);
  setupWorker(new Server(server));
  listening();
} else {
  await once(app.listen(address.port, address.host), 'listening');
  listening();
}
process.once('disconnect', () => process.exit());
