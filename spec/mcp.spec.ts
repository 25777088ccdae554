import { Client as McpClient, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as OldMcpClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { expect } from 'chai';
import express, { type Express } from 'express';
import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { createRequire } from 'node:module';
import fetch, { type RequestInit } from 'node-fetch';
import { z } from 'zod';
import { exposeToolsOverMcp, type McpToolsOptions } from '../lib/mcp.ts';
import type { RoutedSessionOptions } from '../lib/session-cookie.ts';
import { resources, web, type ResourcesOptions } from '../lib/session-kinds.ts';
import { sessionRouting, type SessionRouting } from '../lib/session-routing.ts';
import {
  Client,
  cookieOf,
  portOf,
  secret,
  send,
  startWorkers,
  until,
  type RawReply,
  type Workers,
} from './fixtures/routed.ts';
import { SessionTokens } from '../lib/session-token.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;
const tokens = new SessionTokens([secret]);
const field = 'X-NeMo-Gym-Session-Token';

interface AppOptions extends Partial<McpToolsOptions> {
  readonly createApp?: () => Express;
  readonly session?: RoutedSessionOptions;
  readonly routes?: (app: Express, worker: number) => void;
}

/** A resources server with a count for each session, and what a spec adds. */
function appOf(routing: SessionRouting, worker: number, options: AppOptions = {}): Express {
  const { createApp = express, session = {}, routes = () => undefined, ...mcp } = options;
  const counts = new Map<string, number>();
  const app = createApp();
  app.set('env', 'test'); // Express prints errors otherwise
  app.use(routing);
  app.use(routing.session({ resave: false, saveUninitialized: false, ...session }));
  app.use(createApp === express ? express.json() : express4.json());
  exposeToolsOverMcp(app, { routing, ...mcp });
  app.post('/seed_session', (req, res) => {
    counts.set(req.sessionID, 0);
    const { resources_session_id: id } = req.body;
    res.json(id === undefined ? {} : { resources_session_id: id, resources_tools: null });
  });
  app.post('/add', (req, res) => {
    if (typeof req.body.count !== 'number') return void res.status(422).json({ detail: [{ loc: ['body', 'count'] }] });
    counts.set(req.sessionID, (counts.get(req.sessionID) ?? 0) + req.body.count);
    res.json({ worker, count: counts.get(req.sessionID) });
  });
  app.post('/close_session', (req, res) => res.json({ wasOpen: counts.delete(req.sessionID) }));
  app.post('/verify', (req, res) => res.json({ reward: 1, names: namesIn(req.body), response: req.body.response }));
  routes(app, worker);
  return app;
}

function namesIn({ response }: { response?: { output?: unknown } }): unknown[] | undefined {
  const output = response?.output;
  return Array.isArray(output) ? output.map((item: { name?: string } | null) => item?.name) : undefined;
}

interface Call {
  readonly token?: string;
  readonly cookie?: string;
  readonly path?: string;
  readonly fields?: readonly string[];
}

/** Sends a JSON-RPC request to the endpoint of a worker, as a client of the protocol's older revisions does. */
function rpc(workers: Workers, worker: number, method: string, params: object, call: Call = {}): Promise<RawReply> {
  return post(workers, worker, { jsonrpc: '2.0', id: 1, method, params }, call);
}

function post(
  workers: Workers,
  worker: number,
  body: unknown,
  { token, cookie, path = '/mcp', fields = [] }: Call = {},
) {
  return send({
    to: portOf(workers.all[worker]!.server),
    method: 'POST',
    target: path,
    fields: [
      'Content-Type',
      'application/json',
      'Accept',
      'application/json, text/event-stream',
      ...(token === undefined ? [] : [field, token]),
      ...(cookie === undefined ? [] : ['Cookie', cookie]),
      ...fields,
    ],
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

async function call(workers: Workers, worker: number, name: string, args: object, how: Call = {}) {
  const { status, json } = await rpc(workers, worker, 'tools/call', { name, arguments: args }, how);
  expect(status).to.equal(200);
  return json.result;
}

/** As the global one, on a new connection for each request. */
const fetchAnew: typeof globalThis.fetch = async (url, init) => {
  const response = await fetch(String(url), init as RequestInit);
  const body = await response.arrayBuffer();
  const { status, headers } = response;
  return new Response(body.byteLength > 0 ? body : null, { status, headers: [...headers] });
};

const failed = (text: string): object => ({ content: [{ type: 'text', text }], isError: true });

describe('exposeToolsOverMcp()', () => {
  const running: Workers[] = [];
  afterEach(async () => {
    await Promise.all(running.splice(0).map((workers) => workers.close()));
  });

  async function start(options: AppOptions = {}, kind: ResourcesOptions = {}, count = 2): Promise<Workers> {
    const makeApp = (routing: SessionRouting, worker: number): Express => appOf(routing, worker, options);
    const workers = await startWorkers(makeApp, { kind: resources(kind), count, shared: count > 1 });
    running.push(workers);
    return workers;
  }

  /** Seeds a session on a worker, and returns its ID and its token. */
  async function seed(workers: Workers, worker = 0, body: object = {}): Promise<{ token: string; sid: string }> {
    const { json } = await new Client().post(`${workers.all[worker]!.url}/seed_session`, body);
    const token = (json.mcp ?? json.resources_tools).headers[field];
    return { token, sid: tokens.read(token)!.sid };
  }

  for (const [line, createApp] of [
    ['5', express],
    ['4', express4],
  ] as const) {
    it(`calls a tool's route of Express ${line} in the session of the token, on the worker that holds it`, async () => {
      const workers = await start({ createApp });
      const { token, sid } = await seed(workers, 0);
      expect(workers.claimantOf(sid)).to.equal(0);
      for (const [at, count] of [1, 0, 1].entries()) {
        const result = await call(workers, at % 2, 'add', { count }, { token });
        const structuredContent = { worker: 0, count: at === 0 ? 1 : at };
        expect(result).to.deep.equal({
          content: [{ type: 'text', text: JSON.stringify(structuredContent) }],
          structuredContent,
        });
      }
      expect(workers.claims()).to.have.length(1);
    });
  }

  it('lists the POST routes that have no parameter and are not of the protocol, each with its schema', async () => {
    const workers = await start({
      tools: { add: { description: 'Adds', input: z.object({ count: z.int(), by: z.string().default('me') }) } },
      exclude: ['RESET'],
      routes(app) {
        const router = express.Router();
        router.post(['/one/', '/two'], (_req, res) => void res.json({}));
        router.route('/three').post((_req, res) => void res.json({}));
        router.post('/games/:game', (_req, res) => void res.json({}));
        router.post(/^.four$/, (_req, res) => void res.json({}));
        router.get('/five', (_req, res) => void res.json({}));
        router.post('/reset', (_req, res) => void res.json({}));
        router.post('/a/b', (_req, res) => void res.json({}));
        app.use(router);
        app.use(
          '/below',
          express.Router().post('/six', (_req, res) => void res.json({})),
        );
        for (const path of ['/Sandbox_Access', '/aggregate_metrics']) app.post(path, (_req, res) => void res.json({}));
      },
    });
    const { json } = await rpc(workers, 0, 'tools/list', {});
    const any = { type: 'object', additionalProperties: true };
    expect(json.result.tools.slice(1)).to.deep.equal(
      ['one', 'two', 'three', 'a/b'].map((name) => ({ name, inputSchema: any })),
    );
    const [add] = json.result.tools;
    expect(add).to.include({ name: 'add', description: 'Adds' });
    expect(add.inputSchema).to.deep.include({ type: 'object', required: ['count'] });
    expect(add.inputSchema.properties.by).to.deep.equal({ default: 'me', type: 'string' });
  });

  it('lists every tool without a valid token, and those that a valid one allows', async () => {
    const workers = await start({ routes: (app) => void app.post('/drop', (_req, res) => void res.json({})) });
    const listed = async (token?: string): Promise<string[]> => {
      const { json } = await rpc(workers, 0, 'tools/list', {}, token === undefined ? {} : { token });
      return json.result.tools.map(({ name }: { name: string }) => name);
    };
    expect(await listed()).to.deep.equal(['add', 'drop']);
    expect(await listed('x')).to.deep.equal(['add', 'drop']);
    expect(await listed(tokens.mint('a'))).to.deep.equal(['add', 'drop']);
    expect(await listed(tokens.mint('a', ['drop', 'none']))).to.deep.equal(['drop']);
    expect(await listed(tokens.mint('a', []))).to.deep.equal([]);
  });

  for (const workerCount of [1, 2]) {
    it(`refuses with the text of the protocol what may not be called, on ${workerCount} workers`, async () => {
      const workers = await start({}, {}, workerCount);
      const { token, sid } = await seed(workers);
      const unknown = failed("Unknown tool: 'nope'. Available tools: ['add']");
      const missing = failed(`Missing ${field} for Gym MCP tool call.`);
      const invalid = failed('Invalid Gym MCP session token.');
      const rows: [string, string | undefined, object][] = [
        ['nope', undefined, unknown],
        ['nope', 'x', unknown],
        ['nope', token, unknown],
        ['verify', token, failed("Unknown tool: 'verify'. Available tools: ['add']")],
        ['seed_session', token, failed("Unknown tool: 'seed_session'. Available tools: ['add']")],
        ['__proto__', token, failed("Unknown tool: '__proto__'. Available tools: ['add']")],
        ['add', undefined, missing],
        ['add', '', missing],
        ['add', 'x', invalid],
        ['add', `${token}x`, invalid],
        ['add', token.slice(0, -1), invalid],
        ['add', `${token}, ${token}`, invalid],
        ['add', new SessionTokens(['another secret']).mint(sid), invalid],
        ['add', cookieOf(sid), invalid],
        ['add', tokens.mint(sid, []), failed("Tool 'add' is not allowed for this session.")],
        ['add', tokens.mint(sid, ['drop']), failed("Tool 'add' is not allowed for this session.")],
      ];
      for (const [name, sent, expected] of rows) {
        for (let worker = 0; worker < workerCount; worker++) {
          const how = sent === undefined ? {} : { token: sent };
          expect(await call(workers, worker, name, { count: 1 }, how), `${name} ${sent}`).to.deep.equal(expected);
        }
      }
      // None of them has counted.
      expect((await call(workers, 0, 'add', { count: 1 }, { token })).structuredContent.count).to.equal(1);
    });
  }

  it('tells what a route answers, whatever that is', async () => {
    const answers: [string, (response: express.Response) => void, object][] = [
      ['list', (res) => res.json([1, 2]), { content: [{ type: 'text', text: '[1,2]' }] }],
      ['string', (res) => res.json('a "b"'), { content: [{ type: 'text', text: '"a \\"b\\""' }] }],
      ['null', (res) => res.json(null), { content: [{ type: 'text', text: 'null' }] }],
      ['text', (res) => res.type('text').send('plain é'), { content: [{ type: 'text', text: 'plain é' }] }],
      ['textual', (res) => res.type('text').send('{"a": 1}'), { content: [{ type: 'text', text: '{"a": 1}' }] }],
      ['nothing', (res) => res.status(204).end(), { content: [{ type: 'text', text: '' }] }],
      [
        'spaced',
        (res) => res.type('json').send('{ "a" : 1 }'),
        { content: [{ type: 'text', text: '{"a":1}' }], structuredContent: { a: 1 } },
      ],
      ['broken', (res) => res.type('json').send('{'), { content: [{ type: 'text', text: '{' }] }],
      ['conflict', (res) => res.status(409).json({ detail: 'Closed' }), failed('HTTP 409 from POST /conflict: Closed')],
      [
        'issues',
        (res) => res.status(422).json({ detail: [{ a: 1 }] }),
        failed('HTTP 422 from POST /issues: [{"a":1}]'),
      ],
      ['other', (res) => res.status(400).json({ error: 'x' }), failed('HTTP 400 from POST /other: {"error":"x"}')],
      ['repr', (res) => res.status(500).json("ValueError('x')"), failed("HTTP 500 from POST /repr: ValueError('x')")],
      ['words', (res) => res.status(503).type('text').send('later'), failed('HTTP 503 from POST /words: later')],
      ['silent', (res) => res.status(403).end(), failed('HTTP 403 from POST /silent: Forbidden')],
      ['moved', (res) => res.redirect('/elsewhere'), failed('HTTP 302 from POST /moved: Found')],
      [
        'throws',
        () => {
          throw new Error('secret words');
        },
        failed('HTTP 500 from POST /throws: Internal Server Error'),
      ],
      [
        'cut',
        (res) => void res.socket?.destroy(),
        failed('HTTP 500 from POST /cut: the route broke off before its reply was complete'),
      ],
      [
        'begun',
        (res) => {
          res.set('Content-Length', '10').write('1');
          res.socket?.destroy();
        },
        failed('HTTP 500 from POST /begun: the route broke off before its reply was complete'),
      ],
    ];
    const workers = await start({
      routes(app) {
        for (const [name, answer] of answers) app.post(`/${name}`, (_req, res) => answer(res));
      },
    });
    const { token } = await seed(workers);
    for (const [name, , expected] of answers) {
      expect(await call(workers, 1, name, {}, { token }), name).to.deep.equal(expected);
    }
  });

  it('gives the route the arguments as its body, and the client as it is', async () => {
    const seen: object[] = [];
    const workers = await start({
      routes(app) {
        app.set('trust proxy', true);
        app.post('/look', (req, res) => {
          const { body, ip, originalUrl, headers, httpVersion, sessionID } = req;
          seen.push({ body, ip, originalUrl, headers, httpVersion, sessionID });
          res.json({});
        });
      },
    });
    const { token, sid } = await seed(workers);
    const fields = ['X-Forwarded-For', '203.0.113.7', 'Authorization', 'Bearer a', 'X-Twice', '1', 'X-Twice', '2'];
    for (const worker of [0, 1]) {
      await call(
        workers,
        worker,
        'look',
        { a: 'é', nested: { __proto__: null } },
        { token, fields, cookie: cookieOf('other') },
      );
    }
    expect(seen[1]).to.deep.equal(seen[0]);
    expect(seen[0]).to.deep.include({
      body: { a: 'é', nested: {} },
      ip: '203.0.113.7',
      originalUrl: '/look',
      sessionID: sid,
    });
    const { headers } = seen[0] as { headers: Record<string, string> };
    expect(headers).to.include({
      authorization: 'Bearer a',
      'x-twice': '1, 2',
      'content-type': 'application/json',
      host: 'localhost',
    });
    expect(headers).not.to.have.any.keys('cookie', field.toLowerCase(), 'transfer-encoding');
    expect(await call(workers, 0, 'look', {}, { token })).to.have.property('structuredContent');
  });

  it('takes a call without arguments for one with none', async () => {
    const workers = await start();
    const { token } = await seed(workers);
    const { json } = await rpc(workers, 1, 'tools/call', { name: 'add' }, { token });
    expect(json.result).to.deep.equal(failed('HTTP 422 from POST /add: [{"loc":["body","count"]}]'));
  });

  describe('the token in the reply to a seed', () => {
    it('is in `mcp` of an untyped one, and in `resources_tools` of a typed one', async () => {
      const workers = await start({ serverName: 'counter' });
      const url = `${workers.all[0]!.url}/seed_session`;
      const untyped = await new Client().post(url, { anything: 1 });
      const metadata = { server_name: 'counter', url_path: '/mcp', transport: 'http' };
      expect(untyped.json).to.have.all.keys('mcp');
      expect(untyped.json.mcp).to.deep.include(metadata);
      const typed = await new Client().post(url, { resources_session_id: 'chosen' });
      expect(typed.json).to.deep.equal({
        resources_session_id: 'chosen',
        resources_tools: { ...metadata, headers: { [field]: tokens.mint('chosen') } },
      });
      expect(typed.setCookies).to.have.length(1);
    });

    for (const prefix of ['', '/ng-rollout/r1', '/ng-rollout/r1/training-token-capture']) {
      it(`is there for POST ${prefix}/Seed_Session/ too`, async () => {
        const workers = await start({
          routes: (app) => void app.post(/^\/ng-rollout\//, (req, res) => void res.json({ sid: req.sessionID })),
        });
        const { json } = await new Client().post(`${workers.all[0]!.url}${prefix}/Seed_Session/`);
        expect(tokens.read(json.mcp.headers[field])).to.have.property('sid');
      });
    }

    it('is left as the handler has set it', async () => {
      const replies: object[] = [
        { resources_session_id: 'a', resources_tools: { own: 1 } },
        { mcp: null, more: 1 },
      ];
      const workers = await start(
        { routes: (app) => void app.post('/open', (req, res) => void res.json(replies[req.body.at])) },
        { seedPath: '/open' },
      );
      for (const [at, reply] of replies.entries()) {
        const { json } = await new Client().post(`${workers.all[0]!.url}/open`, { at });
        expect(json).to.deep.equal(reply);
      }
    });

    it('is in no reply that fails, or is no object', async () => {
      const answers: [number, unknown][] = [
        [409, { detail: 'x' }],
        [500, {}],
        [302, {}],
        [200, [1]],
        [200, null],
        [200, 'text'],
      ];
      const workers = await start(
        {
          routes: (app) =>
            void app.post(
              '/open',
              (req, res) => void res.status(answers[req.body.at]![0]).json(answers[req.body.at]![1]),
            ),
        },
        { seedPath: '/open' },
      );
      for (const [at, [status, reply]] of answers.entries()) {
        const got = await new Client().post(`${workers.all[0]!.url}/open`, { at });
        expect([got.status, got.json]).to.deep.equal([status, reply]);
      }
    });

    it('allows the tools that the hook says, which sees the task data of a typed seed and the body of any other', async () => {
      const bodies: unknown[] = [];
      const workers = await start({
        allowedTools: async (body) => {
          bodies.push(body);
          return (body as { only?: string[] } | undefined)?.only ?? null;
        },
      });
      const { token } = await seed(workers, 0, { resources_session_id: 'a', task_data: { only: ['drop'] } });
      expect(tokens.read(token)).to.deep.equal({ sid: 'a', tools: ['drop'] });
      expect(await call(workers, 1, 'add', { count: 1 }, { token })).to.deep.equal(
        failed("Tool 'add' is not allowed for this session."),
      );
      const { token: untyped } = await seed(workers, 0, { only: ['add'], more: 1 });
      expect(tokens.read(untyped)!.tools).to.deep.equal(['add']);
      await seed(workers, 0, { resources_session_id: 'b' });
      expect(bodies).to.deep.equal([{ only: ['drop'] }, { only: ['add'], more: 1 }, undefined]);
    });

    for (const said of [undefined, 'all', [7], { add: true }]) {
      it(`fails with its seed where the hook says ${JSON.stringify(said)}, instead of allowing everything`, async () => {
        const workers = await start({ allowedTools: () => said as never });
        const { status } = await new Client().post(`${workers.all[0]!.url}/seed_session`, {});
        expect(status).to.equal(500);
      });
    }

    for (const [how, allowedTools] of [
      [
        'throws',
        () => {
          throw new Error('no');
        },
      ],
      ['rejects', () => Promise.reject(new Error('no'))],
    ] as [string, () => never][]) {
      it(`fails with its seed, which then sets no cookie, where the hook ${how}`, async () => {
        const workers = await start({ allowedTools });
        const { status, setCookies } = await new Client().post(`${workers.all[0]!.url}/seed_session`, {
          resources_session_id: 'a',
        });
        expect([status, setCookies]).to.deep.equal([500, []]);
        // Its close reaches what the handler has made.
        const closed = await new Client().post(`${workers.all[1]!.url}/close_session`, { resources_session_id: 'a' });
        expect(closed.json).to.deep.equal({ wasOpen: true });
      });
    }
  });

  it('lets the token beat the cookie on its path, and the cookie the token elsewhere', async () => {
    const workers = await start();
    const [a, b] = [await seed(workers, 0), await seed(workers, 1)];
    const cookie = cookieOf(a.sid);
    for (const path of ['/mcp', '/mcp/', '/MCP/below', '/ng-rollout/r1/mcp']) {
      for (const worker of [0, 1]) {
        const { structuredContent } = await call(
          workers,
          worker,
          'add',
          { count: 1 },
          { token: b.token, cookie, path },
        );
        expect(structuredContent.worker, path).to.equal(1);
      }
    }
    for (const worker of [0, 1]) {
      const { json } = await post(workers, worker, { count: 10 }, { token: b.token, cookie, path: '/add' });
      expect(json).to.deep.equal({ worker: 0, count: 10 * (worker + 1) });
      const withoutCookie = await post(workers, worker, { count: 0 }, { token: b.token, path: '/add' });
      expect(withoutCookie.json).to.deep.equal({ worker: 1, count: 8 });
    }
  });

  it('sets no cookie, and makes no claim for a call without a session', async () => {
    const workers = await start();
    const { token } = await seed(workers, 0);
    expect(
      (await rpc(workers, 1, 'tools/call', { name: 'add', arguments: { count: 1 } }, { token })).setCookies,
    ).to.deep.equal([]);
    expect((await rpc(workers, 1, 'tools/call', { name: 'add' })).setCookies).to.deep.equal([]);
    expect((await rpc(workers, 1, 'tools/list', {}, { token: 'x' })).setCookies).to.deep.equal([]);
    expect(workers.claims()).to.have.length(1);
  });

  it('keeps what a route writes to the session, whatever express-session saves of the call', async () => {
    const workers = await start({
      session: { resave: true, saveUninitialized: true },
      routes(app) {
        app.post('/write', (req, res) => {
          const session = req.session as unknown as { written?: number };
          session.written = (session.written ?? 0) + 1;
          res.json({ written: session.written });
        });
      },
    });
    const { token, sid } = await seed(workers, 0);
    for (const worker of [0, 1, 0]) await call(workers, worker, 'write', {}, { token });
    const { json } = await new Client().post(
      `${workers.all[1]!.url}/write`,
      {},
      { headers: { cookie: cookieOf(sid) } },
    );
    expect(json).to.deep.equal({ written: 4 });
  });

  it('answers 410 for the token of a worker that is gone, and goes on for others', async () => {
    const workers = await start();
    const [gone, other] = [await seed(workers, 0), await seed(workers, 1)];
    await workers.leave(workers.all[0]!);
    const { status, json } = await rpc(
      workers,
      1,
      'tools/call',
      { name: 'add', arguments: { count: 1 } },
      { token: gone.token },
    );
    expect([status, json.code]).to.deep.equal([410, 'SESSION_GONE']);
    expect((await call(workers, 1, 'add', { count: 1 }, { token: other.token })).structuredContent.count).to.equal(1);
  });

  it('lets a route treat its connection as any other', async () => {
    const workers = await start({
      routes(app) {
        app.post('/socket', (req, res) => {
          req.setTimeout(60_000);
          res.setTimeout(60_000);
          const { socket } = req;
          socket.setNoDelay(true).setKeepAlive(true).setTimeout(0);
          socket.ref().unref();
          const { remoteAddress, remoteFamily, localAddress, localPort } = socket;
          res.json({ remoteAddress, remoteFamily, localAddress, isPort: localPort === portOf(workers.all[0]!.server) });
        });
        app.post('/idle', (req) => void req.socket.setTimeout(10, () => req.socket.destroy()));
      },
    });
    const { token } = await seed(workers, 0);
    const { structuredContent } = await call(workers, 0, 'socket', {}, { token });
    const address = '127.0.0.1';
    expect(structuredContent).to.deep.equal({
      remoteAddress: address,
      remoteFamily: 'IPv4',
      localAddress: address,
      isPort: true,
    });
    const broken = failed('HTTP 500 from POST /idle: the route broke off before its reply was complete');
    expect(await call(workers, 0, 'idle', {}, { token })).to.deep.equal(broken);
  });

  it('warns of nothing where one request makes many calls', async () => {
    const workers = await start();
    const { token } = await seed(workers, 0);
    const warnings: Error[] = [];
    const note = (warning: Error): void => void warnings.push(warning);
    process.on('warning', note);
    const calls = Array.from({ length: 30 }, (_, id) => ({
      jsonrpc: '2.0',
      id,
      method: 'tools/call',
      params: { name: 'add', arguments: { count: 1 } },
    }));
    const { json } = await post(workers, 1, calls, { token });
    expect(json).to.have.length(30);
    await new Promise(setImmediate); // Node tells of a warning later
    process.off('warning', note);
    expect(warnings).to.deep.equal([]);
    expect((await call(workers, 0, 'add', { count: 0 }, { token })).structuredContent.count).to.equal(30);
  });

  it('refuses to call a route that the session does not reach', async () => {
    const inner = express();
    const outer = (routing: SessionRouting): Express => {
      const app = express();
      app.use(routing);
      app.use(routing.session({ resave: false, saveUninitialized: false }));
      app.use(express.json());
      exposeToolsOverMcp(inner, { routing });
      inner.post('/add', (_req, res) => void res.json({ count: 1 }));
      app.use(inner);
      return app;
    };
    const workers = await startWorkers(outer, { kind: resources(), count: 1, shared: false });
    running.push(workers);
    const result = await call(workers, 0, 'add', {}, { token: tokens.mint('a') });
    const text = 'no session is mounted on the app that exposeToolsOverMcp() was given, ahead of the route';
    expect(result).to.deep.equal(failed(`HTTP 500 from POST /add: ${text}`));
  });

  it('leaves no claim behind when its sessions have ended', async () => {
    const workers = await start({}, { closeRetryWindowSeconds: 0.2 });
    const seeded = await Promise.all(Array.from({ length: 20 }, (_, at) => seed(workers, at % 2)));
    await Promise.all(
      seeded.map(async ({ token, sid }, at) => {
        await call(workers, at % 2, 'add', { count: 1 }, { token });
        await new Client().post(`${workers.all[0]!.url}/close_session`, {}, { headers: { cookie: cookieOf(sid) } });
        await call(workers, (at + 1) % 2, 'add', { count: 1 }, { token }); // after the end
      }),
    );
    await call(workers, 0, 'add', { count: 1 }, { token: tokens.mint('never seeded') });
    await until(() => workers.claims().length === 0, 'nothing is claimed');
  });

  it('tells a route when the client has left', async () => {
    let left: Promise<unknown> = Promise.resolve();
    let begun!: () => void;
    const began = new Promise<void>((resolve) => (begun = resolve));
    const workers = await start({
      routes(app) {
        app.post('/slow', (_req, res) => {
          left = once(res, 'close').then(() => res.writableFinished);
          begun();
        });
      },
    });
    const { token } = await seed(workers, 0);
    const request = httpRequest({
      port: portOf(workers.all[1]!.server),
      host: '127.0.0.1',
      method: 'POST',
      path: '/mcp',
      agent: false,
      headers: { [field]: token, 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
    });
    request.on('error', () => undefined);
    request.end(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'slow' } }));
    await began;
    request.destroy();
    expect(await left).to.equal(false);
  });

  it('scores tools by their own names, and answers with those that clients know', async () => {
    const workers = await start({ serverName: 'counter' });
    const { sid } = await seed(workers, 0);
    const output = [
      { type: 'function_call', name: 'mcp__counter__add', call_id: '1' },
      { type: 'function_call', name: 'add', call_id: '2' },
      { type: 'function_call', name: 'mcp__other__add', call_id: '3' },
      { type: 'message', name: 'mcp__counter__add' },
      null,
    ];
    const headers = { cookie: cookieOf(sid) };
    const response = { id: 'r', output };
    const { json } = await new Client().post(`${workers.all[1]!.url}/verify`, { response }, { headers });
    expect(json.names).to.deep.equal(['add', 'add', 'mcp__other__add', 'mcp__counter__add', null]);
    expect(json.response).to.deep.equal(response);
    for (const body of [{}, { response: null }, { response: { output: 'x' } }, { response: { output: [] } }]) {
      const { status, json } = await new Client().post(`${workers.all[1]!.url}/verify`, body, { headers });
      expect([status, json.reward]).to.deep.equal([200, 1]);
    }
  });

  describe('the endpoint', () => {
    it('answers in JSON, without a session and without initialize', async () => {
      const workers = await start();
      const { rawHeaders } = await rpc(workers, 0, 'tools/list', {});
      const fields = rawHeaders.map((each) => each.toLowerCase());
      expect(fields[fields.indexOf('content-type') + 1]).to.match(/^application\/json/);
      expect(fields).not.to.include('mcp-session-id');
      const { json } = await rpc(workers, 0, 'initialize', {
        protocolVersion: '2025-06-18',
        capabilities: {},
        clientInfo: { name: 'a', version: '1' },
      });
      expect(json.result.serverInfo.name).to.equal('resources');
      expect((await post(workers, 0, { jsonrpc: '2.0', method: 'notifications/initialized' })).status).to.equal(202);
    });

    it('takes no other method than POST', async () => {
      const workers = await start();
      for (const method of ['GET', 'DELETE', 'PUT']) {
        const { status, json, rawHeaders } = await send({
          to: portOf(workers.all[0]!.server),
          method,
          target: '/mcp',
          fields: ['Accept', 'text/event-stream'],
        });
        expect([status, json.error.message, rawHeaders[rawHeaders.indexOf('Allow') + 1]]).to.deep.equal([
          405,
          'Method not allowed.',
          'POST',
        ]);
      }
    });

    it('refuses what is no JSON-RPC', async () => {
      const workers = await start();
      for (const body of ['{', '[]', '7', '{}', '{"jsonrpc":"1.0"}', '']) {
        const { status } = await post(workers, 0, body);
        expect(status, body).to.equal(400);
      }
    });

    it('serves clients of both lines of the SDK, and of either era of the protocol', async () => {
      const workers = await start();
      const url = new URL('/mcp', workers.all[1]!.url);
      const { token } = await seed(workers, 0);
      const requestInit = { headers: { [field]: token } };
      const info = { name: 'spec', version: '1.0.0' };
      const clients = [
        ...(['legacy', { pin: '2026-07-28' }] as const).map((mode) => ({
          client: new McpClient(info, { versionNegotiation: { mode } }),
          transport: new StreamableHTTPClientTransport(url, {
            requestInit,
            fetch: fetchAnew,
          }),
        })),
        {
          client: new OldMcpClient(info),
          transport: new OldTransport(url, { requestInit, fetch: fetchAnew }),
        },
      ];
      for (const [at, { client, transport }] of clients.entries()) {
        await client.connect(transport as never);
        const { tools } = await client.listTools();
        expect(tools.map(({ name }) => name)).to.deep.equal(['add']);
        const { structuredContent } = await client.callTool({ name: 'add', arguments: { count: 1 } });
        expect(structuredContent).to.deep.equal({ worker: 0, count: at + 1 });
        await client.close();
      }
    });

    it('reads bodies that no parser has read', async () => {
      const makeApp = (routing: SessionRouting): Express => {
        const app = express();
        app.use(routing);
        app.use(routing.session({ resave: false, saveUninitialized: false }));
        exposeToolsOverMcp(app, { routing });
        app.post('/look', express.json(), (req, res) => void res.json({ sid: req.sessionID, body: req.body }));
        return app;
      };
      const workers = await startWorkers(makeApp, { kind: resources() });
      running.push(workers);
      const { structuredContent } = await call(workers, 1, 'look', { a: 1 }, { token: tokens.mint('s') });
      expect(structuredContent).to.deep.equal({ sid: 's', body: { a: 1 } });
    });

    it('is where the kind says, below the path at which the routes are mounted', async () => {
      const mounted = (routing: SessionRouting, worker: number): Express => {
        const app = express();
        app.use(routing);
        app.use(routing.session({ resave: false, saveUninitialized: false }));
        app.use(express.json());
        exposeToolsOverMcp(app, { routing });
        app.post('/api/open', (_req, res) => void res.json({}));
        app.post('/api/where', (req, res) => void res.json({ worker, sid: req.sessionID }));
        app.post('/where', (_req, res) => void res.json({}));
        return app;
      };
      const kind = resources({ basePath: '/api', seedPath: '/open', mcpPath: '/tools', sessionTokenHeader: 'X-Token' });
      const workers = await startWorkers(mounted, { kind });
      running.push(workers);
      const { json } = await new Client().post(`${workers.all[1]!.url}/api/open`);
      expect(json.mcp.url_path).to.equal('/tools');
      const token: string = json.mcp.headers['X-Token'];
      const listed = await rpc(workers, 0, 'tools/list', {}, { path: '/api/tools' });
      expect(listed.json.result.tools.map(({ name }: { name: string }) => name)).to.deep.equal(['where']);
      const result = await call(workers, 0, 'where', {}, { path: '/api/tools', fields: ['X-Token', token] });
      expect(result.structuredContent).to.deep.equal({ worker: 1, sid: tokens.read(token)!.sid });
    });
  });

  describe('refuses options', () => {
    const routing = sessionRouting({ secret, kind: resources() });
    const rows: [string, unknown, RegExp][] = [
      ['none', undefined, /"routing": must be a sessionRouting\(\) of the kind resources\(\)/],
      ['another kind', { routing: sessionRouting({ secret, kind: web() }) }, /"routing"/],
      ['an unknown key', { routing, tool: {} }, /no option "tool"; did you mean "tools"/],
      ['a schema of no object', { routing, tools: { add: { input: z.string() } } }, /input of the tool "add"/],
      [
        'a schema of zod 3',
        { routing, tools: { add: { input: { _def: {}, parse: () => 1 } } } },
        /input of the tool "add"/,
      ],
      ['no schema', { routing, tools: { add: { input: 7 } } }, /input of the tool "add"/],
      ['an unknown key of a tool', { routing, tools: { add: { schema: 7 } } }, /no option "schema"/],
      ['a server name with spaces', { routing, serverName: 'a b' }, /"serverName"/],
      ['a hook that is none', { routing, allowedTools: [] }, /"allowedTools": must be a function/],
    ];
    for (const [title, options, message] of rows) {
      it(`with ${title}`, () => {
        expect(() => exposeToolsOverMcp(express(), options as McpToolsOptions)).to.throw(TypeError, message);
      });
    }

    it('on a router, and on an app that has the route for seeds already', () => {
      expect(() => exposeToolsOverMcp(express.Router() as unknown as Express, { routing })).to.throw(
        TypeError,
        /must be the Express app, and no router/,
      );
      const app = express();
      app.post('/Seed_session/', (_req, res) => void res.json({}));
      expect(() => exposeToolsOverMcp(app, { routing })).to.throw(
        TypeError,
        /has the route POST \/seed_session already/,
      );
      const twice = express();
      exposeToolsOverMcp(twice, { routing });
      expect(() => exposeToolsOverMcp(twice, { routing })).to.throw(TypeError, /call it once/);
    });

    it('and takes the JSON Schema of an object, and a union of objects', () => {
      const union = z.union([z.object({ a: z.string() }), z.object({ b: z.string() })]);
      exposeToolsOverMcp(express(), { routing, tools: { a: { input: { type: 'object' } }, b: { input: union } } });
    });
  });
});
