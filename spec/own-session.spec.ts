import { expect } from 'chai';
import cookieParser from 'cookie-parser';
import express, { type Express, type Request, type RequestHandler } from 'express';
import expressSession, { type SessionOptions } from 'express-session';
import { randomUUID } from 'node:crypto';
import { rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { resources, web } from '../lib/session-kinds.ts';
import { servers, startBridged, type BridgedWorkers, type BridgeOptions } from './fixtures/bridge-app.ts';
import { LaterStore } from './fixtures/bridge-stores.ts';
import { Client, cookieOf, listening, secret, sessionIdIn, until, urlOf, type Reply } from './fixtures/routed.ts';
import { warningsOf } from './fixtures/warnings.ts';

const name = 'connect.sid';

/** Makes the express-session that an app mounts itself. */
const own =
  (changes: Partial<SessionOptions> = {}): NonNullable<BridgeOptions['makeSession']> =>
  ({ genid }, options) =>
    expressSession({ ...options, secret, genid, ...changes }) as never;

const bridged: NonNullable<BridgeOptions['makeSession']> = (routing, options) => routing.session(options);

let workers: BridgedWorkers;

async function start(routes: Parameters<typeof startBridged>[0], options: BridgeOptions = {}): Promise<void> {
  workers = await startBridged(routes, { kind: web(), makeSession: own(), ...options });
}

const url = (worker: number): string => workers.url(worker);
const idOf = ({ setCookies }: { readonly setCookies: readonly string[] }) => sessionIdIn(setCookies, name);

/** Routes that do to a session whatever a handler may. */
function mountRoutes(app: Express): void {
  const tell = (request: Request) => ({ id: request.sessionID, count: request.session?.count ?? null });
  const add = ({ session }: Request) => (session.count = (session.count ?? 0) + 1);
  app.all('/unused', (_request, response) => void response.json({}));
  app.all('/read', (request, response) => void response.json(tell(request)));
  app.all('/write', (request, response) => {
    add(request);
    response.json(tell(request));
  });
  app.get('/stream', (request, response) => {
    response.write('[');
    add(request);
    setImmediate(() => response.end(']'));
  });
  app.get('/save', (request, response) => {
    add(request);
    request.session.save(() => response.json(tell(request)));
  });
  app.get('/reload', (request, response) => {
    request.session.reload((error) => response.json([Boolean(error), tell(request)]));
  });
  app.get('/longer', (request, response) => {
    request.session.cookie.maxAge = 120_000;
    response.json(tell(request));
  });
  app.all('/status/:status', (request, response) => {
    add(request);
    response.sendStatus(Number(request.params['status']));
  });
  app.all('/throw', (request) => {
    add(request);
    throw new Error('broken');
  });
  app.post('/login', (request, response) => {
    request.session.regenerate(() => {
      add(request);
      response.json(tell(request));
    });
  });
  app.post('/renew', (request, response) => {
    request.session.destroy(() => {
      request.sessionStore.generate(request);
      response.json(tell(request));
    });
  });
  app.post('/destroy', (request, response) => void request.session.destroy(() => response.json(tell(request))));
  app.post('/null', (request, response) => {
    request.session = null as never;
    response.json({});
  });
  app.post('/delete', (request, response) => {
    delete (request as Partial<Request>).session;
    response.json({});
  });
}

/**
 * Requests of one client, one after another: `*` without its cookie, `!` with the one it had before, `?` with one whose
 * session is stored nowhere, `#` with a forged one.
 */
const script = `
  */unused, */read, */write, /write, /unused, /read, /stream, /save, /reload, /longer, /read,
  /status/404, /status/500, /throw, POST /login, !/read, /read, POST /renew, /write, /unused,
  POST /null, /read, /write, POST /delete, /read, /write, POST /destroy, /read, /unused, /write,
  HEAD /write, ?/unused, ?/read, ?/write, *HEAD /read, */stream, */throw, */status/404, #/write,
  *POST /null, *POST /delete, *POST /destroy, *POST /login, *POST /renew, */save, */longer
`
  .trim()
  .split(/,\s+/);

/** What a client sees of a server while it plays the {@link script}, with a label in the place of each session ID. */
async function play(urls: readonly string[]): Promise<unknown[]> {
  const client = new Client();
  const labels = new Map<string, string>();
  const label = (sessionId: string): string => {
    if (!labels.has(sessionId)) labels.set(sessionId, `session ${labels.size}`);
    return labels.get(sessionId) ?? '';
  };
  let [cookie, before] = ['', ''];
  const seen: unknown[] = [];
  for (const [index, step] of script.entries()) {
    const [, sender = '', method = 'GET', path = ''] = /^([*!?#])?(?:(\w+) )?(.*)$/.exec(step) ?? [];
    const jars: Record<string, string> = {
      '*': '',
      '!': before,
      '?': cookieOf('stored nowhere', name),
      '#': cookieOf('forged', name, 'another secret'),
    };
    const headers = { cookie: jars[sender] ?? cookie };
    const reply = await client.request((urls[index % urls.length] ?? '') + path, { method, headers });
    const sessionId = idOf(reply);
    if (sessionId !== undefined && sender !== '*') [cookie, before] = [cookieOf(sessionId, name), cookie];
    const cookies = reply.setCookies.map((field) => {
      const attributes = field
        .split('; ')
        .slice(1)
        .join('; ')
        .replace(/Expires=[^;]*/, 'Expires');
      return `${label(sessionIdIn([field], name) ?? '')}; ${attributes}`;
    });
    // The page of an error shows its stack.
    const shown = reply.status === 500 ? '' : reply.text;
    const body = shown.replaceAll(/"id":"([^"]*)"/g, (_match, id: string) => `"id":"${label(id)}"`);
    seen.push([step, reply.status, cookies, body]);
  }
  return seen;
}

/** Options such that each value of each of them meets each value of each other. */
const flags = [false, true];
const optionTable = flags.flatMap((saveUninitialized) =>
  flags.flatMap((rolling) =>
    flags.map((resave): Partial<SessionOptions> => {
      const unset = saveUninitialized === rolling ? 'destroy' : 'keep';
      const cookie = (rolling === resave) === saveUninitialized ? { maxAge: 60_000 } : {};
      return { saveUninitialized, rolling, resave, unset, cookie };
    }),
  ),
);

/** What was played without any routing, by the options and the store. */
const played = new Map<string, Promise<unknown[]>>();

/** What the client sees of an app without any routing. */
function playPlain(options: Partial<SessionOptions>, later: boolean): Promise<unknown[]> {
  const key = JSON.stringify([options, later]);
  const result = played.get(key) ?? playAnew(options, later);
  played.set(key, result);
  return result;
}

async function playAnew(options: Partial<SessionOptions>, later: boolean): Promise<unknown[]> {
  const store = later ? new LaterStore() : new expressSession.MemoryStore();
  const app = express();
  app.set('env', 'test'); // Express prints errors otherwise
  app.use(expressSession({ secret, ...options, store }));
  mountRoutes(app);
  const server = await listening(createServer(app));
  try {
    return await play([urlOf(server)]);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

describe('a web app with express-session', () => {
  afterEach(() => workers.close());

  const mounted: Record<string, BridgeOptions> = {
    'its own express-session': { makeSession: own() },
    'its own express-session that draws its own IDs': { makeSession: own({ genid: () => randomUUID() }) },
    'routing.session()': { makeSession: bridged },
  };
  for (const [what, mount] of Object.entries(mounted)) {
    for (const [server, size] of Object.entries(servers)) {
      for (const later of [false, true]) {
        it(`decides on cookies as without routing, with ${what}, ${server} and ${later ? 'Later' : 'Memory'}Store`, async () => {
          for (const session of optionTable) {
            await start(mountRoutes, { ...mount, ...size, later, session });
            const routed = await play(workers.all.map(({ url }) => url));
            expect(routed, JSON.stringify(session)).to.deep.equal(await playPlain(session, later));
            await workers.close();
          }
        });
      }
    }
  }
});

describe('an express-session that a web app mounts itself', () => {
  afterEach(() => workers.close());

  for (const saveUninitialized of [false, true]) {
    it(`has a session claimed if and only if it is named, with saveUninitialized ${saveUninitialized}`, async () => {
      await start(mountRoutes, { session: { saveUninitialized } });
      const claimed: (string | undefined)[] = [];
      for (const path of ['/unused', '/read']) {
        const sessionId = idOf(await new Client().get(url(0) + path));
        if (saveUninitialized) claimed.push(sessionId);
      }
      const client = new Client();
      const expectClaims = (...others: (string | undefined)[]): void => {
        const claimants = [...claimed, ...others].map((sessionId = '') => workers.claimantOf(sessionId));
        expect(claimants).to.deep.equal(claimants.map(() => 0));
        expect(workers.claims()).to.have.length(claimants.length);
      };
      expectClaims();
      const before = idOf(await client.get(`${url(0)}/write`));
      expectClaims(before);
      const login = idOf(await client.post(`${url(1)}/login`));
      expectClaims(before, login);
      await client.post(`${url(1)}/destroy`);
      await until(() => workers.claims().length === claimed.length, 'the claims of the ended sessions are gone');
      expectClaims();
    });
  }

  it('has a session claimed that is named after the cookie was cleared', async () => {
    await start((app) => {
      app.post('/switch', (request, response) => {
        response.clearCookie(name);
        request.session.count = 1;
        response.json({});
      });
    });
    const { setCookies } = await new Client().post(`${url(0)}/switch`);
    expect(setCookies).to.have.length(2);
    expect(workers.claimantOf(idOf({ setCookies: setCookies.slice(1) }) ?? '')).to.equal(0);
  });

  it('has a session claimed when the head that names it arrives', async () => {
    await start(mountRoutes, { later: true, session: { saveUninitialized: true } });
    const one = async (_: unknown, number: number): Promise<unknown> => {
      const client = new Client();
      const reply = await client.get(`${url(number % 2)}${number % 3 === 0 ? '/stream' : '/write'}`);
      return [
        workers.claimantOf(idOf(reply) ?? ''),
        (await client.get(`${url((number + 1) % 2)}/read`)).json.id === idOf(reply),
      ];
    };
    const seen = await Promise.all(Array.from({ length: 60 }, one));
    expect(seen).to.deep.equal(seen.map((_, number) => [number % 2, true]));
  });

  describe('is refused with SESSION_COOKIE_DISPUTED', () => {
    async function expectDisputed(init: { headers?: { cookie: string } }, path = '/write'): Promise<void> {
      const reply = await new Client().get(url(0) + path, init);
      expect([reply.status, reply.json]).to.deep.equal([500, 'SESSION_COOKIE_DISPUTED']);
    }

    /** An app that answers with the code of an error. */
    function mountWithErrors(app: Express): void {
      mountRoutes(app);
      const tellCode: express.ErrorRequestHandler = (error, _request, response, _next) => {
        response.status(error.status).json(error.code);
      };
      app.use(tellCode);
    }

    const withName = { headers: { cookie: cookieOf('s', name) } };
    const disputed: Record<string, [BridgeOptions, { headers: { cookie: string } }]> = {
      'behind a cookie-parser with another secret': [
        { ahead: (app) => void app.use(cookieParser('another secret')) },
        { headers: { cookie: cookieOf('s', name, 'another secret') } },
      ],
      'with another secret': [{ makeSession: own({ secret: 'another secret' }) }, withName],
      'with another secret, by its own cookie': [
        { makeSession: own({ secret: 'another secret' }) },
        { headers: { cookie: cookieOf('s', name, 'another secret') } },
      ],
      'with another name': [{ makeSession: own({ name: 'other.sid' }) }, withName],
      'with another name, by its own cookie': [
        { makeSession: own({ name: 'other.sid' }) },
        { headers: { cookie: cookieOf('s', 'other.sid') } },
      ],
      'where the Cookie field has changed meanwhile': [
        {
          ahead: (app) =>
            void app.use((request, _response, next) => {
              request.headers.cookie = cookieOf('another', name);
              next();
            }),
        },
        withName,
      ],
    };
    for (const [why, [options, init]] of Object.entries(disputed)) {
      it(why, async () => {
        for (const size of Object.values(servers)) {
          await start(mountWithErrors, { ...options, ...size });
          await expectDisputed(init);
          if (size.count === 1) await workers.close();
        }
      });
    }

    it('for a kind of server that needs routing.session()', async () => {
      await start(mountWithErrors, { kind: resources() });
      await expectDisputed({});
      await expectDisputed({ headers: { cookie: cookieOf('s') } });
    });

    it('ahead of routing.session()', async () => {
      for (const kind of [web(), resources()]) {
        const ahead: BridgeOptions['ahead'] = (app, _worker, { genid }) => {
          app.use('/write', expressSession({ secret, genid, resave: false, saveUninitialized: false }));
        };
        await start(mountWithErrors, { kind, makeSession: bridged, ahead });
        await expectDisputed({});
        expect((await new Client().get(`${url(0)}/read`)).status).to.equal(200);
        if (kind.kind === 'web') await workers.close();
      }
    });
  });

  for (const [what, { makeSession = bridged }] of Object.entries({ 'its own': { makeSession: own() }, bridged: {} })) {
    for (const [title, paths] of Object.entries({ 'for one path': ['/', '/'], 'for two paths': ['/one', '/two'] })) {
      it(`may share its store with another one, ${title} (${what})`, async () => {
        const mountTwice: typeof makeSession = (routing, options) => {
          const [one, two] = paths.map((path) => makeSession(routing, { ...options, cookie: { path } }) as never);
          return express.Router().use(one ?? [], two ?? []) as never;
        };
        const routes = (app: Express): void => {
          for (const path of ['/one', '/two']) {
            const below = express();
            mountRoutes(below);
            app.use(path, below);
          }
        };
        await start(routes, { makeSession: mountTwice });
        for (const path of ['/one', '/two']) {
          const client = new Client();
          for (const [count, worker] of [0, 1, 0].entries()) {
            expect((await client.get(`${url(worker)}${path}/write`)).json.count).to.equal(count + 1);
          }
          const before = client.cookie;
          const login = await client.post(`${url(1)}${path}/login`);
          expect(workers.claimantOf(idOf(login) ?? '')).to.equal(0);
          expect((await client.get(`${url(1)}${path}/write`)).json).to.deep.equal({ id: idOf(login), count: 2 });
          const stale = await new Client().get(`${url(0)}${path}/read`, { headers: { cookie: before } });
          expect(stale.json.count).to.equal(null);
        }
        expect((await new Client().get(`${url(0)}/three`)).status).to.equal(404);
      });
    }
  }

  it('lets an app pass on the cookie of a session that another worker made for it', async () => {
    await start((app) => {
      app.post('/relay', async (_request, response) => {
        const { setCookies } = await new Client().get(`${url(1)}/write`);
        response.setHeader('Set-Cookie', [...setCookies]).json({});
      });
      mountRoutes(app);
    });
    const client = new Client();
    const warnings = await warningsOf(async () => {
      expect(idOf(await client.post(`${url(0)}/relay`))).to.be.a('string');
    });
    expect(warnings).to.deep.equal([]);
    expect((await client.get(`${url(0)}/write`)).json.count).to.equal(2);
  });

  describe('with a new ID that', () => {
    let minted: string[];
    const internals = { mint: () => minted.shift() ?? randomUUID() };

    it('exists already when it is drawn, draws another', async () => {
      await start(mountRoutes, { internals });
      minted = ['taken'];
      await new Client().get(`${url(1)}/write`);
      minted = ['taken', 'taken', 'free', 'taken', 'login'];
      const client = new Client();
      expect(idOf(await client.get(`${url(0)}/write`))).to.equal('free');
      expect(idOf(await client.post(`${url(0)}/login`))).to.equal('login');
    });

    it('another worker claims before the head is written, leaves the cookie off and warns', async () => {
      await start(
        (app) => {
          app.post('/raced', async (request, response) => {
            request.session.count = 1;
            minted = ['raced'];
            await new Client().get(`${url(1)}/write`);
            response.cookie('a', '1').json({});
          });
          mountRoutes(app);
        },
        { internals },
      );
      minted = ['raced'];
      const warnings = await warningsOf(async () => {
        const { status, setCookies } = await new Client().post(`${url(0)}/raced`);
        expect([status, setCookies]).to.deep.equal([200, ['a=1; Path=/']]);
      });
      expect(warnings.map(({ code }) => code)).to.deep.equal(['SESSION_CLAIMED_ELSEWHERE']);
      expect(workers.claimantOf('raced')).to.equal(1);
    });

    it('cannot be claimed, leaves the cookie off and warns', async () => {
      for (const later of [false, true]) {
        await start(mountRoutes, { later });
        rmSync(join(workers.directory.path, 'session-claims'), { recursive: true });
        let reply: Reply | undefined;
        const warnings = await warningsOf(async () => {
          reply = await new Client().get(`${url(0)}/write`);
        });
        expect(reply).to.deep.include({ status: 200, setCookies: [] });
        expect(warnings.at(-1)).to.include({ code: 'CLAIM_UNREADABLE' });
        expect(warnings.at(-1)?.message).to.include('cookie of a new session was not sent');
        if (!later) await workers.close();
      }
    });
  });

  describe('that declines a request', () => {
    const declining: Record<string, BridgeOptions> = {
      'because of the path of its cookie': { session: { cookie: { path: '/elsewhere' } } },
      'because its store is disconnected': {},
    };
    for (const [why, options] of Object.entries(declining)) {
      it(`has no session and leaves no claim, ${why}`, async () => {
        await start((app) => {
          app.get('/', (request, response) => {
            response.json([typeof request.session, typeof request.sessionID, 'sessionID' in request]);
          });
        }, options);
        for (const store of workers.stores) store.emit('disconnect');
        for (const init of [{}, { headers: { cookie: cookieOf('known', name) } }]) {
          const { json, setCookies } = await new Client().get(`${url(0)}/`, init);
          expect([json.slice(0, 2), setCookies]).to.deep.equal([['undefined', 'undefined'], []]);
        }
        await until(() => workers.claims().length === 0, 'the claim of the cookie is gone');
      });
    }
  });

  it('finds the session of an upgrade with {} for a reply', async () => {
    await start(mountRoutes);
    const client = new Client();
    await client.get(`${url(0)}/write`);
    for (const [index, { server }] of workers.all.entries()) {
      server.on('upgrade', (request: Request, socket) => {
        const middleware = workers.sessions[index] as unknown as RequestHandler;
        middleware(request, {} as never, () => {
          const body = JSON.stringify({ index, count: request.session.count ?? null });
          socket.end(`HTTP/1.1 403 Forbidden\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`);
        });
      });
    }
    const headers = { connection: 'Upgrade', upgrade: 'own', cookie: client.cookie };
    expect((await new Client().get(`${url(1)}/`, { headers })).json).to.deep.equal({ index: 0, count: 1 });
  });
});
