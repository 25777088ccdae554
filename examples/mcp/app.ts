// The counter, with its tools over MCP too, as every worker runs it. It may also run alone: `npx tsx examples/mcp/app.ts`.
import type { AddressInfo } from 'node:net';
import express from 'express';
import { resources, sessionRouting } from 'express-session-routing';
import { exposeToolsOverMcp } from 'express-session-routing/mcp';
import { increment } from '../counter/bodies.ts';
import { Counters } from '../counter/counter.ts';
import { answerError, counterRoutes, servedBy } from '../counter/routes.ts';

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
exposeToolsOverMcp(app, {
  routing,
  serverName: 'counter',
  tools: {
    increment_counter: { description: 'Adds to the count', input: increment },
    get_counter_value: { description: 'Tells the count' },
  },
  // A seed may say which tools its session has.
  allowedTools: (body) => (body as { allowed_tools?: string[] } | undefined)?.allowed_tools ?? null,
});
app.use(counterRoutes(new Counters({ closeRetryWindowSeconds, strict: STRICT === '1' })));
app.use(answerError);

const server = await routing.listen(app, { host: '127.0.0.1', port: Number(PORT) });
console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
