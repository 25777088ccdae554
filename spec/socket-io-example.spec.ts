import { once } from 'node:events';
import { randomBytes, randomUUID } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ClientRequest, IncomingMessage } from 'node:http';
import { connect, createServer } from 'node:net';
import { expect } from 'chai';
import { WebSocket } from 'ws';
import { io, type ManagerOptions, type Socket, type SocketOptions } from 'socket.io-client';
import type { Server, ServerOptions } from 'socket.io';
import { serveCounters, type ClientEvents, type ServerEvents } from '../examples/socket-io/counters.ts';
import { sessionKind } from '../lib/custom-kind.ts';
import { fromQuery } from '../lib/session-sources.ts';
import { startExample, type ExampleServer } from './fixtures/example-server.ts';
import { listening, portOf, send, startWorkers, until, type Workers } from './fixtures/routed.ts';

/** What the workers of these specs take besides. */
interface EchoEvents extends ClientEvents {
  echo(bytes: Uint8Array, reply: (bytes: Uint8Array) => void): void;
  dismiss(): void;
}

type Transports = readonly ('polling' | 'websocket')[];

const upgraded: Transports = ['polling', 'websocket'];

/** A client of the real Socket.IO, and what happened to it. Each of its polls is on a new connection. */
class Counting {
  readonly socket: Socket<ServerEvents, EchoEvents>;
  readonly sums: number[] = [];
  readonly events: number[] = [];
  readonly workers = new Set<number>();
  /** The IDs of its connections, in turn. */
  readonly sids: string[] = [];
  readonly errors: string[] = [];
  readonly disconnects: string[] = [];

  constructor(
    url: string,
    transports: Transports,
    { reconnection = false, ...more }: Partial<ManagerOptions & SocketOptions> = {},
  ) {
    const options = { transports: [...transports], forceNew: true, reconnection, reconnectionDelay: 20 };
    this.socket = io(url, { ...options, ...more, agent: false, autoConnect: false });
    this.socket.on('connect', () => void this.sids.push(this.socket.io.engine.id));
    this.socket.on('connect_error', (error) => {
      const { description } = error as { description?: unknown };
      this.errors.push(`${error.message} ${typeof description === 'number' ? description : ''}`.trim());
    });
    this.socket.on('disconnect', (reason) => void this.disconnects.push(reason));
    this.socket.on('sum', (sum) => void this.events.push(sum));
    this.socket.connect();
  }

  get transport(): string {
    return this.socket.io.engine.transport.name;
  }

  /** Resolves once it is connected, and upgraded if it can be; rejects if that fails at the first try. */
  async connected(): Promise<this> {
    await until(() => this.socket.connected || this.errors.length > 0, 'a client is connected');
    if (this.errors.length > 0) throw new Error(this.errors.join());
    const { transports } = this.socket.io.opts;
    const last = (transports as string[]).at(-1);
    await until(() => this.transport === last || !this.socket.connected, `the transport is ${last}`);
    return this;
  }

  add(number: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const lost = (reason: string): void => reject(new Error(`disconnected: ${reason}`));
      this.socket.once('disconnect', lost);
      this.socket.emit('add', number, (sum, worker) => {
        this.socket.off('disconnect', lost);
        this.sums.push(sum);
        this.workers.add(worker);
        resolve();
      });
    });
  }
}

/** Clients that are closed with the spec. */
class Clients {
  readonly #all: Counting[] = [];

  start(count: number, ...args: ConstructorParameters<typeof Counting>): Counting[] {
    const made = Array.from({ length: count }, () => new Counting(...args));
    this.#all.push(...made);
    return made;
  }

  close(): void {
    for (const { socket } of this.#all.splice(0)) socket.disconnect();
  }
}

/** Who served the requests that this process has sent, by what replies and upgrades say. */
class Served {
  readonly requests = { here: 0, forwarded: 0 };
  readonly upgrades = { here: 0, forwarded: 0 };
  readonly #watch = (message: unknown): void => {
    const { request } = message as { request: ClientRequest };
    const count = (counts: Served['requests'], { headers }: IncomingMessage): void => {
      const by = headers['x-served-by'];
      if (by !== undefined) counts[/forwarded/.test(String(by)) ? 'forwarded' : 'here']++;
    };
    request.prependListener('response', (response) => count(this.requests, response));
    request.prependListener('upgrade', (response) => count(this.upgrades, response));
  };

  start(): this {
    subscribe('http.client.request.start', this.#watch);
    return this;
  }

  stop(): void {
    unsubscribe('http.client.request.start', this.#watch);
  }
}

/** Adds 1, 2, 3 one after the other, and then 4 to 12 at once. Returns the sums that are right. */
async function countUp(clients: readonly Counting[]): Promise<number[]> {
  await Promise.all(
    clients.map(async (client) => {
      await client.connected();
      for (const number of [1, 2, 3]) await client.add(number);
      await Promise.all([4, 5, 6, 7, 8, 9, 10, 11, 12].map((number) => client.add(number)));
    }),
  );
  const sums = [1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78];
  await until(() => clients.every(({ events }) => events.length >= sums.length), 'the events have come');
  return sums;
}

function pollOf(sid: string): string {
  return `/socket.io/?EIO=4&transport=polling&sid=${sid}`;
}

function upgradeOf(sid: string): { target: string; fields: string[] } {
  const fields = ['Connection', 'Upgrade', 'Upgrade', 'websocket', 'Sec-WebSocket-Version', '13'];
  return {
    target: `/socket.io/?EIO=4&transport=websocket&sid=${sid}`,
    fields: [...fields, 'Sec-WebSocket-Key', randomBytes(16).toString('base64')],
  };
}

describe('examples/socket-io on 4 workers', () => {
  const clients = new Clients();
  let server: ExampleServer;
  let served: Served;
  before(async function () {
    this.timeout(60_000);
    server = await startExample('socket-io/server.ts', { WORKERS: '4' });
  });
  after(() => server?.stop());
  beforeEach(() => void (served = new Served().start()));
  afterEach(() => {
    served.stop();
    clients.close();
  });

  for (const [name, transports] of [
    ['by polls, each on a new connection', ['polling']],
    ['by WebSocket', ['websocket']],
    ['by polls and then WebSocket', upgraded],
  ] as const) {
    it(`counts right for 40 clients ${name}`, async () => {
      const all = clients.start(40, server.url, transports);
      const sums = await countUp(all);
      for (const client of all) {
        expect([client.errors, client.disconnects]).to.deep.equal([[], []]);
        expect([client.sums, client.events]).to.deep.equal([sums, sums]);
        expect(client.workers.size).to.equal(1);
      }
      expect(new Set(all.flatMap(({ workers }) => [...workers])).size).to.be.above(1); // it is for Node to spread them
      const { requests, upgrades } = served;
      if (transports === upgraded) expect([upgrades.here > 0, upgrades.forwarded > 0]).to.deep.equal([true, true]);
      else if (transports[0] === 'websocket') expect(upgrades).to.deep.equal({ here: 40, forwarded: 0 });
      if (transports[0] === 'polling') expect([requests.here > 0, requests.forwarded > 0]).to.deep.equal([true, true]);
    });
  }

  it('gives every claim back when the clients have left', async () => {
    await until(() => server.claims() === 0, 'there is no claim');
  });

  it('loses the clients of a worker that is killed, which begin anew, and serves the others on', async () => {
    const polling = clients.start(20, server.url, ['polling'], { reconnection: true });
    const sockets = clients.start(20, server.url, ['websocket'], { reconnection: true });
    const all = [...polling, ...sockets];
    await countUp(all);
    const workerOf = new Map(all.map((client) => [client, [...client.workers][0]]));
    const victim = workerOf.get(sockets[0]!) as number;
    const isVictims = (client: Counting): boolean => workerOf.get(client) === victim;
    process.kill(victim, 'SIGKILL');
    await until(() => all.filter(isVictims).every(({ sids }) => sids.length > 1), 'its clients are there again');

    const addOne = async (client: Counting): Promise<void> => {
      await until(() => client.socket.connected, 'it is connected');
      await client.add(1).catch(() => addOne(client));
    };
    await Promise.all(all.map(addOne));
    // A poll may also have been on its way through the worker. Then its connection was lost, as by a proxy that dies.
    const lost = all.filter(({ disconnects }) => disconnects.length > 0);
    expect(lost).to.include.members(all.filter(isVictims));
    expect(sockets.filter((client) => lost.includes(client))).to.deep.equal(sockets.filter(isVictims));
    for (const client of all) {
      const sum = lost.includes(client) ? 1 : 79;
      expect(client.sums.at(-1)).to.equal(sum);
      await until(() => client.events.at(-1) === sum, 'the event has come');
    }
    expect(all.length - lost.length, 'clients that are left').to.be.above(10);

    const [sid = ''] = all.find(isVictims)?.sids ?? [];
    const to = Number(new URL(server.url).port);
    for (const request of [
      { target: pollOf(sid) },
      { target: pollOf(sid), method: 'POST', body: '40' },
      upgradeOf(sid),
    ]) {
      const { status, json } = await send({ to, ...request });
      expect([status, json.code]).to.deep.equal([410, 'SESSION_GONE']);
    }
  });
});

/** Workers of this process with the connections of examples/socket-io, behind a balancer that is not sticky at all. */
interface Balanced extends Workers {
  readonly url: string;
}

async function startBalanced(
  options: Partial<ServerOptions>,
  { count = 4, ...routing }: { count?: number; shared?: boolean; routing?: boolean } = {},
): Promise<Balanced> {
  const workers = await startWorkers(() => (_request, response) => response.writeHead(404).end(), {
    count,
    ...routing,
    kind: () => sessionKind({ from: [fromQuery('sid', { path: '/socket.io/' })], idleSeconds: 0 }),
  });
  for (const { server, routing } of workers.all) {
    const sockets: Server<EchoEvents> = serveCounters(server, routing, options);
    sockets.use(({ handshake }, next) => next(handshake.auth['refused'] ? new Error('refused') : undefined));
    sockets.on('connection', (socket) => {
      socket.on('echo', (bytes, reply) => reply(bytes));
      socket.on('dismiss', () => void socket.disconnect(true));
    });
  }
  const ports = workers.all.map(({ server }) => portOf(server));
  let taken = 0;
  const balancer = await listening(
    createServer((client) => {
      const worker = connect(ports[taken++ % count] ?? 0, '127.0.0.1');
      client.on('error', () => worker.destroy()).pipe(worker);
      worker.on('error', () => client.destroy()).pipe(client);
    }),
  );
  return {
    ...workers,
    url: `http://127.0.0.1:${portOf(balancer)}`,
    async close() {
      balancer.close();
      await workers.close();
    },
  };
}

/** The ID of a new connection, of which the client then never says anything more. */
async function shakeHands(to: number): Promise<string> {
  const { text } = await send({ to, target: '/socket.io/?EIO=4&transport=polling' });
  return (JSON.parse(text.slice(1)) as { sid: string }).sid;
}

describe('the connections of examples/socket-io', () => {
  const clients = new Clients();
  let workers: Balanced;
  let silent: Balanced;
  before(async () => {
    silent = await startBalanced({ pingInterval: 20, pingTimeout: 500 }, { count: 2 });
    workers = await startBalanced({
      maxHttpBufferSize: 4_000_000,
      allowRequest: ({ url }, done) => done('refused', !url?.includes('refused')),
    });
  });
  after(() => Promise.all([workers.close(), silent.close()]));
  afterEach(() => clients.close());

  const portOfWorker = (index: number): number => portOf(workers.all[index]!.server);

  it('are claimed when their clients learn of them', async () => {
    const sid = await shakeHands(portOfWorker(2));
    expect(workers.claimantOf(sid)).to.equal(2);
    const { status, text } = await send({ to: portOfWorker(3), target: pollOf(sid), method: 'POST', body: '40' });
    expect([status, text]).to.deep.equal([200, 'ok']);
    const poll = await send({ to: portOfWorker(0), target: pollOf(sid) });
    expect([poll.status, poll.text.slice(0, 2)]).to.deep.equal([200, '40']);
    await send({ to: portOfWorker(1), target: pollOf(sid), method: 'POST', body: '1' });
  });

  for (const transports of [['polling'], ['websocket'], upgraded] as const) {
    it(`take 1 MB of bytes and give them back by ${transports.join(' and then ')}`, async () => {
      const bytes = randomBytes(1_000_000);
      await Promise.all(
        clients.start(4, workers.url, transports).map(async (client) => {
          await client.connected();
          const echoed: Uint8Array = await client.socket.emitWithAck('echo', bytes);
          expect(bytes.equals(echoed)).to.equal(true);
          expect(client.disconnects).to.deep.equal([]);
        }),
      );
    });

    it(`may be ended by the server, by ${transports.join(' and then ')}`, async () => {
      const all = clients.start(4, workers.url, transports);
      for (const { socket } of await Promise.all(all.map((client) => client.connected()))) socket.emit('dismiss');
      await until(() => all.every(({ disconnects }) => disconnects.length > 0), 'the server has ended them');
      expect(all.flatMap(({ disconnects }) => disconnects)).to.deep.equal(all.map(() => 'io server disconnect'));
    });
  }

  it('are refused where the app refuses their first request, or a middleware the client', async () => {
    const refused = clients.start(4, workers.url, ['polling'], { query: { refused: '1' } });
    const turnedAway = clients.start(4, workers.url, ['polling'], { auth: { refused: true } });
    await until(() => [...refused, ...turnedAway].every(({ errors }) => errors.length > 0), 'all are refused');
    expect(refused.flatMap(({ errors }) => errors)).to.deep.equal(refused.map(() => 'xhr poll error 403'));
    expect(turnedAway.flatMap(({ errors }) => errors)).to.deep.equal(turnedAway.map(() => 'refused'));
  });

  it('end where a client answers no ping', async () => {
    const [one, other] = silent.all.map(({ server }) => portOf(server)) as [number, number];
    const socket = new WebSocket(`ws://127.0.0.1:${one}/socket.io/?EIO=4&transport=websocket`);
    const sid = await shakeHands(one);
    expect((await send({ to: other, target: pollOf(sid) })).text, 'ping').to.equal('2');
    expect((await send({ to: other, target: pollOf(sid) })).text, 'close').to.equal('1');
    if (socket.readyState !== WebSocket.CLOSED) await once(socket, 'close');
  });

  it('leave no claim behind', async () => {
    await until(() => workers.claims().length === 0 && silent.claims().length === 0, 'there is no claim');
  });

  it('that are unknown, or no IDs at all, get the answer that one worker gives', async () => {
    const alone = await startBalanced({}, { count: 1, shared: false });
    const names = [
      randomUUID(),
      '%00',
      '%FF',
      '+',
      '__proto__',
      'a&sid=a',
      'a&sid=b',
      'x'.repeat(4_096),
      'x'.repeat(5_000),
    ];
    for (const sid of names) {
      const requests = [{ target: pollOf(sid) }, { target: pollOf(sid), method: 'POST', body: '40' }, upgradeOf(sid)];
      for (const request of requests) {
        const answers = await Promise.all(
          [...alone.all, ...workers.all, ...workers.all].map(async ({ server }) => {
            const { status, rawHeaders, text } = await send({ to: portOf(server), ...request });
            return { status, type: rawHeaders[rawHeaders.findIndex((name) => /content-type/i.test(name)) + 1], text };
          }),
        );
        const [expected] = answers;
        expect(expected?.status, sid).to.be.oneOf([400, 409]);
        expect(answers, sid).to.deep.equal(answers.map(() => expected));
      }
    }
    await alone.close();
  });

  it('are refused by workers that route nothing, once a request lands on another worker', async () => {
    const unrouted = await startBalanced({}, { routing: false });
    const all = clients.start(20, unrouted.url, ['polling']);
    const outcomes = await Promise.allSettled(all.map((client) => countUp([client])));
    expect(outcomes.map(({ status }) => status)).to.deep.equal(all.map(() => 'rejected'));
    expect(new Set(all.flatMap(({ errors }) => errors))).to.include('xhr poll error 400');
    const [one, other] = unrouted.all.map(({ server }) => portOf(server)) as [number, number];
    const { status, json } = await send({ to: other, target: pollOf(await shakeHands(one)) });
    expect([status, json]).to.deep.equal([400, { code: 1, message: 'Session ID unknown' }]);
    clients.close();
    await unrouted.close();
  });
});
