import { expect } from 'chai';
import cluster, { type Address, type Worker } from 'node:cluster';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { get, type IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { createRuntimeDirectory, type RuntimeDirectory } from '../lib/runtime-directory.ts';
import { isSocketGone, socketPath } from '../lib/socket-path.ts';
import { runWorkers, type RunningWorkers } from '../lib/workers.ts';
import type { ClusterWorkerReport, ClusterWorkerSettings } from './fixtures/cluster-worker.ts';
import { Client, sessionIdIn, until } from './fixtures/routed.ts';

const exec = fileURLToPath(new URL('fixtures/cluster-worker.ts', import.meta.url));

/** A worker that listens. */
type Ready = Required<Omit<ClusterWorkerReport, 'thrown'>>;

const typed = (sessionId: string, number?: number): object => ({ resources_session_id: sessionId, number });

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

describe('a cluster', function () {
  this.timeout(60_000);

  let parent: string;
  let reports: ClusterWorkerReport[];
  /** Where the primary listens on behalf of its workers. */
  let addresses: Address[];
  let running: RunningWorkers | undefined;

  const collectAddress = (_worker: Worker, address: Address): void => void addresses.push(address);
  const collect = (_worker: Worker, report: ClusterWorkerReport): void => void reports.push(report);

  before(() => {
    cluster.setupPrimary({ execArgv: ['--import', 'tsx'] });
  });
  after(() => {
    cluster.setupPrimary({ execArgv: process.execArgv });
  });
  beforeEach(() => {
    parent = mkdtempSync(join(tmpdir(), 'esr-cluster-'));
    reports = [];
    addresses = [];
    cluster.on('message', collect).on('listening', collectAddress);
  });
  afterEach(async () => {
    cluster.off('message', collect).off('listening', collectAddress);
    await running?.stop();
    running = undefined;
    rmSync(parent, { recursive: true, force: true });
  });

  /** The workers that have reported so far, those that have died included. */
  function ready(): Ready[] {
    return reports.filter(({ thrown }) => thrown === undefined) as Ready[];
  }

  async function start(workers: number, settings: ClusterWorkerSettings = {}): Promise<Ready[]> {
    running = await runWorkers({
      exec,
      workers,
      args: [JSON.stringify(settings)],
      parent,
      signals: false,
      log: () => undefined,
    });
    await until(() => ready().length === workers, 'every worker has reported');
    return ready();
  }

  function directory(): string {
    return running?.runtimeDirectory ?? '';
  }

  /** The worker IDs in the claims that there are. */
  function claimants(): string[] {
    const claims = join(directory(), 'session-claims');
    return readdirSync(claims).map((name) => readFileSync(join(claims, name), 'latin1'));
  }

  /** The URL of a port: of the one that is shared, unless another is named. */
  function url(path: string, port = ready()[0]?.port): string {
    return `http://127.0.0.1:${port}${path}`;
  }

  async function kill({ pid }: Ready): Promise<void> {
    const worker = Object.values(cluster.workers ?? {}).find((each) => each?.process.pid === pid);
    if (worker === undefined) throw new Error(`no worker has the process ID ${pid}`);
    const exited = once(worker, 'exit');
    process.kill(pid, 'SIGKILL');
    await exited;
  }

  it('of 4 workers serves 200 sessions at once, each request on a new connection', async () => {
    await start(4);
    const pids = new Set<number>();
    const lands = new Set<number>();
    const rewards = await Promise.all(
      Array.from({ length: 200 }, async (_, number) => {
        const client = new Client();
        // Half of them are named by the client, half by the server.
        const seed = number % 2 === 0 ? typed(`episode ${number}`, number) : { number };
        const seeded = await client.post(url('/seed_session'), seed);
        for (const more of [1, 2]) {
          const added = await client.post(url('/add'), { number: more });
          expect(added.json).to.deep.equal(seeded.json);
          lands.add((await new Client().get(url('/health'))).json.pid);
        }
        const verified = await client.post(url('/verify'), { number: number + 3 });
        pids.add(verified.json.pid);
        return verified.json.reward;
      }),
    );
    expect(rewards).to.deep.equal(Array(200).fill(1));
    expect([pids.size, lands.size]).to.deep.equal([4, 4]);
    expect(claimants()).to.have.length(200);
  });

  it('serves a session on one worker, whose first requests reach all of them at once', async () => {
    const workers = await start(4);
    for (let round = 0; round < 25; round++) {
      const ids = Array.from({ length: 8 }, () => randomUUID());
      await Promise.all(
        ids.map(async (sessionId, n) => {
          const replies = await Promise.all(
            workers.map(({ ownPort }, at) => {
              const path = (n + at) % 2 === 0 ? '/seed_session' : '/close_session';
              return new Client().post(url(path, ownPort), typed(sessionId, n));
            }),
          );
          expect(replies.map(({ status }) => status)).to.deep.equal([200, 200, 200, 200]);
          expect(new Set(replies.map(({ json }) => json.pid)).size).to.equal(1);
        }),
      );
    }
    expect(claimants()).to.have.length(200);
  });

  it('finds a new session from the moment that the head of its first reply arrives', async () => {
    await start(4);
    await Promise.all(
      Array.from({ length: 200 }, async () => {
        const first = get(url('/held'), { agent: false });
        const [reply] = (await once(first, 'response')) as [IncomingMessage];
        const [cookie = ''] = reply.headers['set-cookie'] ?? [];
        const headers = { cookie: cookie.split(';', 1)[0] ?? '' };
        const { json } = await new Client().get(url('/release'), { headers });
        expect(json.released).to.equal(true);
        expect(await text(reply)).to.equal(String(json.pid));
      }),
    );
  });

  it('refuses the sessions of a worker that was killed with 410, and only them, by every worker', async () => {
    const [victim, ...others] = (await start(4)) as [Ready, ...Ready[]];
    const sessions = await Promise.all(
      Array.from({ length: 80 }, async (_, number) => {
        const client = new Client();
        const { json } = await client.post(url('/seed_session'), typed(randomUUID(), number));
        return { client, number, pid: json.pid as number };
      }),
    );
    const lost = sessions.filter(({ pid }) => pid === victim.pid);
    const kept = sessions.filter(({ pid }) => pid !== victim.pid);
    expect(lost.length).to.be.above(0);
    // Every worker has connections to it, in a pool.
    for (const { ownPort } of others) await lost[0]?.client.get(url('/number', ownPort));
    const before = claimants().toSorted();
    const socket = socketPath(directory(), victim.workerId);
    expect(await isSocketGone(socket)).to.equal(false);

    await kill(victim);
    expect(await isSocketGone(socket)).to.equal(true);
    const expectGone = async (workers: readonly Ready[]): Promise<void> => {
      for (const { ownPort } of workers) {
        for (const { client } of lost) {
          const { status, json, headers } = await client.get(url('/number', ownPort));
          expect([status, json.code]).to.deep.equal([410, 'SESSION_GONE']);
          expect(headers.get('content-type')).to.equal('application/problem+json');
        }
      }
    };
    await expectGone(others);
    await until(() => ready().length === 5, 'another worker has taken its place');
    const replacement = ready().at(-1) as Ready;
    expect(replacement.workerId).not.to.equal(victim.workerId);
    await expectGone([...others, replacement]);
    for (const { client, number, pid } of kept) {
      for (const port of [undefined, replacement.ownPort]) {
        expect((await client.get(url('/number', port))).json).to.deep.equal({ pid, number });
      }
    }
    expect(claimants().toSorted()).to.deep.equal(before);

    const fresh = new Client();
    const seeded = await fresh.post(url('/seed_session', replacement.ownPort), { number: 1 });
    expect(seeded.json.pid).to.equal(replacement.pid);
    expect((await fresh.get(url('/number', others[0]?.ownPort))).json).to.deep.equal({
      pid: replacement.pid,
      number: 1,
    });
  });

  it('has its private sockets in its workers, and not in its primary', async () => {
    const workers = await start(2);
    const ports = workers.flatMap(({ port, adminPort }) => [port, adminPort]);
    await until(() => addresses.length === 4, 'the primary has been told of every shared port');
    expect(addresses.map(({ port }) => port)).to.have.members(ports);
    for (const { workerId } of workers) expect(await isSocketGone(socketPath(directory(), workerId))).to.equal(false);
  });

  it('leaves no process, socket, claim or directory when it is stopped', async () => {
    const workers = await start(4);
    const names = readdirSync(directory()).filter((name) => name.endsWith('.sock'));
    expect(names).to.have.length(4);
    await Promise.all(Array.from({ length: 20 }, () => new Client().post(url('/seed_session'), typed(randomUUID()))));
    expect(claimants()).to.have.length(20);
    await running?.stop();
    expect(workers.filter(({ pid }) => isRunning(pid))).to.deep.equal([]);
    expect(readdirSync(parent)).to.deep.equal([]);
  });

  it('keeps the claim of a session while a stream of it is open, and ends it with no further request', async () => {
    const workers = await start(2, { closeRetryWindowSeconds: 0.3 });
    const stream = get(url('/events'), { agent: false });
    const [reply] = (await once(stream, 'response')) as [IncomingMessage];
    const sessionId = sessionIdIn(reply.headers['set-cookie'] ?? []);
    const [cookie = ''] = reply.headers['set-cookie'] ?? [];
    let events = '';
    reply.on('error', () => undefined); // it is broken off
    reply.on('data', (chunk) => (events += String(chunk)));
    await new Promise((resolve) => setTimeout(resolve, 1500));
    expect(events.startsWith(`data: ${sessionId}\n\n`)).to.equal(true);
    expect(claimants()).to.have.length(1);
    const headers = { cookie: cookie.split(';', 1)[0] ?? '' };
    const pids = await Promise.all(
      workers.map(async ({ ownPort }) => (await new Client().get(url('/number', ownPort), { headers })).json.pid),
    );
    expect(new Set(pids).size).to.equal(1);
    const before = events.length;
    await until(() => events.length > before, 'the stream goes on');
    stream.destroy();
    await until(() => claimants().length === 0, 'the claim has ended');
  });

  it('serves a forwarded request by the server of the port on which it came', async () => {
    const workers = await start(2);
    const client = new Client();
    const { json } = await client.post(url('/seed_session'), { number: 7 });
    for (const { ownPort, adminPort } of workers) {
      expect((await client.get(url('/number', ownPort))).json).to.deep.equal({ pid: json.pid, number: 7 });
      // Connections to a shared port go round, so one of two is forwarded.
      for (let n = 0; n < 2; n++) {
        const admin = await client.get(url('/number', adminPort));
        expect(JSON.parse(admin.text)).to.deep.equal({ pid: json.pid, isAdmin: true });
      }
    }
  });

  describe('of a primary of its own', () => {
    let runtime: RuntimeDirectory | undefined;
    const forked: Worker[] = [];

    beforeEach(() => {
      cluster.setupPrimary({ exec, args: ['{}'] });
    });
    afterEach(async () => {
      await Promise.all(
        forked.splice(0).map(async (worker) => {
          const exited = once(worker, 'exit');
          if (worker.isDead()) return;
          worker.process.kill();
          await exited;
        }),
      );
      runtime?.remove();
      runtime = undefined;
    });

    it('routes with the runtime directory that it hands its workers', async () => {
      runtime = await createRuntimeDirectory({ parent });
      for (let n = 0; n < 2; n++) forked.push(cluster.fork(runtime.env));
      await until(() => ready().length === 2, 'both workers have reported');
      const client = new Client();
      const { json } = await client.post(url('/seed_session'), { number: 3 });
      for (const { ownPort } of ready()) {
        expect((await client.get(url('/number', ownPort))).json).to.deep.equal({ pid: json.pid, number: 3 });
      }
      expect(readdirSync(join(runtime.path, 'session-claims'))).to.have.length(1);
    });

    it('is told by a worker without a runtime directory what to call', async () => {
      forked.push(cluster.fork());
      await until(() => reports.length === 1, 'the worker has reported');
      const { thrown = '' } = reports[0] ?? {};
      expect(thrown).to.match(/^Error: sessionRouting\(\) runs in a cluster worker without a runtime directory/);
      for (const named of ['runWorkers()', 'createRuntimeDirectory()', 'SESSION_ROUTING_DIR', 'routing: false']) {
        expect(thrown).to.include(named);
      }
    });
  });
});
