import express from 'express';
import expressSession from 'express-session';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:http';
import { resources } from '../../lib/session-kinds.ts';
import { sessionRouting } from '../../lib/session-routing.ts';

// One app twice: with the routing (a runtime directory is in the environment), and with express-session alone.
const secret = 'benchmark';
const options = { resave: false, saveUninitialized: false } as const;
const app = express();
const server = createServer(app);
if (process.argv[2] === 'routed') {
  const routing = sessionRouting({ secret, kind: resources() });
  await routing.attach(server);
  app.use(routing);
  app.use(routing.session(options));
} else {
  app.use(expressSession({ ...options, secret, name: 'resources.sid' }));
}
app.post('/seed_session', (request, response) => {
  Object.assign(request.session, { count: 1 });
  response.json({});
});
app.get('/session', (request, response) => {
  response.json({ count: (request.session as { count?: number }).count });
});
app.get('/health', (_request, response) => {
  response.json({ status: 'ok' });
});

server.listen(0, '127.0.0.1', () => process.send?.({ port: (server.address() as AddressInfo).port }));
process.on('message', () => process.send?.({ cpu: process.cpuUsage() }));
process.on('disconnect', () => process.exit());
