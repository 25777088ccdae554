import { expect } from 'chai';
import { ResourcesSession } from 'express-session-routing/client';
import fetch from 'node-fetch';
import { countOverMcp, mcpClientOf } from '../examples/mcp/sequence.ts';
import { startExample, until, type ExampleServer } from './fixtures/example-server.ts';

const sequences = 200;

async function countRight(url: string, sequences: number): Promise<number> {
  const counts = await Promise.allSettled(Array.from({ length: sequences }, (_, count) => countOverMcp(url, count)));
  return counts.filter((count, initial) => count.status === 'fulfilled' && count.value === initial + 3).length;
}

/** The worker that holds the session of a token. */
async function holderOf(url: string, { tools }: ResourcesSessionTools): Promise<number> {
  const { headers } = await fetch(`${url}/mcp`, {
    method: 'POST',
    headers: { ...tools?.headers, 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
  });
  return Number(/^worker (\d+)/.exec(headers.get('x-served-by') ?? '')?.[1]);
}

type ResourcesSessionTools = Pick<ResourcesSession, 'tools'>;

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

describe('examples/mcp', function () {
  this.timeout(60_000);

  describe('on 4 workers', () => {
    let server: ExampleServer;
    before(async () => {
      server = await startExample('mcp/server.ts', { WORKERS: '4', WINDOW_SECONDS: '1' });
    });
    after(() => server.stop());

    it(`counts right in ${sequences} sequences at once that have only a token, and leaves nothing claimed`, async () => {
      expect(await countRight(server.url, sequences)).to.equal(sequences);
      await until(() => server.claims() === 0);
    });

    it('answers 410 to the tokens of a worker that was killed, and to no other', async () => {
      const open = await Promise.all(
        Array.from({ length: 24 }, async (_, initialCount) => {
          const session = await ResourcesSession.openUntyped({
            url: server.url,
            body: { initial_count: initialCount },
          });
          const client = await mcpClientOf(server.url, session.tools);
          const { content } = await client.callTool({ name: 'increment_counter', arguments: { count: 1 } });
          expect(content).to.deep.equal([{ type: 'text', text: '{"success":true}' }]);
          return { client, session, initialCount };
        }),
      );
      const pids = /^Workers: ([\d, ]+)\./.exec(server.lines.find((line) => line.startsWith('Workers: ')) ?? '')?.[1];
      const [killed = 0] = (pids ?? '').split(', ').map(Number);
      const held = await Promise.all(open.map(({ session }) => holderOf(server.url, session)));
      process.kill(killed, 'SIGKILL');
      await until(() => !isRunning(killed));
      const ends = await Promise.all(
        open.map(async ({ client, initialCount }) => {
          try {
            const { structuredContent } = await client.callTool({ name: 'get_counter_value' });
            return (structuredContent as { count: number }).count === initialCount + 1 ? 'right' : 'wrong';
          } catch (error) {
            return (error as { status?: number }).status ?? (error as { code?: unknown }).code ?? String(error);
          } finally {
            await client.close();
          }
        }),
      );
      expect(held.filter((pid) => pid === killed)).not.to.have.length(0);
      expect(ends).to.deep.equal(held.map((pid) => (pid === killed ? 410 : 'right')));
    });
  });

  it('counts wrong without the routing', async () => {
    const server = await startExample('mcp/server.ts', { WORKERS: '4', ROUTING: 'off' });
    try {
      expect(await countRight(server.url, 40)).to.be.below(40);
    } finally {
      await server.stop();
    }
  });
});
