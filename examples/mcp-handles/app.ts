// An MCP server without sessions (revision 2026-07-28), as every worker runs it: its tools take a handle as an argument, and
// keep in memory what it stands for. It may also run alone: `npx tsx examples/mcp-handles/app.ts`.
import { randomUUID } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import express from 'express';
import { mcpHandle, sessionRouting } from 'express-session-routing';
import { z } from 'zod';

const counters = new Map<string, number>();

// Every call with the argument `counter` goes to the worker that has the counter in this map.
const routing = sessionRouting({ kind: mcpHandle('counter', { isOpen: (handle) => counters.has(handle) }) });

/** Clients copy this argument into the field `Mcp-Param-Counter`, so that no body has to be read for it. */
const counter = z.string().meta({ 'x-mcp-header': 'Counter' });

const text = (value: unknown) => ({ content: [{ type: 'text' as const, text: String(value) }] });
const unknownHandle = (handle: string) => ({ ...text(`There is no counter ${handle}`), isError: true });

/** Makes the server of one request. */
function buildServer(): McpServer {
  const server = new McpServer({ name: 'counters', version: '1.0.0' });

  server.registerTool('new_counter', { description: 'Makes a counter' }, () => {
    const handle = randomUUID();
    counters.set(handle, 0);
    routing.claim(handle); // before anybody else knows of it
    return text(handle);
  });

  const add = { description: 'Adds to a counter', inputSchema: z.object({ counter, number: z.int() }) };
  server.registerTool('add', add, ({ counter, number }) => {
    const value = counters.get(counter);
    if (value === undefined) return unknownHandle(counter);
    counters.set(counter, value + number);
    return text(value + number);
  });

  const value = { description: 'Tells the value of a counter', inputSchema: z.object({ counter }) };
  server.registerTool('value', value, ({ counter }) =>
    counters.has(counter) ? text(counters.get(counter)) : unknownHandle(counter),
  );

  const drop = { description: 'Gives a counter back', inputSchema: z.object({ counter }) };
  server.registerTool('drop', drop, ({ counter }) => {
    if (!counters.delete(counter)) return unknownHandle(counter);
    routing.ended(counter);
    return text('Dropped');
  });
  return server;
}

const app = express();
app.use(express.json());

const handle = toNodeHandler(createMcpHandler(buildServer));
app.all('/mcp', (req, res) => void handle(req, res, req.body));

app.get('/health', (_req, res) => {
  res.json({ worker: process.pid, counters: counters.size });
});

const server = await routing.listen(app, { host: '127.0.0.1', port: Number(process.env.PORT ?? 3000) });
console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
