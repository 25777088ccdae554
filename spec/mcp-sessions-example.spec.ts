import { expect } from 'chai';
import { startExample, until, type ExampleServer } from './fixtures/example-server.ts';
import { connectClient, fetchOnce } from './fixtures/mcp.ts';

const initialize = {
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};

for (const [name, file, workers, number] of [
  ['alone', 'mcp-sessions/app.ts', 1, 4],
  ['on 4 workers', 'mcp-sessions/server.ts', 4, 40],
] as const) {
  describe(`examples/mcp-sessions ${name}`, function () {
    this.timeout(60_000);
    let server: ExampleServer;
    before(async () => {
      server = await startExample(file, { WORKERS: String(workers) });
    });
    after(() => server?.stop());

    const connect = (line: 'v1' | 'v2' = 'v2') => connectClient(line, `${server.url}/mcp`, fetchOnce);

    function request(method: string, sessionId: string, message?: object): Promise<Response> {
      const headers = {
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
        'mcp-session-id': sessionId,
      };
      const body = message && JSON.stringify(message);
      return fetchOnce(`${server.url}/mcp`, { method, headers, ...(body && { body }) });
    }

    /** The workers that serve 8 requests, each on a connection of its own. */
    async function servers(headers: Record<string, string> = {}): Promise<{ pids: Set<number>; sessions: number[] }> {
      const all: { worker: number; sessions: number }[] = [];
      for (let time = 0; time < 8; time++) {
        all.push((await (await fetchOnce(`${server.url}/health`, { headers })).json()) as (typeof all)[number]);
      }
      return { pids: new Set(all.map(({ worker }) => worker)), sessions: all.map(({ sessions }) => sessions) };
    }

    /**
     * Kills a worker, and waits for the one in its place: until Node's primary notices, it hands connections to a worker
     * that is dead.
     */
    async function kill(pid: number): Promise<void> {
      const listening = (): number => server.lines.filter((line) => line.includes(' listens on ')).length;
      await until(() => listening() === workers);
      process.kill(pid, 'SIGKILL');
      await until(() => listening() === workers + 1);
    }

    it(`serves every request of ${number} clients where its session is, and their notifications`, async () => {
      expect((await servers()).pids.size).to.equal(workers);
      const clients = Array.from({ length: number }, async (_, index) => {
        const client = await connect(index % 2 === 0 ? 'v1' : 'v2');
        await client.listening;
        for (let time = 1; time <= 3; time++) {
          expect(await client.call('add', { number: index })).to.equal(String(time * index));
        }
        expect(await client.call('announce')).to.equal('Announced');
        await until(() => client.notes.length === 2);
        expect(client.notes).to.have.members([`${3 * index} on the way to the reply`, `${3 * index} at any time`]);
        return client;
      });
      const open = await Promise.all(clients);
      expect((await servers()).sessions.every((count) => count > 0)).to.equal(true);
      // No one worker serves all of a client's connections, but one serves all that name its session.
      for (const { sessionId } of open.slice(0, 3)) {
        expect((await servers({ 'mcp-session-id': sessionId! })).pids.size).to.equal(1);
      }
      if (workers > 1) expect(server.claims()).to.equal(number);
      await Promise.all(open.map((client) => client.terminate().then(() => client.close())));
      expect((await servers()).sessions).to.deep.equal(Array.from({ length: 8 }, () => 0));
      if (workers > 1) await until(() => server.claims() === 0);
    });

    if (workers === 1) return;

    it('answers 404 for the sessions of a worker that was killed, and goes on with those of others', async () => {
      const open = await Promise.all(Array.from({ length: 8 }, () => connect()));
      const holders = await Promise.all(
        open.map(async ({ sessionId }) => [...(await servers({ 'mcp-session-id': sessionId! })).pids][0]!),
      );
      const [killed] = holders;
      await kill(killed!);
      for (const [index, client] of open.entries()) {
        if (holders[index] === killed) {
          const error = await client.call('add', { number: 1 }).then(
            () => undefined,
            (failure: unknown) => failure,
          );
          expect(error).to.include({ status: 404 });
        } else {
          expect(await client.call('add', { number: 1 })).to.equal('1');
          // An event stream that went through the worker that was killed is opened again by its client.
          await until(async () => {
            await client.call('announce');
            return client.notes.includes('1 at any time');
          });
        }
      }
      const sessionId = open[0]!.sessionId!;
      for (const [method, message] of [
        ['POST', { jsonrpc: '2.0', id: 1, method: 'tools/list' }],
        ['GET', undefined],
        ['DELETE', undefined],
      ] as const) {
        const reply = await request(method, sessionId, message);
        expect([reply.status, reply.headers.get('content-type')]).to.deep.equal([404, 'application/json']);
        const { error, id } = (await reply.json()) as { error: { code: number }; id: unknown };
        expect([error.code, id]).to.deep.equal([-32001, null]);
      }
      const anew = await request('POST', sessionId, initialize);
      await anew.text();
      expect(anew.status).to.equal(200);
      const newId = anew.headers.get('mcp-session-id')!;
      expect(newId).to.not.equal(sessionId);
      expect((await request('DELETE', newId)).status).to.equal(200);

      const lost = holders.filter((pid) => pid === killed).length;
      await Promise.all(
        open.map(async (client, index) => {
          if (holders[index] !== killed) await client.terminate();
          await client.close();
        }),
      );
      await until(() => server.claims() === lost);
    });
  });
}
