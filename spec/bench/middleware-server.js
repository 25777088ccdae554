import express from 'express';
import expressSession from 'express-session';
import { createServer } from 'node:http';
import { resources, sessionRouting } from 'express-session-routing';

// JavaScript, and the built package: a loader that transforms sources makes every closure dearer.
// One app twice: with the routing (a runtime directory is in the environment), and with express-session alone.
const secret = 'benchmark';
const options = { resave: false, saveUninitialized: false };
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
  response.json({ count: request.session.count });
});
app.get('/health', (_request, response) => {
  response.json({ status: 'ok' });
});

server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
process.on('message', () => process.send({ cpu: process.cpuUsage() }));
process.on('disconnect', () => process.exit());
