import { expect } from 'chai';
import cluster, { type Worker } from 'node:cluster';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { Agent as HttpAgent, createServer as createHttpServer, type Agent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  AgentSession,
  ResourcesSession,
  runEpisodes,
  SessionClientError,
  type CleanupError,
  type Episode,
  type EpisodeOutcome,
} from '../lib/client.ts';
import { runWorkers, type RunningWorkers } from '../lib/workers.ts';
import type { AgentWorkerReport } from './fixtures/agent-worker.ts';
import { startBreakingProxy, type BreakingProxy, type Fate, type ProxiedRequest } from './fixtures/breaking-proxy.ts';
import { countInSessions } from './fixtures/client-example.ts';
import { startExample, type ExampleServer } from './fixtures/example-server.ts';
import { Client, Gate, until } from './fixtures/routed.ts';

const taskId = { taskset: 'counting', task_id: '1' };
const retries = { limit: 4, firstDelaySeconds: 0.01, maximumDelaySeconds: 0.05 };

/** The first attempt of an episode of its own. */
const episodeOf = (n: number) => ({ rollout_id: `rollout-${n}x` });

/** What a promise is rejected with. */
async function rejection(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => expect.fail('it was not rejected'),
    (error: unknown) => error,
  );
}

/** The values of episodes that all went well. */
function valuesOf<Value>(outcomes: readonly EpisodeOutcome<Value>[]): Value[] {
  return outcomes.map((outcome) => {
    if (outcome.status === 'rejected') throw outcome.reason;
    expect(outcome.cleanupFailures).to.deep.equal([]);
    return outcome.value;
  });
}

describe('the client, and servers of four workers', function () {
  this.timeout(120_000);

  const proxies: BreakingProxy[] = [];
  let cleanupFailures: CleanupError[];
  const onCleanupFailure = (error: CleanupError): void => void cleanupFailures.push(error);
  beforeEach(() => {
    cleanupFailures = [];
  });
  afterEach(async () => {
    await Promise.all(proxies.splice(0).map((proxy) => proxy.close()));
    expect(cleanupFailures).to.deep.equal([]);
  });

  async function proxied(
    target: string,
    decide: (request: ProxiedRequest) => Fate | Promise<Fate>,
  ): Promise<BreakingProxy> {
    const proxy = await startBreakingProxy(target, decide);
    proxies.push(proxy);
    return proxy;
  }

  /** The fates of the first requests that name one session on a path; those after them pass. */
  function firstFates(path: string, fatesOf: (n: number) => readonly Fate[]): (request: ProxiedRequest) => Fate {
    const left = new Map<string, Fate[]>();
    return ({ path: requested, body }) => {
      if (requested !== path) return 'pass';
      const id: string = body.resources_session_id ?? body.agent_session_id;
      if (!left.has(id)) left.set(id, [...fatesOf(left.size)]);
      return left.get(id)?.shift() ?? 'pass';
    };
  }

  /** Runs episodes until each has a request under way on a path, cancels them all, and has these requests meet their fate. */
  async function cancelAt(
    path: string,
    fate: Fate,
    target: string,
    run: (n: number, episode: Episode, url: string) => Promise<void>,
  ): Promise<void> {
    const reason = new Error(`enough of ${path}`);
    const controller = new AbortController();
    let underWay = 0;
    const { url } = await proxied(target, async (request) => {
      // What is sent after that, to clean up, passes.
      if (!request.path.endsWith(path) || controller.signal.aborted) return 'pass';
      underWay += 1;
      await until(() => controller.signal.aborted, 'all are cancelled');
      return fate;
    });
    const numbers = Array.from({ length: 8 }, (_, n) => n);
    const running = runEpisodes(numbers, (n, episode) => run(n, episode, url), {
      concurrency: 8,
      signal: controller.signal,
      onCleanupFailure,
    });
    await until(() => underWay === 8, 'all have come so far');
    controller.abort(reason);
    expect(await rejection(running)).to.equal(reason);
  }

  const fates: readonly (readonly Fate[])[] = [['drop'], ['cut'], ['lose'], ['cut', 'drop'], []];

  describe('of which one keeps counters', () => {
    let counter: ExampleServer;
    before(async () => {
      counter = await startExample('counter/server.ts', { WORKERS: '4', WINDOW_SECONDS: '1', STRICT: '1' });
    });
    after(() => counter.stop());
    // A session that is left open keeps its claim for ever.
    afterEach(() => until(() => counter.claims() === 0, 'no session is left on any worker'));

    function open(n: number, more: object = {}): Promise<ResourcesSession> {
      const task = { episodeId: episodeOf(n), taskId, taskData: { initial_count: n } };
      return ResourcesSession.open({ url: counter.url, ...task, retries, onCleanupFailure, ...more });
    }

    async function count(session: Pick<ResourcesSession, 'callTool' | 'verify'>, n: number): Promise<number> {
      await session.callTool('increment_counter', { count: 1 });
      await session.callTool('increment_counter', { count: 2 });
      expect(await session.callTool('get_counter_value')).to.deep.equal({ count: n + 3 });
      return (await session.verify({ expected_count: n + 3 })).reward;
    }

    it('runs many episodes at once, each request on a new connection', async () => {
      const workers = new Set<string | null>();
      let forwarded = 0;
      const outcomes = await runEpisodes(
        Array.from({ length: 100 }, (_, n) => n),
        async (n, episode) => {
          const session = await episode.openResources({
            url: counter.url,
            episodeId: episodeOf(n),
            taskId,
            taskData: { initial_count: n },
            onReply({ headers }) {
              const servedBy = headers.get('x-served-by');
              if (servedBy?.endsWith(', forwarded')) forwarded += 1;
              else workers.add(servedBy);
            },
          });
          return count(session, n);
        },
        { concurrency: 32 },
      );
      expect(new Set(valuesOf(outcomes))).to.deep.equal(new Set([1]));
      expect(workers.size).to.equal(4);
      expect(forwarded).to.be.above(200);
    });

    it('does what the README shows', async () => {
      const rewards = await countInSessions(counter.url, new AbortController().signal);
      expect(rewards).to.deep.equal(Array(10).fill(1));
    });

    it('has sessions without an ID verified, which ends them', async () => {
      const rewards = await Promise.all(
        Array.from({ length: 20 }, async (_, n) =>
          count(await ResourcesSession.openUntyped({ url: counter.url, body: { initial_count: n } }), n),
        ),
      );
      expect(new Set(rewards)).to.deep.equal(new Set([1]));
    });

    it('seeds again, without a cookie, where replies to seeds are dropped or cut, and resets nothing', async () => {
      const { url, requests } = await proxied(
        counter.url,
        firstFates('/seed_session', (n) => fates[n % 5] ?? []),
      );
      const rewards = await Promise.all(
        Array.from({ length: 50 }, async (_, n) => {
          await using session = await open(n, { url });
          return await count(session, n);
        }),
      );
      expect(new Set(rewards)).to.deep.equal(new Set([1]));
      const seeds = requests.filter(({ path }) => path === '/seed_session');
      expect(seeds).to.have.length(100);
      expect(new Set(seeds.map(({ cookie }) => cookie))).to.deep.equal(new Set([undefined]));
      expect(new Set(await Promise.all(seeds.map(({ status }) => status)))).to.deep.equal(new Set([200, undefined]));
    });

    it('closes again where replies to closes are dropped or cut', async () => {
      const { url, requests } = await proxied(
        counter.url,
        firstFates('/close_session', (n) => fates[n % 5] ?? []),
      );
      await Promise.all(
        Array.from({ length: 20 }, async (_, n) => {
          const session = await open(n, { url });
          await count(session, n);
          expect(await session.close()).to.deep.equal({ resources_session_id: session.id });
        }),
      );
      expect(requests.filter(({ path }) => path === '/close_session')).to.have.length(40);
    });

    it('closes seeds that fail with a 500, by their ID, and may seed anew', async () => {
      const { url, requests } = await proxied(counter.url, () => 'pass');
      await Promise.all(
        Array.from({ length: 20 }, async (_, n) => {
          const error = await rejection(open(n, { url, taskData: {} }));
          expect(error).to.be.an.instanceof(SessionClientError);
          expect(error).to.include({ stage: 'seed', status: 500, isOver: false });
          await using session = await open(n, { url });
          expect(await count(session, n)).to.equal(1);
        }),
      );
      const closes = requests.filter(({ path }) => path === '/close_session');
      expect(closes.filter(({ cookie }) => cookie === undefined)).to.have.length(20);
      expect(new Set(await Promise.all(closes.map(({ status }) => status)))).to.deep.equal(new Set([200]));
    });

    it('closes before a delayed seed arrives, which is refused then', async () => {
      const gate = new Gate();
      const { url, requests } = await proxied(counter.url, async ({ path }): Promise<Fate> => {
        if (path === '/seed_session') await gate.opened;
        return 'pass';
      });
      const reasons = Array.from({ length: 20 }, (_, n) => new Error(`${n}`));
      await Promise.all(
        reasons.map(async (reason, n) => {
          const controller = new AbortController();
          const opening = rejection(open(n, { url, signal: controller.signal }));
          await until(() => requests.some(({ body }) => body.task_data?.initial_count === n), 'the seed is on its way');
          controller.abort(reason);
          expect(await opening).to.equal(reason);
        }),
      );
      const statusesOf = (wanted: string) =>
        Promise.all(requests.filter(({ path }) => path === wanted).map(({ status }) => status));
      expect(await statusesOf('/close_session')).to.deep.equal(reasons.map(() => 200));
      gate.open();
      expect(await statusesOf('/seed_session')).to.deep.equal(reasons.map(() => 409));
    });

    for (const fate of ['lose', 'drop', 'pass'] as const) {
      it(`leaves nothing where it is cancelled at any stage, and the request under way meets the fate "${fate}"`, async () => {
        for (const path of ['/seed_session', '/increment_counter', '/verify', '/close_session']) {
          await cancelAt(path, fate, counter.url, async (n, episode, url) => {
            const task = { episodeId: episodeOf(n), taskId, taskData: { initial_count: n } };
            const session = await episode.openResources({ url, ...task, retries });
            await count(session, n);
            await session.close();
          });
        }
      });
    }

    it('says at once that an agent for connections does not suit the URL', async () => {
      const options = { url: counter.url, body: {}, agent: new HttpsAgent() as Agent };
      expect(await rejection(ResourcesSession.openUntyped(options))).to.be.an.instanceof(TypeError);
    });

    it('says so where nothing listens', async () => {
      const closed = createServer();
      closed.listen(0, '127.0.0.1');
      await once(closed, 'listening');
      const { port } = closed.address() as AddressInfo;
      closed.close();
      await once(closed, 'close');
      const failures: CleanupError[] = [];
      const error = await rejection(
        open(1, {
          url: `http://127.0.0.1:${port}`,
          onCleanupFailure: (each: CleanupError) => void failures.push(each),
        }),
      );
      expect(error).to.include({ stage: 'seed', isOver: false, status: undefined });
      expect((error as Error).message).to.match(/ECONNREFUSED.*\(attempt 5\)/);
      expect(failures).to.have.length(1);
    });
  });

  describe('of which one keeps agent sessions', () => {
    let parent: string;
    let workers: AgentWorkerReport[];
    let running: RunningWorkers;
    const collect = (_worker: Worker, report: AgentWorkerReport): void => void workers.push(report);

    before(async () => {
      cluster.setupPrimary({ execArgv: ['--import', 'tsx'] });
      parent = mkdtempSync(join(tmpdir(), 'esr-client-'));
      workers = [];
      cluster.on('message', collect);
      running = await runWorkers({
        exec: fileURLToPath(new URL('fixtures/agent-worker.ts', import.meta.url)),
        workers: 4,
        args: [JSON.stringify({ closeRetryWindowSeconds: 1 })],
        parent,
        signals: false,
        log: () => undefined,
      });
      await until(() => workers.length === 4, 'every worker has reported');
    });
    after(async () => {
      cluster.off('message', collect);
      await running.stop();
      rmSync(parent, { recursive: true, force: true });
      cluster.setupPrimary({ execArgv: process.execArgv });
    });
    afterEach(async () => {
      await until(async () => {
        const replies = await Promise.all(
          workers.map(({ ownPort }) => new Client().get(`http://127.0.0.1:${ownPort}/held`)),
        );
        return replies.every(({ json }) => json.size === 0);
      }, 'no session is left on any worker');
      expect(readdirSync(join(running.runtimeDirectory, 'session-claims'))).to.deep.equal([]);
    });

    const url = (): string => `http://127.0.0.1:${workers[0]?.port}`;

    function open(n: number, more: object = {}): Promise<AgentSession> {
      return AgentSession.open({ url: url(), episodeId: episodeOf(n), taskId, retries, onCleanupFailure, ...more });
    }

    /** Activates a session three times, and closes it. */
    async function activate(session: AgentSession): Promise<void> {
      for (let activations = 1; activations <= 3; activations++) {
        expect(await session.respond({ input: 'go on' })).to.include({ activations });
      }
      const receipt = await session.close();
      expect(receipt.agent_observations).to.include({ activations: 3 });
    }

    it('gives receipts for what was responded, also where replies to seeds and closes are dropped or cut', async () => {
      const breakSeeds = firstFates('/v1/agent_sessions', (n) => fates[n % 5] ?? []);
      const breakCloses = firstFates('/v1/agent_sessions/close', (n) => fates[(n + 2) % 5] ?? []);
      const proxy = await proxied(url(), (request) => {
        const fate = breakSeeds(request);
        return fate === 'pass' ? breakCloses(request) : fate;
      });
      await Promise.all(
        Array.from({ length: 40 }, async (_, n) => {
          await using session = await open(n, { url: proxy.url });
          await activate(session);
        }),
      );
      const seeds = proxy.requests.filter(({ path }) => path === '/v1/agent_sessions');
      expect(seeds).to.have.length(80);
      expect(new Set(seeds.map(({ cookie }) => cookie))).to.deep.equal(new Set([undefined]));
      expect(proxy.requests.filter(({ path }) => path === '/v1/agent_sessions/close')).to.have.length(80);
    });

    for (const taskset of ['nothing', 'partial']) {
      it(`closes what is left of a seed that sets up "${taskset}"`, async () => {
        const proxy = await proxied(url(), () => 'pass');
        for (let n = 0; n < 10; n++) {
          const error = await rejection(open(n, { url: proxy.url, taskId: { taskset, task_id: '1' } }));
          expect(error).to.include({ server: 'agent', stage: 'seed', status: 500, isOver: false });
        }
        expect(proxy.requests.map(({ path, cookie }) => [path, cookie])).to.deep.equal(
          Array.from({ length: 10 }, () => [
            ['/v1/agent_sessions', undefined],
            ['/v1/agent_sessions/close', undefined],
          ]).flat(),
        );
      });
    }

    it('closes before a delayed seed arrives, which is refused then', async () => {
      const gate = new Gate();
      const proxy = await proxied(url(), async ({ path }): Promise<Fate> => {
        if (path === '/v1/agent_sessions') await gate.opened;
        return 'pass';
      });
      await Promise.all(
        Array.from({ length: 10 }, async (_, n) => {
          // The only attempt is given up while it is under way.
          const more = { url: proxy.url, requestSeconds: 0.2, retries: { ...retries, limit: 0 } };
          const error = await rejection(open(n, more));
          expect((error as Error).message).to.match(/no complete reply in 0.2 s/);
        }),
      );
      gate.open();
      const seeds = proxy.requests.filter(({ path }) => path === '/v1/agent_sessions');
      expect(await Promise.all(seeds.map(({ status }) => status))).to.deep.equal(seeds.map(() => 409));
    });

    for (const fate of ['lose', 'drop', 'pass'] as const) {
      it(`leaves nothing where it is cancelled at any stage, and the request under way meets the fate "${fate}"`, async () => {
        for (const path of ['/v1/agent_sessions', '/v1/responses', '/v1/agent_sessions/close']) {
          await cancelAt(path, fate, url(), async (n, episode, proxyUrl) =>
            activate(await episode.openAgent({ url: proxyUrl, episodeId: episodeOf(n), taskId, retries })),
          );
        }
      });
    }
  });
});

describe('the client, and a server that answers before it has read the request', () => {
  it('leaves no connection behind', async () => {
    let [closed, received] = [0, 0];
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.once('close', () => closed++);
      socket.on('data', (chunk) => (received += chunk.length));
      socket.once('data', () => {
        socket.pause();
        const detail = '{"detail":"too large"}';
        socket.write(`HTTP/1.1 413 Payload Too Large\r\nContent-Length: ${detail.length}\r\n\r\n${detail}`);
        // It would notice that the client has left only if it read on.
        setTimeout(() => socket.resume(), 200).unref();
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    const error: unknown = await ResourcesSession.open({
      url: `http://127.0.0.1:${port}`,
      episodeId: { rollout_id: 'r' },
      taskId: { taskset: 't', task_id: '1' },
      taskData: { much: 'x'.repeat(8_000_000) },
      onCleanupFailure: () => undefined,
    }).catch((thrown: unknown) => thrown);
    expect(error).to.include({ status: 413, isOver: true });
    await until(() => closed === 2, 'both connections, of the seed and of its clean-up, have closed');
    expect(received).to.be.below(8_000_000); // the rest was not sent any more
    server.close();
  });
});

describe('the client, and an agent that keeps no connections and opens one at a time', () => {
  it('takes a new one for each request', async () => {
    const used = new Set<unknown>();
    let requests = 0;
    const server = createHttpServer((request, response) => {
      used.add(request.socket);
      requests++;
      response.setHeader('Set-Cookie', 'sid=1').end('{"resources_session_id":"r"}');
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    const session = await ResourcesSession.openUntyped({
      url: `http://127.0.0.1:${port}`,
      body: {},
      agent: new HttpAgent({ keepAlive: false, maxSockets: 1 }),
    });
    await Promise.all(['a', 'b', 'c'].map((tool) => session.callTool(tool, {})));
    expect([requests, used.size]).to.deep.equal([4, 4]);
    server.close();
  });
});
