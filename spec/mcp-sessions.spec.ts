import { SdkHttpError } from '@modelcontextprotocol/client';
import { StreamableHTTPError } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { expect } from 'chai';
import express from 'express';
import { request as httpRequest, type ClientRequest, type IncomingMessage } from 'node:http';
import { once } from 'node:events';
import { gzipSync } from 'node:zlib';
import { mcpSessions, type McpSessionsOptions } from '../lib/mcp-kinds.ts';
import {
  connectClient,
  Events,
  fetchInTurn,
  fetchOnce,
  mcpApp,
  type HeldSession,
  type Line,
  type McpApp,
  type McpAppOptions,
} from './fixtures/mcp.ts';
import { portOf, send, startWorkers, until, type RawReply, type Workers } from './fixtures/routed.ts';

const initialize = {
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};
const callOf = (tool: string, args = {}) => ({
  jsonrpc: '2.0',
  id: 2,
  method: 'tools/call',
  params: { name: tool, arguments: args },
});
const add = callOf('add', { number: 1 });
const fields = ['Accept', 'application/json, text/event-stream', 'Content-Type', 'application/json'];
const unknown = 'f3b1f0de-0000-4000-8000-000000000000';
const notFound = { jsonrpc: '2.0', error: { code: -32001, message: 'Session not found' }, id: null };

interface Started extends Workers {
  readonly apps: McpApp[];
  urls(path?: string): string[];
}

describe('mcpSessions()', function () {
  this.timeout(30_000);
  let open: Workers[] = [];
  afterEach(async () => {
    await Promise.all(open.map((workers) => workers.close()));
    open = [];
  });

  /** Starts workers with the SDK's wiring; `asks: false` leaves out `isOpen`, and `tells` calls `routing.ended()`. */
  async function start({
    count = 2,
    shared = true,
    asks = true,
    tells = false,
    kind = {},
    ...options
  }: McpAppOptions & {
    count?: number;
    shared?: boolean;
    asks?: boolean;
    tells?: boolean;
    kind?: McpSessionsOptions;
  } = {}): Promise<Started> {
    const maps = Array.from({ length: count }, () => new Map<string, HeldSession>());
    const apps: McpApp[] = [];
    const workers = await startWorkers(
      (routing, index) => {
        const onClosed = tells ? (id: string) => routing.ended(id) : undefined;
        apps.push(mcpApp(routing, { ...options, ...(onClosed && { onClosed }), sessions: maps[index]! }));
        return apps[index]!.listener;
      },
      {
        count,
        shared,
        kind: (index) => mcpSessions({ ...kind, ...(asks && { isOpen: (id) => maps[index]!.has(id) }) }),
      },
    );
    open.push(workers);
    return Object.assign(workers, {
      apps,
      urls: (path = '/mcp') => workers.all.map(({ url }) => url + path),
    });
  }

  /** Posts a message, or a body as it stands, to one worker. */
  function post(
    workers: Workers,
    worker: number,
    message: object | string | Buffer,
    sessionId?: string,
    more: readonly string[] = [],
    target = '/mcp',
  ): Promise<RawReply> {
    const named = sessionId === undefined ? [] : ['Mcp-Session-Id', sessionId];
    const body = typeof message === 'string' || Buffer.isBuffer(message) ? message : JSON.stringify(message);
    const to = portOf(workers.all[worker]!.server);
    return send({ to, method: 'POST', target, fields: [...fields, ...named, ...more], body });
  }

  function ask(workers: Workers, worker: number, method: string, sessionId: string, target = '/mcp') {
    const named = ['Mcp-Session-Id', sessionId, 'Accept', 'text/event-stream'];
    return send({ to: portOf(workers.all[worker]!.server), method, target, fields: named });
  }

  /** Opens a session on one worker. */
  async function begin(workers: Workers, worker = 0, target = '/mcp'): Promise<string> {
    const reply = await post(workers, worker, initialize, undefined, [], target);
    expect(reply.status).to.equal(200);
    return sessionIn(reply);
  }

  /** Waits until the claim of a session is gone. */
  function gone(workers: Workers, sessionId: string): Promise<void> {
    return until(() => workers.claimantOf(sessionId) === undefined, 'the claim is gone');
  }

  /** Opens the event stream of a session over one worker. */
  async function stream(workers: Workers, worker: number, sessionId: string, lastEventId?: string) {
    const resumes = lastEventId === undefined ? [] : ['Last-Event-ID', lastEventId];
    const headers = ['Host', 'localhost', 'Mcp-Session-Id', sessionId, 'Accept', 'text/event-stream', ...resumes];
    const port = portOf(workers.all[worker]!.server);
    const request = httpRequest({ port, host: '127.0.0.1', path: '/mcp', headers, agent: false });
    request.on('error', () => undefined);
    const [response] = (await once(request.end(), 'response')) as [IncomingMessage];
    expect(response.statusCode).to.equal(200);
    response.on('error', () => undefined);
    return new EventStream(request, response);
  }

  it('routes concurrent clients of servers of both lines, which answer with streams or with JSON', async () => {
    async function run(line: Line, json: boolean): Promise<void> {
      const workers = await start({ line, json, count: 3 });
      const clients = Array.from({ length: 10 }, async (_, index) => {
        const sent = fetchInTurn(workers.urls(), index);
        const client = await connectClient(index % 2 === 0 ? 'v1' : 'v2', workers.urls()[0]!, sent);
        await client.listening;
        for (let time = 1; time <= 3; time++) {
          expect(await client.call('add', { number: index })).to.equal(String(time * index));
        }
        await client.call('announce');
        const inReply = json ? [] : [`reply ${3 * index}`]; // JSON has no place for what is sent on the way
        await until(() => client.notes.length > inReply.length, 'the notifications have come');
        expect(client.notes).to.have.members([...inReply, `stream ${3 * index}`]);
        await client.terminate();
        await client.close();
      });
      await Promise.all(clients);
      const seen = workers.apps.flatMap((app) => app.seen);
      expect(seen.filter(({ isForwarded }) => isForwarded).length).to.be.above(seen.length / 2);
      for (const method of ['POST', 'GET', 'DELETE']) {
        expect(seen.some((each) => each.method === method && each.isForwarded)).to.equal(true);
      }
      await until(() => workers.claims().length === 0, 'no claim remains');
      expect(workers.apps.map(({ sessions }) => sessions.size)).to.deep.equal([0, 0, 0]);
    }
    await Promise.all([run('v2', false), run('v2', true), run('v1', false), run('v1', true)]);
  });

  it('claims a session before the head of the reply that names it leaves', async () => {
    const workers = await start({ json: true });
    const statuses = new Set<number>();
    for (let time = 0; time < 200; time++) {
      const body = JSON.stringify(initialize);
      const headers = ['Host', 'localhost', ...fields, 'Content-Length', String(Buffer.byteLength(body))];
      const to = { port: portOf(workers.all[0]!.server), host: '127.0.0.1', path: '/mcp', method: 'POST', headers };
      const request = httpRequest({ ...to, agent: false }).end(body);
      const next = await new Promise<Promise<RawReply>>((resolve, reject) => {
        request.once('error', reject);
        // At the head, with its body still to come.
        request.once('response', (response) => {
          resolve(post(workers, 1, add, String(response.headers['mcp-session-id'])));
          response.resume();
        });
      });
      statuses.add((await next).status);
    }
    expect([...statuses]).to.deep.equal([200]);
    expect(workers.apps[0]!.seen.filter(({ isForwarded }) => isForwarded)).to.have.length(200);
  });

  it('ends a session with its transport, and with a 404 of the app to a request for it', async () => {
    async function asked(): Promise<void> {
      const workers = await start();
      const sessionId = await begin(workers);
      const events = await stream(workers, 1, sessionId);
      await workers.apps[0]!.sessions.get(sessionId)!.close();
      await events.ended; // with which isOpen is asked
      await gone(workers, sessionId);
    }

    async function told(): Promise<void> {
      const workers = await start({ asks: false, tells: true });
      const sessionId = await begin(workers);
      await workers.apps[0]!.sessions.get(sessionId)!.close();
      await gone(workers, sessionId);
    }

    async function notFound(): Promise<void> {
      const workers = await start({ asks: false });
      const [sessionId, other] = [await begin(workers), await begin(workers)];
      for (const [method, target] of [
        ['GET', '/nothing'],
        ['GET', '/mcp/nothing'],
        ['DELETE', '/mcp/nothing'],
        ['PATCH', '/mcp'],
      ] as const) {
        expect((await ask(workers, 1, method, sessionId, target)).status).to.equal(404); // of no such route
      }
      await workers.apps[0]!.sessions.get(other)!.close();
      expect(workers.claimantOf(other)).to.equal(0);
      expect((await ask(workers, 1, 'GET', other)).status).to.equal(404);
      await gone(workers, other);
      expect(workers.claimantOf(sessionId)).to.equal(0);
      expect((await post(workers, 1, add, sessionId)).status).to.equal(200);
    }

    /** A reply that was begun before the session ended, and names it. */
    async function named(): Promise<void> {
      const workers = await startWorkers(
        (routing) =>
          express().post('/mcp', (request, response) => {
            const { 'mcp-session-id': sessionId } = request.headers;
            if (sessionId !== undefined) routing.ended(String(sessionId));
            response.set('Mcp-Session-Id', 'a').json({});
          }),
        { kind: () => mcpSessions() },
      );
      open.push(workers);
      await post(workers, 0, initialize);
      expect(workers.claimantOf('a')).to.equal(0);
      expect((await post(workers, 1, add, 'a')).status).to.equal(200);
      await gone(workers, 'a');
    }

    await Promise.all([asked(), told(), notFound(), named()]);
  });

  describe('with a worker that has left', () => {
    it('answers for its sessions 404 with a JSON-RPC error, and leaves those of others alone', async () => {
      const workers = await start({ count: 3 });
      const [lost, kept] = [await begin(workers, 0), await begin(workers, 1)];
      const events = await stream(workers, 2, kept);
      await workers.leave(workers.all[0]!);

      for (const worker of [1, 2]) {
        for (const reply of [
          await post(workers, worker, add, lost),
          await ask(workers, worker, 'GET', lost),
          await ask(workers, worker, 'DELETE', lost),
        ]) {
          expect(reply.status).to.equal(404);
          expect(reply.rawHeaders).to.include('application/json');
          const { data, ...error } = reply.json.error;
          expect({ ...reply.json, error }).to.deep.equal(notFound);
          expect(data.code).to.equal('SESSION_GONE');
        }
      }
      expect((await post(workers, 2, add, kept)).status).to.equal(200);
      await workers.apps[1]!.sessions.get(kept)!.announce('still there');
      await until(() => events.text.includes('still there'), 'the event has come');
      events.leave();
    });

    for (const line of ['v1', 'v2'] as const) {
      it(`lets a ${line} client know by the status, so that it connects anew`, async () => {
        const workers = await start({ count: 3 });
        const direct = await connectClient(line, workers.urls()[0]!, fetchOnce);
        await workers.leave(workers.all[0]!);
        const left = fetchInTurn(workers.urls().slice(1));
        const { sessionId } = direct;
        await direct.close();
        // The client's transport, which has moved on to the workers that are left.
        const failed = await resumed(line, workers.urls()[1]!, left, sessionId!);
        expect(failed).to.include(line === 'v1' ? { code: 404 } : { status: 404 });
        const anew = await connectClient(line, workers.urls()[1]!, left);
        expect(await anew.call('add', { number: 2 })).to.equal('2');
        await anew.close();
      });
    }
  });

  for (const shared of [true, false]) {
    describe(`initialize with an ID that is there no longer, ${shared ? 'on two workers' : 'with one'}`, () => {
      const other = shared ? 1 : 0;
      const long = (bytes: number) => {
        const clientInfo = { name: 'x'.repeat(bytes), version: '1' };
        return { ...initialize, params: { ...initialize.params, clientInfo } };
      };

      it('begins a new session, and the app does not see the ID', async () => {
        const workers = await start({ shared, count: shared ? 2 : 1 });
        for (const [message, more] of [
          [initialize, []],
          [gzipSync(JSON.stringify(initialize)), ['Content-Encoding', 'gzip']],
          [long(60_000), []],
        ] as const) {
          const reply = await post(workers, other, message, unknown, more);
          expect(reply.status).to.equal(200);
          expect(sessionIn(reply)).to.not.equal(unknown);
        }
        for (const { sessionId } of workers.apps[other]!.seen) expect(sessionId).to.equal(undefined);
      });

      it('begins none with any other body, which reaches the app as it is', async () => {
        const workers = await start({ shared, count: shared ? 2 : 1 });
        const chunked = ['Transfer-Encoding', 'chunked'];
        for (const [status, message, more] of [
          [404, callOf('initialize', { method: 'initialize' }), []],
          [404, [initialize], []],
          [404, initialize, chunked],
          [404, long(70_000), []],
          [404, {}, []],
          [413, long(110_000), []], // over the limit of express.json()
          [400, 'initialize', []],
          [400, JSON.stringify(initialize).slice(0, -1), []],
          [400, Buffer.from('initialize'), ['Content-Encoding', 'gzip']],
        ] as const) {
          expect((await post(workers, other, message, unknown, more)).status, String(message)).to.equal(status);
        }
        for (const { sessionId } of workers.apps[other]!.seen) expect(sessionId).to.equal(unknown);
        expect(workers.apps[other]!.seen).to.have.length(5);
      });

      it('begins a new session at once behind a 404, wherever the one and the other land', async () => {
        const workers = await start({ shared, count: shared ? 2 : 1 });
        for (const [first, second] of [
          [0, other],
          [other, 0],
          [0, 0],
        ] as const) {
          const sessionId = await begin(workers);
          await workers.apps[0]!.sessions.get(sessionId)!.close();
          expect((await post(workers, first, add, sessionId)).status).to.equal(404);
          const reply = await post(workers, second, initialize, sessionId);
          expect(reply.status).to.equal(200);
          expect(sessionIn(reply)).to.not.equal(sessionId);
        }
      });

      it('reaches the app where the session is, with the ID of a live one', async () => {
        const workers = await start({ shared, count: shared ? 2 : 1 });
        const sessionId = await begin(workers);
        const reply = await post(workers, other, initialize, sessionId);
        expect([reply.status, reply.json.error.code]).to.deep.equal([400, -32600]);
        expect(workers.apps[0]!.seen.at(-1)).to.include({ sessionId, isForwarded: shared });
      });
    });
  }

  it('lets initialize begin anew with the ID of a worker that has left, and answers 404 where it cannot tell', async () => {
    const workers = await start({ count: 3 });
    const sessionId = await begin(workers);
    await workers.leave(workers.all[0]!);
    const reply = await post(workers, 1, initialize, sessionId);
    expect(reply.status).to.equal(200);
    expect(workers.claimantOf(sessionIn(reply))).to.equal(1);
    for (const [message, more] of [
      [[initialize], []],
      [initialize, ['Transfer-Encoding', 'chunked']],
    ] as const) {
      const refused = await post(workers, 2, message, sessionId, more);
      expect([refused.status, refused.json.error.code]).to.deep.equal([404, -32001]);
    }
  });

  it('answers for an ID that is unknown or malformed as an app without routing does', async () => {
    const [workers, alone] = [await start(), await start({ shared: false, count: 1 })];
    const plain = mcpApp(undefined).listener.listen(0, '127.0.0.1');
    await once(plain, 'listening');
    const bare = { all: [{ server: plain }] } as unknown as Workers;
    const known = await begin(workers);
    for (const [sessionId, more] of [
      [unknown, []],
      [unknown, ['Mcp-Session-Id', unknown]],
      [known, ['Mcp-Session-Id', known]],
      ['two words', []],
      [`${unknown},`, []],
      ['Ünïcödé', []],
      ['', []],
    ] as const) {
      for (const message of [add, {}]) {
        const expected = await post(bare, 0, message, sessionId, more);
        for (const [at, worker] of [
          [workers, 0],
          [workers, 1],
          [alone, 0],
        ] as const) {
          const { status, text } = await post(at, worker, message, sessionId, more);
          expect([status, text], sessionId).to.deep.equal([expected.status, expected.text]);
        }
      }
    }
    plain.close();
  });

  it('refuses an ID that is too long for any with a JSON-RPC error, on one worker as on two', async () => {
    for (const [workers, worker] of [
      [await start(), 1],
      [await start({ shared: false, count: 1 }), 0],
    ] as const) {
      const { status, json } = await post(workers, worker, add, 'x'.repeat(5_000));
      expect([status, json.error.code, json.error.data.code]).to.deep.equal([400, -32000, 'SESSION_ID_INVALID']);
    }
  });

  for (const line of ['v1', 'v2'] as const) {
    it(`brings a client that resumes an event stream of a ${line} server to what it has missed`, async () => {
      const workers = await start({ line, eventStore: new Events() });
      const sessionId = await begin(workers);
      const session = workers.apps[0]!.sessions.get(sessionId)!;
      const broken = await stream(workers, 1, sessionId);
      await session.announce('first');
      await until(() => broken.text.includes('first'), 'the event has come');
      const { response } = workers.apps[0]!.seen.find(({ method }) => method === 'GET')!;
      const gone = once(response, 'close');
      broken.leave();
      await gone;
      await session.announce('missed');

      const resumedStream = await stream(workers, 1, sessionId, broken.lastEventId);
      await until(() => resumedStream.text.includes('missed'), 'the event has come');
      expect(resumedStream.text).to.not.include('first');
      await session.announce('next');
      await until(() => resumedStream.text.includes('next'), 'the stream goes on');
      expect(workers.apps[0]!.seen.at(-1)).to.include({ isForwarded: true, lastEventId: broken.lastEventId });
      resumedStream.leave();
    });
  }

  it('serves any path, in the forms that Express takes it in', async () => {
    async function run(target: string, options: Parameters<typeof start>[0]): Promise<void> {
      const workers = await start({ ...options, asks: false });
      const [first, second] = [await begin(workers, 0, target), await begin(workers, 0, target)];
      const sent = (message: object, sessionId: string) => post(workers, 1, message, sessionId, [], target);
      expect((await sent(add, first)).status).to.equal(200);
      expect((await sent(initialize, unknown)).status).to.equal(200);
      expect((await sent(add, unknown)).status).to.equal(404);
      expect((await ask(workers, 1, 'DELETE', first, target)).status).to.equal(200);
      await workers.apps[0]!.sessions.get(second)!.close();
      expect((await sent(add, second)).status).to.equal(404);
      await gone(workers, first);
      await gone(workers, second);
    }
    await Promise.all([
      run('/api/mcp', { path: '/api/mcp', kind: { path: '/api/mcp' } }),
      run('/api/mcp', { path: '/api/mcp', kind: { basePath: '/api/' } }),
      run('/mcp/', {}),
      run('/mcp', { kind: { path: '/mcp/' } }),
      run('/MCP?a=query', {}),
    ]);
  });

  it('refuses options that are none', () => {
    expect(() => mcpSessions({ path: 'mcp' })).to.throw(TypeError, 'mcpSessions(): option "path"');
    expect(() => mcpSessions({ open: () => true } as McpSessionsOptions)).to.throw(TypeError, 'did you mean "isOpen"?');
  });
});

/** A call by a client that goes on with a session which it has. */
async function resumed(line: Line, url: string, sent: typeof fetch, sessionId: string): Promise<unknown> {
  const named: typeof fetch = (input, init) => {
    const headers = new Headers(init?.headers);
    headers.set('mcp-session-id', sessionId);
    return sent(input, { ...init, headers });
  };
  try {
    let isConnected = false;
    const client = await connectClient(line, url, (input, init) => (isConnected ? named : sent)(input, init));
    isConnected = true;
    await client.call('add', { number: 1 }).finally(() => client.close());
  } catch (error) {
    expect(error).to.be.instanceOf(line === 'v1' ? StreamableHTTPError : SdkHttpError);
    return error;
  }
  throw new Error('The call has succeeded');
}

function sessionIn({ rawHeaders }: RawReply): string {
  const at = rawHeaders.findIndex((name) => name.toLowerCase() === 'mcp-session-id');
  return rawHeaders[at + 1] ?? '';
}

/** An event stream, and what came in it. */
class EventStream {
  text = '';
  readonly ended: Promise<unknown>;
  readonly #request: ClientRequest;

  constructor(request: ClientRequest, response: IncomingMessage) {
    this.#request = request;
    this.ended = once(response, 'close');
    response.setEncoding('utf8').on('data', (text: string) => (this.text += text));
  }

  get lastEventId(): string {
    return [...this.text.matchAll(/^id: (.+)$/gm)].at(-1)?.[1] ?? '';
  }

  leave(): void {
    this.#request.destroy();
  }
}
