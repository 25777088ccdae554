// An MCP server with sessions (Streamable HTTP, revisions up to 2025-11-25), as every worker runs it: the wiring that the
// SDK documents, but for two lines. It may also run alone: `npx tsx examples/mcp-sessions/app.ts`.
import { randomUUID } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { isInitializeRequest, McpServer } from '@modelcontextprotocol/server';
import express, { type Request, type Response } from 'express';
import { mcpSessions, sessionRouting } from 'express-session-routing';
import { z } from 'zod';

const sessions = new Map<string, NodeStreamableHTTPServerTransport>();

// The first line: every request that names a session goes to the worker that has it in this map.
const routing = sessionRouting({ kind: mcpSessions({ isOpen: (id) => sessions.has(id) }) });

/** Makes the server of one session, whose count lives in the memory of this worker. */
function buildServer(): McpServer {
  let count = 0;
  const server = new McpServer({ name: 'counter', version: '1.0.0' }, { capabilities: { logging: {} } });

  const add = { description: 'Adds to the count of this session', inputSchema: z.object({ number: z.int() }) };
  server.registerTool('add', add, ({ number }) => {
    count += number;
    return { content: [{ type: 'text', text: String(count) }] };
  });

  server.registerTool('announce', { description: 'Sends the count in notifications' }, async (context) => {
    const announcement = (data: string) =>
      ({ method: 'notifications/message', params: { level: 'info', data } }) as const;
    await context.mcpReq.notify(announcement(`${count} on the way to the reply`)); // in the stream of this reply
    await server.server.notification(announcement(`${count} at any time`)); // in the event stream that a GET opened
    return { content: [{ type: 'text', text: 'Announced' }] };
  });
  return server;
}

const app = express();
app.use(express.json());

const route = async (req: Request, res: Response) => {
  const sessionId = req.headers['mcp-session-id'] as string | undefined;
  if (sessionId && sessions.has(sessionId)) {
    await sessions.get(sessionId)!.handleRequest(req, res, req.body);
    return;
  }
  if (!sessionId && isInitializeRequest(req.body)) {
    const transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => {
        sessions.set(id, transport);
      },
    });
    transport.onclose = () => {
      if (transport.sessionId) sessions.delete(transport.sessionId);
    };
    await buildServer().connect(transport);
    await transport.handleRequest(req, res, req.body);
    return;
  }
  if (sessionId) {
    res.status(404).json({ jsonrpc: '2.0', error: { code: -32001, message: 'Session not found' }, id: null });
    return;
  }
  res
    .status(400)
    .json({ jsonrpc: '2.0', error: { code: -32000, message: 'Bad Request: Session ID required' }, id: null });
};

app.post('/mcp', route);
app.get('/mcp', route);
app.delete('/mcp', route);

app.get('/health', (_req, res) => {
  res.json({ worker: process.pid, sessions: sessions.size });
});

// The second line, in the place of `app.listen()`.
const server = await routing.listen(app, { host: '127.0.0.1', port: Number(process.env.PORT ?? 3000) });
console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
