import { randomBytes, randomInt, randomUUID } from 'node:crypto';
import { Agent } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { echo, exchange, talk, type Exchange, type Outcome } from './client.ts';
import { Ledger, Session, type Judge } from './judge.ts';
import { oddBytes } from './odd-bytes.ts';

export interface Traffic {
  readonly port: number;
  readonly judge: Judge;
  readonly signal: AbortSignal;
}

const tokenField = 'X-NeMo-Gym-Session-Token';
/** How often what may be repeated is sent before the client gives up: for some ten seconds at the least. */
const attempts = 60;
/** Of the replies that can be done without, one in so many is not waited for. */
const lostReplies = 8;

/** Between two calls of a client. */
function think(): Promise<void> {
  return delay(randomInt(2, 40));
}

/** How long a client waits that will leave: sometimes not even until its request has been read. */
function impatience(): number | undefined {
  return randomInt(lostReplies) === 0 ? randomInt(0, 12) : undefined;
}

/** A client with one session. */
class Client {
  readonly session: Session;
  readonly #traffic: Traffic;
  readonly #id: string | undefined;
  readonly #agent: Agent | undefined;
  cookie = '';
  token: Record<string, string> = {};

  /** @param kind `typed`: it chooses the session's ID; `untyped`: the cookie of the seed's reply names it */
  constructor(traffic: Traffic, kind: 'typed' | 'untyped') {
    this.#traffic = traffic;
    this.session = new Session(traffic.judge);
    this.#id = kind === 'typed' ? randomUUID() : undefined;
    // Half of the clients keep their connection; the others make one for each call.
    this.#agent = randomInt(2) === 0 ? new Agent({ keepAlive: true, maxSockets: 1 }) : undefined;
  }

  send(sent: Exchange): Promise<Outcome> {
    const cookie = this.cookie === '' ? {} : { cookie: this.cookie };
    return exchange(this.#traffic.port, { agent: this.#agent, ...sent, headers: { ...cookie, ...sent.headers } });
  }

  /** Returns whether the session is open. A typed seed is repeated until there is an answer. */
  async seed(): Promise<boolean> {
    const json = this.#id === undefined ? {} : { resources_session_id: this.#id };
    const answer = await this.#repeat('seed', this.#id === undefined ? 1 : attempts, () => ({
      path: '/seed_session',
      json,
      // The reply is all that names an untyped session: without it, it would stay open for good.
      leaveAfterMs: this.#id === undefined ? undefined : impatience(),
    }));
    if (answer === undefined) return false;
    const { headers } = (answer['mcp'] ?? answer['resources_tools']) as { headers: Record<string, string> };
    this.token = headers;
    if (this.cookie === '') this.#traffic.judge.fault('seed: no cookie');
    if (headers[tokenField] === undefined) this.#traffic.judge.fault('seed: no token');
    return true;
  }

  /** One increment. It is never repeated, whatever comes back. */
  async add(): Promise<void> {
    const json = { amount: this.session.ledger.nextAmount };
    const outcome = await this.send({ path: '/add', json, leaveAfterMs: impatience() });
    this.#enter(this.session.judge('add', outcome, JSON.parse));
  }

  /** The same, as a tool over MCP. */
  async addByTool(): Promise<void> {
    const amount = this.session.ledger.nextAmount;
    const outcome = await this.callTool('add', { amount }, impatience());
    this.#enter(this.session.judge('tool add', outcome, workerOfTool));
  }

  callTool(name: string, args: object, leaveAfterMs?: number): Promise<Outcome> {
    return exchange(this.#traffic.port, {
      path: '/mcp',
      headers: { ...this.token, accept: 'application/json, text/event-stream' },
      json: { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: args } },
      leaveAfterMs,
    });
  }

  /** Reads the count, checks it, and ends the session: by a verdict, a close, or both. */
  async end(): Promise<void> {
    const read = await this.#repeat('read', attempts, () => ({ path: '/read', leaveAfterMs: impatience(), json: {} }));
    if (read !== undefined) this.session.judgeCount('read', read['count']);
    if (this.#id === undefined) {
      const verdict = await this.#repeat('verify', attempts, () => ({ path: '/verify', leaveAfterMs: impatience() }));
      if (verdict !== undefined) this.session.judgeCount('verify', verdict['count']);
    }
    if (this.#id !== undefined || randomInt(2) === 0) {
      const json = this.#id === undefined ? {} : { resources_session_id: this.#id };
      const close = () => ({ path: '/close_session', json, leaveAfterMs: impatience() });
      const closed = await this.#repeat('close', attempts, close);
      if (closed !== undefined) this.session.judgeCount('close', closed['count']);
    }
  }

  leave(): void {
    this.#agent?.destroy();
  }

  #enter(answer: object | 'refused' | undefined): void {
    this.session.ledger.enter(answer === 'refused' ? 'not at all' : answer === undefined ? 'perhaps' : 'once');
  }

  /** Sends what may be sent again, until there is an answer or the session is gone. */
  async #repeat(call: string, times: number, next: () => Exchange): Promise<Record<string, unknown> | undefined> {
    const begin = performance.now();
    for (let attempt = 0; attempt < times && !this.session.isGone; attempt++) {
      if (attempt > 0) await delay(Math.min(20 * attempt, 200));
      const outcome = await this.send(next());
      for (const setCookie of (outcome.status !== undefined && outcome.headers['set-cookie']) || []) {
        this.cookie = setCookie.split(';', 1)[0] ?? '';
      }
      const answer = this.session.judge(call, outcome, JSON.parse);
      if (answer !== undefined && answer !== 'refused') return answer;
    }
    const isExcused = this.session.isGone || times === 1;
    if (!isExcused) this.#traffic.judge.fault(`${call}: no answer in ${Math.round(performance.now() - begin)} ms`);
    return undefined;
  }
}

/** Reads a tool's reply, in which there is the reply of the route that it stands for. */
function workerOfTool(body: string): { worker?: number } | undefined {
  const text = /^data: (.*)$/m.exec(body)?.[1] ?? body;
  const { structuredContent } = JSON.parse(text).result;
  return structuredContent?.worker === undefined ? undefined : structuredContent;
}

/** A client's life: a session, what it does with it, and its end. */
async function episode(
  traffic: Traffic,
  kind: 'typed' | 'untyped',
  use: (client: Client) => Promise<void>,
): Promise<void> {
  const client = new Client(traffic, kind);
  try {
    if (!(await client.seed())) return;
    await use(client);
    await client.end();
  } finally {
    client.leave();
    traffic.judge.touched();
  }
}

async function repeatedly(client: Client, act: () => Promise<void>): Promise<void> {
  const times = randomInt(1, Ledger.capacity);
  for (let time = 0; time < times && !client.session.isGone; time++) {
    await think();
    await act();
  }
}

async function readStream({ port, judge }: Traffic, client: Client): Promise<void> {
  const ticks = randomInt(50, 150);
  const outcome = await exchange(port, {
    method: 'GET',
    path: `/stream?ticks=${ticks}`,
    headers: { cookie: client.cookie },
    // Some leave in the middle.
    leaveAfterMs: randomInt(3) === 0 ? randomInt(0, 1_500) : undefined,
  });
  client.session.judge('stream', outcome, (body) => {
    const [worker, ...lines] = body.split('\n');
    const expected = [...Array.from({ length: ticks }, (_, tick) => String(tick)), 'end', ''];
    if (lines.join('\n') !== expected.join('\n')) judge.fault(`stream: ended well after ${lines.length} lines`);
    return { worker: Number(worker) };
  });
}

async function speakEcho({ port, judge }: Traffic, client: Client): Promise<void> {
  const lines = Array.from({ length: randomInt(1, 30) }, () => randomBytes(randomInt(1, 2_000)).toString('base64url'));
  const { begin, end, worker, isRight, received } = await echo(port, client.cookie, lines);
  const status = Number(/^HTTP\/1\.1 (\d+) /.exec(received)?.[1] ?? 0);
  if (status === 101) {
    judge.count(`upgrade: ${isRight ? 'echoed' : 'cut short'}`);
    client.session.judgeWorker('upgrade', worker);
    if (!isRight && !judge.hasKilledDuring({ begin, end }))
      judge.fault('upgrade: cut short, though no worker was killed');
    return;
  }
  const reply = { begin, end, headers: {}, body: received };
  const none = { begin, end, reason: 'no reply', isOwnDoing: false };
  client.session.judge(
    'upgrade',
    status === 0 ? { ...none, status: undefined } : { ...reply, status },
    () => undefined,
  );
}

/** Requests that are broken off in their bodies, or are never waited for. */
async function abort({ port }: Traffic, client: Client): Promise<void> {
  const { cookie } = client;
  const leaveAfterMs = randomInt(0, 100);
  const sent: Exchange = [
    { path: '/upload', headers: { cookie }, promisedBytes: 1_000_000, leaveAfterMs },
    { path: '/upload', headers: { cookie, 'content-type': 'text/plain' }, json: 'x'.repeat(100_000), leaveAfterMs },
    { method: 'GET' as const, path: '/stream?ticks=1000', headers: { cookie }, leaveAfterMs },
    // A close that never comes whole closes nothing.
    { path: '/close_session', headers: { cookie }, promisedBytes: 100, leaveAfterMs },
  ][randomInt(4)]!;
  client.session.judge('abort', await exchange(port, sent), () => ({}));
}

async function sendOddBytes({ port, judge }: Traffic): Promise<void> {
  const { name, bytes } = oddBytes();
  const received = await talk(port, bytes, randomInt(0, 200));
  judge.touched();
  const statuses = [...received.matchAll(/^HTTP\/1\.1 (\d{3})/gm)].map(([, status]) => Number(status));
  judge.count(`odd bytes: ${statuses[0] ?? 'connection ended'}`);
  const wrong = statuses.find((status) => status >= 500 && status !== 503 && status !== 501);
  if (wrong !== undefined) judge.fault(`odd bytes (${name}): ${wrong}`);
  if (received !== '' && statuses.length === 0) judge.fault(`odd bytes (${name}): ${received.slice(0, 100)}`);
}

/** What the clients do, each over and over, and how many of them do it at once. */
const acts: readonly { readonly clients: number; readonly act: (traffic: Traffic) => Promise<void> }[] = [
  { clients: 5, act: (traffic) => episode(traffic, 'untyped', (client) => repeatedly(client, () => client.add())) },
  { clients: 5, act: (traffic) => episode(traffic, 'typed', (client) => repeatedly(client, () => client.add())) },
  { clients: 3, act: (traffic) => episode(traffic, 'typed', (client) => repeatedly(client, () => client.addByTool())) },
  { clients: 2, act: (traffic) => episode(traffic, 'untyped', (client) => readStream(traffic, client)) },
  { clients: 2, act: (traffic) => episode(traffic, 'typed', (client) => speakEcho(traffic, client)) },
  {
    clients: 3,
    act: (traffic) => episode(traffic, 'typed', (client) => repeatedly(client, () => abort(traffic, client))),
  },
  { clients: 1, act: sendOddBytes },
];

export const clientCount = acts.reduce((sum, { clients }) => sum + clients, 0);

/** Keeps all clients at it until the signal, and then lets each finish what it does. */
export async function drive(traffic: Traffic): Promise<void> {
  const keepOn = async (act: (traffic: Traffic) => Promise<void>): Promise<void> => {
    while (!traffic.signal.aborted) {
      await act(traffic);
      await think();
    }
  };
  await Promise.all(acts.flatMap(({ clients, act }) => Array.from({ length: clients }, () => keepOn(act))));
}
