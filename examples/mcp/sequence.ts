import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { ResourcesSession } from 'express-session-routing/client';
import fetch from 'node-fetch';

/** A client that has a session's token, and no cookie: the MCP SDK's own, which speaks to the server on `/mcp`. */
export async function mcpClientOf(
  url: string,
  tools: { url_path: string; headers: Record<string, string> } | null,
): Promise<Client> {
  if (tools === null) throw new Error('The server exposes no tools over MCP');
  const client = new Client({ name: 'counting', version: '1.0.0' });
  const transport = new StreamableHTTPClientTransport(new URL(tools.url_path, url), {
    requestInit: { headers: tools.headers },
    fetch: fetch as unknown as typeof globalThis.fetch, // a new connection for each request, as with most clients' first ones
  });
  await client.connect(transport as never);
  return client;
}

/** Counts from a number over MCP. Returns what the counter says in the end: the number and 3 more, if all went well. */
export async function countOverMcp(url: string, initialCount: number): Promise<unknown> {
  const session = await ResourcesSession.openUntyped({ url, body: { initial_count: initialCount } });
  const client = await mcpClientOf(url, session.tools);
  try {
    for (const count of [1, 2]) await client.callTool({ name: 'increment_counter', arguments: { count } });
    const { structuredContent } = await client.callTool({ name: 'get_counter_value' });
    return (structuredContent as { count?: number } | undefined)?.count;
  } finally {
    await client.close();
    await session.verify({ expected_count: initialCount + 3 }); // ends the session
  }
}
