import { expect } from 'chai';
import cluster, { type Worker } from 'node:cluster';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { runWorkers, type RunningWorkers } from '../lib/workers.ts';
import type { AgentWorkerReport, AgentWorkerSettings } from './fixtures/agent-worker.ts';
import { Client, until, type Reply } from './fixtures/routed.ts';

const exec = fileURLToPath(new URL('fixtures/agent-worker.ts', import.meta.url));

const episode_id = { rollout_id: 'rollout' };

function seedOf(agent_session_id: string, taskset = 'counting'): object {
  return { agent_session_id, episode_id, task_id: { taskset, task_id: '1' } };
}

const closeOf = (agent_session_id: string): object => ({ agent_session_id, episode_id });

describe('agent sessions on a cluster', function () {
  this.timeout(120_000);

  let parent: string;
  let workers: AgentWorkerReport[];
  let running: RunningWorkers | undefined;
  const collect = (_worker: Worker, report: AgentWorkerReport): void => void workers.push(report);

  before(() => {
    cluster.setupPrimary({ execArgv: ['--import', 'tsx'] });
  });
  after(() => {
    cluster.setupPrimary({ execArgv: process.execArgv });
  });
  beforeEach(() => {
    parent = mkdtempSync(join(tmpdir(), 'esr-agents-'));
    workers = [];
    cluster.on('message', collect);
  });
  afterEach(async () => {
    cluster.off('message', collect);
    await running?.stop();
    running = undefined;
    rmSync(parent, { recursive: true, force: true });
  });

  async function start(count: number, settings: AgentWorkerSettings = {}): Promise<void> {
    const args = [JSON.stringify(settings)];
    running = await runWorkers({ exec, workers: count, args, parent, signals: false, log: () => undefined });
    await until(() => workers.length === count, 'every worker has reported');
  }

  const claims = (): string[] => readdirSync(join(running?.runtimeDirectory ?? '', 'session-claims'));

  /** The URL of a path on the port that all workers share, or on that of one of them. */
  function url(path: string, worker?: number): string {
    const port = worker === undefined ? workers[0]?.port : workers[worker]?.ownPort;
    return `http://127.0.0.1:${port}${path}`;
  }

  const seed = (client: Client, body: object, worker?: number): Promise<Reply> =>
    client.post(url('/v1/agent_sessions', worker), body);
  const close = (client: Client, body: object, worker?: number): Promise<Reply> =>
    client.post(url('/v1/agent_sessions/close', worker), body);

  /** Which workers have anything of a session, by their place. */
  async function holders(id: string): Promise<number[]> {
    const replies = await Promise.all(
      workers.map((_, worker) => new Client().get(url(`/held?id=${encodeURIComponent(id)}`, worker))),
    );
    return replies.flatMap(({ json }, worker) => (json.holds ? [worker] : []));
  }

  async function sizes(): Promise<number[]> {
    const replies = await Promise.all(workers.map((_, worker) => new Client().get(url('/held', worker))));
    return replies.map(({ json }) => json.size);
  }

  it('are served by the worker that opened them, 200 at once and each request on a new connection', async () => {
    await start(4, { closeRetryWindowSeconds: 1 });
    // The claims of the first may have expired when the last ends, so all that were ever there are kept.
    const claimed = new Set<string>();
    const pids = await Promise.all(
      Array.from({ length: 200 }, async () => {
        const [client, id] = [new Client(), randomUUID()];
        expect((await seed(client, seedOf(id))).status).to.equal(200);
        for (const claim of claims()) claimed.add(claim);
        const replies = [];
        for (let n = 0; n < 3; n++) replies.push((await client.post(url('/v1/responses'))).json);
        const { json } = await close(client, closeOf(id));
        const { pid } = json.agent_observations;
        expect(replies).to.deep.equal([1, 2, 3].map((activations) => ({ pid, activations })));
        expect(json).to.deep.equal({
          agent_session_id: id,
          agent_observations: { pid, activations: 3 },
          resources_cookies: null,
        });
        return pid as number;
      }),
    );
    expect(new Set(pids).size).to.equal(4);
    expect(claimed.size).to.equal(200);
    await until(() => claims().length === 0, 'every receipt has expired');
    expect(await sizes()).to.deep.equal([0, 0, 0, 0]);
  });

  it('end on one worker where a seed and a close of one ID reach two at once, in 1,000 rounds', async () => {
    await start(2);
    const outcomes = { seedFirst: 0, closeFirst: 0 };
    const ids: string[] = [];
    for (let batch = 0; batch < 50; batch++) {
      await Promise.all(
        Array.from({ length: 20 }, async (_, n) => {
          const id = `race ${batch * 20 + n}`;
          ids.push(id);
          const [a, b] = n % 2 === 0 ? [0, 1] : [1, 0];
          const [seeded, closed] = await Promise.all([
            seed(new Client(), seedOf(id), a),
            close(new Client(), closeOf(id), b),
          ]);
          expect(closed.status).to.equal(200);
          if (seeded.status === 200) {
            outcomes.seedFirst += 1;
            expect(closed.json.agent_observations).to.include({ activations: 0 });
          } else {
            outcomes.closeFirst += 1;
            expect([seeded.status, seeded.json.detail]).to.deep.equal([409, 'Agent session is already closed']);
            expect(closed.json.agent_observations).to.equal(null);
          }
          expect(await holders(id)).to.have.length(1);
        }),
      );
    }
    expect(outcomes.seedFirst + outcomes.closeFirst).to.equal(1_000);
    expect(Math.min(outcomes.seedFirst, outcomes.closeFirst)).to.be.above(0);
    expect(claims()).to.have.length(1_000);
    const [one = 0, other = 0] = await sizes();
    expect(one + other).to.equal(1_000);
  });

  it('end on one worker where seeds that set nothing up and closes reach four at once', async () => {
    await start(4);
    for (let batch = 0; batch < 25; batch++) {
      await Promise.all(
        Array.from({ length: 10 }, async (_, n) => {
          const id = `failing ${batch * 10 + n}`;
          const replies = await Promise.all([
            seed(new Client(), seedOf(id, 'nothing'), n % 4),
            seed(new Client(), seedOf(id, 'nothing'), (n + 1) % 4),
            close(new Client(), closeOf(id), (n + 2) % 4),
            close(new Client(), closeOf(id), (n + 3) % 4),
          ]);
          for (const { status, json } of replies.slice(0, 2)) {
            if (status !== 500) expect([status, json.code]).to.deep.equal([409, 'AGENT_SESSION_CLOSED']);
          }
          expect(replies.slice(2).map(({ status }) => status)).to.deep.equal([200, 200]);
          expect(await holders(id)).to.have.length(1);
        }),
      );
    }
    expect(claims()).to.have.length(250);
  });

  it('leave no claim where a seed sets nothing up, or what it set up is refused', async () => {
    await start(2);
    for (const taskset of ['nothing', 'refused']) {
      await Promise.all(
        Array.from({ length: 50 }, async (_, n) => {
          const reply = await seed(new Client(), seedOf(randomUUID(), taskset), n % 2);
          expect([reply.status, reply.setCookies]).to.deep.equal([500, []]);
        }),
      );
      await until(() => claims().length === 0, 'no session is claimed');
    }
    expect(await sizes()).to.deep.equal([0, 0]);
  });

  it('that failed to open wait for their close on any worker, and else end with the window', async () => {
    await start(2, { closeRetryWindowSeconds: 3 });
    const ids = Array.from({ length: 20 }, () => randomUUID());
    for (const id of ids) {
      const reply = await seed(new Client(), seedOf(id, 'partial'), 0);
      expect([reply.status, reply.setCookies]).to.deep.equal([500, []]);
    }
    const [closedId = ''] = ids;
    const again = await seed(new Client(), seedOf(closedId, 'partial'), 1);
    expect([again.status, again.json.detail]).to.deep.equal([409, 'Agent session is closing']);
    const { status, json } = await close(new Client(), closeOf(closedId), 1);
    expect([status, json.agent_observations.activations]).to.deep.equal([200, -1]);
    expect(claims()).to.have.length(20);
    await until(() => claims().length === 0, 'every failed seed and the receipt have expired');
    expect(await sizes()).to.deep.equal([0, 0]);
  });

  it('are the only ones that are claimed: what names none leaves no claim and gets no cookie', async () => {
    await start(2);
    for (const worker of [0, 1]) {
      for (const [method, path] of [
        ['POST', '/v1/responses'],
        ['POST', '/aggregate_metrics'],
        ['GET', '/held'],
        ['POST', '/v1/agent_sessions'],
        ['POST', '/v1/agent_sessions/close'],
      ] as const) {
        const client = new Client();
        const reply = await (method === 'GET' ? client.get(url(path, worker)) : client.post(url(path, worker), {}));
        expect([path, reply.status, reply.setCookies]).to.deep.equal([path, /sessions/.test(path) ? 422 : 200, []]);
      }
    }
    expect(claims()).to.deep.equal([]);
  });

  it('of a worker that was killed are gone for every request that names one, and no others are', async () => {
    await start(4);
    const opened = await Promise.all(
      Array.from({ length: 40 }, async (_, n) => {
        const [client, id] = [new Client(), randomUUID()];
        await seed(client, seedOf(id), n % 4);
        return { client, id, worker: n % 4 };
      }),
    );
    const victim = Object.values(cluster.workers ?? {}).find((each) => each?.process.pid === workers[0]?.pid);
    const exited = once(victim as Worker, 'exit');
    process.kill(workers[0]?.pid ?? 0, 'SIGKILL');
    await exited;
    await until(() => workers.length === 5, 'another worker has taken its place');
    for (const { client, id, worker } of opened) {
      for (const by of [1, 2, 3, 4]) {
        const activated = await client.post(url('/v1/responses', by));
        if (worker !== 0) {
          expect([activated.status, activated.json]).to.deep.equal([
            200,
            { pid: workers[worker]?.pid, activations: by },
          ]);
          continue;
        }
        const replies = [
          activated,
          await seed(new Client(), seedOf(id), by),
          await close(client, closeOf(id), by),
          await close(new Client(), closeOf(id), by),
        ];
        for (const { status, json } of replies) expect([status, json.code]).to.deep.equal([410, 'SESSION_GONE']);
      }
    }
    expect(await new Client().post(url('/v1/responses', 1))).to.include({ status: 200 });
  });
});
