// The counter, as every worker runs it. It may also run alone: `npx tsx examples/counter/app.ts`.
import type { AddressInfo } from 'node:net';
import express from 'express';
import { resources, sessionRouting } from 'express-session-routing';
import { Counters } from './counter.ts';
import { answerError, counterRoutes, servedBy } from './routes.ts';

const { PORT = '3000', SESSION_SECRET = 'for development only', WINDOW_SECONDS = '300', STRICT, ROUTING } = process.env;
const closeRetryWindowSeconds = Number(WINDOW_SECONDS);

const routing = sessionRouting({
  secret: SESSION_SECRET,
  kind: resources({ closeRetryWindowSeconds }),
  routing: ROUTING !== 'off', // off: every worker answers for itself, which shows what goes wrong then
});

const app = express();
app.use(routing);
app.use(routing.session({ resave: false, saveUninitialized: false }));
app.use(servedBy(routing));
app.use(express.json({ limit: '50mb' }));
const routes = counterRoutes(new Counters({ closeRetryWindowSeconds, strict: STRICT === '1' }));
app.use('/ng-rollout/:rolloutId', routes);
app.use(routes);
app.use(answerError);

const server = await routing.listen(app, { host: '127.0.0.1', port: Number(PORT) });
console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
