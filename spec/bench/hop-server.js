import express from 'express';
import { once } from 'node:events';
import { chmodSync } from 'node:fs';
import { resources, sessionRouting } from 'express-session-routing';

// JavaScript, and the built package: a loader that transforms sources makes every closure dearer.
// A worker; with a path, the same app listens there too, without the rule, for other proxies to forward to.
const [, , path] = process.argv;
const routing = sessionRouting({ secret: 'benchmark', kind: resources() });
const app = express();
app.disable('etag');
app.use(routing);
app.use(routing.session({ resave: false, saveUninitialized: false }));
const mebibyte = Buffer.alloc(1024 * 1024, 'x');
app.post('/seed_session', (_request, response) => {
  response.json({});
});
app.post('/step', express.raw({ type: () => true }), (request, response) => {
  response.json({ bytes: request.body.length });
});
app.get('/state', (_request, response) => {
  response.json({ status: 'ok' });
});
app.get('/blob', (_request, response) => {
  response.type('application/octet-stream').send(mebibyte);
});
app.get('/events', (_request, response) => {
  response.type('text/event-stream');
  let left = 50;
  const send = () => {
    response.write(`data: ${'x'.repeat(100)}\n\n`);
    if (--left > 0) setImmediate(send);
    else response.end();
  };
  send();
});
const server = await routing.listen(app, { port: 0, host: '127.0.0.1' });
if (path !== undefined) {
  await once(app.listen(path), 'listening');
  chmodSync(path, 0o777); // nginx forwards as another user
}
process.send({ port: server.address().port });
process.on('disconnect', () => process.exit());
