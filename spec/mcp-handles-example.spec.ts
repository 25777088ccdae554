import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as V1Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as V1ClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { expect } from 'chai';
import { startExample, until, type ExampleServer } from './fixtures/example-server.ts';
import { fetchOnce } from './fixtures/mcp.ts';

const revision = '2026-07-28';

for (const [name, file, workers, number] of [
  ['alone', 'mcp-handles/app.ts', 1, 8],
  ['on 4 workers', 'mcp-handles/server.ts', 4, 104],
] as const) {
  describe(`examples/mcp-handles ${name}`, function () {
    this.timeout(60_000);
    let server: ExampleServer;
    before(async () => {
      server = await startExample(file, { WORKERS: String(workers) });
    });
    after(() => server?.stop());

    /** A client that copies arguments into fields. */
    async function modern(): Promise<Client> {
      const client = new Client({ name: 'a', version: '1' }, { versionNegotiation: { mode: { pin: revision } } });
      await client.connect(new StreamableHTTPClientTransport(new URL('/mcp', server.url), { fetch: fetchOnce }));
      await client.listTools();
      return client;
    }

    /** A client of an earlier revision, which does not. */
    async function earlier(): Promise<V1Client> {
      const client = new V1Client({ name: 'a', version: '1' });
      const transport = new V1ClientTransport(new URL('/mcp', server.url), { fetch: fetchOnce });
      await client.connect(transport as Transport);
      return client;
    }

    async function call(client: Client | V1Client, tool: string, args: Record<string, unknown> = {}): Promise<string> {
      const { content } = await client.callTool({ name: tool, arguments: args });
      return (content as { text: string }[])[0]!.text;
    }

    /** The workers that serve 8 requests, each on a connection of its own. */
    async function servers(headers: Record<string, string> = {}): Promise<{ pids: number[]; counters: number[] }> {
      const all: { worker: number; counters: number }[] = [];
      for (let time = 0; time < 8; time++) {
        all.push((await (await fetchOnce(`${server.url}/health`, { headers })).json()) as (typeof all)[number]);
      }
      const pids = [...new Set(all.map(({ worker }) => worker))];
      return { pids, counters: all.map(({ counters }) => counters) };
    }

    const naming = (handle: string) => ({ 'mcp-protocol-version': revision, 'mcp-param-counter': handle });

    it(`serves ${number} sequences of calls at a time where their counters are`, async () => {
      expect((await servers()).pids).to.have.length(workers);
      const clients = await Promise.all([modern(), modern(), earlier(), earlier()]);
      const sequences = Array.from({ length: number }, async (_, index) => {
        const client = clients[index % clients.length]!;
        const counter = await call(client, 'new_counter');
        for (const time of [1, 2])
          expect(await call(client, 'add', { counter, number: index })).to.equal(String(time * index));
        expect(await call(client, 'value', { counter })).to.equal(String(2 * index));
        if (index < 3) expect((await servers(naming(counter))).pids).to.have.length(1);
        expect(await call(client, 'drop', { counter })).to.equal('Dropped');
      });
      await Promise.all(sequences);
      await Promise.all(clients.map((client) => client.close()));
      expect((await servers()).counters).to.deep.equal(Array.from({ length: 8 }, () => 0));
      if (workers > 1) await until(() => server.claims() === 0);
    });

    it('says of a handle that nobody has made that there is no such counter', async () => {
      const client = await modern();
      expect(await call(client, 'value', { counter: 'none' })).to.equal('There is no counter none');
      expect(await call(client, 'drop', { counter: 'none' })).to.equal('There is no counter none');
      await client.close();
      if (workers > 1) await until(() => server.claims() === 0);
    });

    if (workers === 1) return;

    it('says of the handles of a worker that was killed that they are gone', async () => {
      const [client, other] = [await modern(), await earlier()];
      const handles = await Promise.all(Array.from({ length: 8 }, () => call(client, 'new_counter')));
      const holders = await Promise.all(handles.map(async (handle) => (await servers(naming(handle))).pids[0]));
      const [killed] = holders;
      const listening = (): number => server.lines.filter((line) => line.includes(' listens on ')).length;
      await until(() => listening() === workers);
      process.kill(killed!, 'SIGKILL');
      await until(() => listening() === workers + 1); // until Node's primary notices, it hands connections to the dead
      for (const [index, counter] of handles.entries()) {
        for (const each of [client, other]) {
          const reply = await call(each, 'value', { counter }).catch((error: unknown) => error);
          if (holders[index] !== killed) expect(reply).to.equal('0');
          else expect(reply).to.include(each === client ? { status: 410 } : { code: 410 });
        }
      }
      await client.close();
      await other.close();
    });
  });
}
