import { expect } from 'chai';
import type { ErrorRequestHandler, Express, Request } from 'express';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { resources, web } from '../lib/session-kinds.ts';
import type { SessionRouting } from '../lib/session-routing.ts';
import { bridge, servers, type BridgedWorkers } from './fixtures/bridge-app.ts';
import { StandingClock } from './fixtures/bridge-clock.ts';
import type { LaterStore } from './fixtures/bridge-stores.ts';
import { Client, until } from './fixtures/routed.ts';

const kinds = { resources: resources(), web: web() };

let workers: BridgedWorkers;
const { start, url, sessionIdOf, withCookie } = bridge((started) => (workers = started));

describe('a session of routing.session()', () => {
  afterEach(() => workers.close());

  for (const [kindName, kind] of Object.entries(kinds)) {
    describe(`for ${kindName}(), where an ID exists already when it is minted`, () => {
      let minted: string[];

      /** Starts two workers, the second of which claims the session `taken`. */
      async function startMinting(saveUninitialized = false): Promise<void> {
        const ids = (request: Request) => [request.sessionID, request.session.id];
        const routes = (app: Express) => {
          app.post(['/unused', '/seed_session'], (_request, response) => void response.json({}));
          app.post('/used', (request, response) => {
            request.session.count = 1;
            response.json(ids(request));
          });
          app.post('/raced', async (request, response) => {
            minted.unshift('raced');
            await new Client().post(`${url(1)}/used`);
            request.session.count = 1;
            response.json(ids(request));
          });
          app.post('/regenerated', (request, response) => {
            request.session.regenerate(() => {
              request.session.count = 1;
              response.json(ids(request));
            });
          });
        };
        const internals = { mint: () => minted.shift() ?? randomUUID() };
        await start(routes, { kind, session: { saveUninitialized }, internals });
        minted = ['taken'];
        await new Client().post(`${url(1)}/used`);
        expect(workers.claimantOf('taken')).to.equal(1);
      }

      const cases: [string, string, string[]][] = [
        ['a session that is used', '/used', ['taken', 'taken', 'free']],
        ['a session whose ID is claimed elsewhere before it is used', '/raced', ['raced', 'free']],
        ['a session that is regenerated', '/regenerated', ['old', 'taken', 'free']],
      ];
      if (kind === kinds.resources) cases.push(['a session start', '/seed_session', ['taken', 'taken', 'free']]);
      for (const [title, path, ids] of cases) {
        it(`mints another for ${title}`, async () => {
          await startMinting();
          minted = ids;
          const reply = await new Client().post(url(0) + path);
          expect(sessionIdOf(reply)).to.equal('free');
          if (path !== '/seed_session') expect(reply.json).to.deep.equal(['free', 'free']);
          expect(workers.claimantOf('free')).to.equal(0);
        });
      }

      if (kind === kinds.web) {
        it('mints another for a session that is saved and sent though it is not used', async () => {
          await startMinting(true);
          minted = ['taken', 'free'];
          expect(sessionIdOf(await new Client().post(`${url(0)}/unused`))).to.equal('free');
          expect(workers.claimantOf('free')).to.equal(0);
        });
      }
    });

    for (const [server, size] of Object.entries(servers)) {
      for (const later of [false, true]) {
        describe(`for ${kindName}(), with ${server} and ${later ? 'a store that answers later' : 'a MemoryStore'}`, () => {
          const last = size.count - 1;
          /** What is claimed when a login has got its new ID. */
          let claimant: number | undefined;
          /** Requests that wait in their handler, and what lets them go. */
          let waiting: (() => void)[];

          beforeEach(async () => {
            waiting = [];
            const describeSession = ({ session, sessionID }: Request) => ({ sessionID, count: session?.count ?? null });
            const routes = (app: Express, _worker: number, routing: SessionRouting) => {
              app.post('/write', (request, response) => {
                request.session.count = 1;
                response.json(describeSession(request));
              });
              app.get('/read', (request, response) => void response.json(describeSession(request)));
              app.get('/wait', async (request, response) => {
                await new Promise<void>((resolve) => waiting.push(resolve));
                response.json(describeSession(request));
              });
              app.post('/login', (request, response) => {
                request.session.regenerate(() => {
                  claimant = workers.claimantOf(request.session.id);
                  request.session.count = 2;
                  response.json(describeSession(request));
                });
              });
              app.post('/renew', (request, response) => {
                request.session.destroy(() => {
                  request.sessionStore.generate(request);
                  claimant = workers.claimantOf(request.session.id);
                  request.session.count = 2;
                  response.json(describeSession(request));
                });
              });
              app.post('/generate', (request, response) => {
                request.sessionStore.generate(request);
                request.session.count = 2;
                response.json(describeSession(request));
              });
              app.post('/genid', (request, response) => {
                response.json([routing.genid(request), routing.genid(request)]);
              });
              app.post('/destroy', (request, response) => {
                request.session.destroy(() => response.json([request.session ?? null, request.sessionID]));
              });
              app.post('/throw', (request) => {
                request.session.destroy(() => undefined);
                request.sessionStore.generate(request);
                request.session.count = 1;
                throw new Error('broken');
              });
            };
            await start(routes, { kind, ...size, later });
          });

          for (const path of ['/login', '/renew']) {
            it(`gives a login with ${path} a new session, which it claims when its ID is minted`, async () => {
              const client = new Client();
              const old = sessionIdOf(await client.post(`${url(0)}/write`)) ?? '';
              const parallel = client.get(`${url(last)}/wait`);
              await until(() => waiting.length === 1, 'a parallel request is served');
              const planted = client.cookie;
              const login = await client.post(url(last) + path);
              expect(sessionIdOf(login)).to.be.a('string').that.is.not.equal(old);
              expect(login.json).to.deep.equal({ sessionID: sessionIdOf(login), count: 2 });
              if (size.shared) expect(claimant).to.equal(0);
              waiting[0]?.();
              expect((await parallel).json).to.deep.equal({ sessionID: old, count: 1 });
              for (const index of [0, last]) {
                expect((await client.get(`${url(index)}/read`)).json).to.include({ count: 2 });
                const stale = await new Client().get(`${url(index)}/read`, { headers: { cookie: planted } });
                expect(stale.json.count).to.equal(null);
                expect(stale.json.sessionID === old).to.equal(kind === kinds.resources);
              }
            });
          }

          it('gives a login a new ID where its client brought one that is stored nowhere', async () => {
            for (const path of ['/login', '/renew', '/generate']) {
              const reply = await new Client().post(url(last) + path, {}, withCookie('planted'));
              expect(sessionIdOf(reply)).to.be.a('string').that.is.not.equal('planted');
              expect(reply.json.sessionID).to.equal(sessionIdOf(reply));
            }
            const { json } = await new Client().post(`${url(0)}/genid`, {}, withCookie('planted'));
            expect(new Set([...json, 'planted'])).to.have.property('size', 3);
          });

          it('has no session left after a destroy()', async () => {
            const client = new Client();
            const sessionId = sessionIdOf(await client.post(`${url(0)}/write`));
            const reply = await client.post(`${url(last)}/destroy`);
            expect([reply.json, reply.setCookies, workers.stored()]).to.deep.equal([[null, sessionId], [], []]);
            expect((await client.get(`${url(last)}/read`)).json.count).to.equal(null);
            expect((await new Client().post(`${url(0)}/destroy`)).setCookies).to.deep.equal([]);
          });

          if (kind === kinds.resources) {
            it('gives no cookie of a session that was generated anew with a 5xx', async () => {
              expect(await new Client().post(`${url(0)}/throw`)).to.deep.include({ status: 500, setCookies: [] });
            });
          }
        });
      }
    }
  }

  it('keeps the claim of a new session that could not be stored, and passes on the error', async () => {
    const clock = new StandingClock();
    const errors: unknown[] = [];
    const failure = new Error('no store');
    await start(
      (app, worker) => {
        app.get('/unused', (_request, response) => void response.json({}));
        app.post('/write', (request, response) => {
          (workers.stores[worker] as LaterStore).failure = failure;
          request.session.count = 1;
          response.json({});
        });
        const noteError: ErrorRequestHandler = (error, _request, _response, _next) => void errors.push(error);
        app.use(noteError);
      },
      { later: true, internals: { clock: clock.read } },
    );
    const sessionId = sessionIdOf(await new Client().post(`${url(0)}/write`));
    await until(() => errors.length > 0, 'the error was passed on');
    expect(errors).to.deep.equal([failure]);
    (workers.stores[0] as LaterStore).failure = undefined;
    await clock.advance(workers, 2);
    workers.expectClaims(sessionId);
  });

  it('claims no new session of a client that leaves before it was used', async () => {
    for (const kind of Object.values(kinds)) {
      let closed: Promise<unknown> | undefined;
      await start((app) => void app.get('/', (_request, response) => (closed = once(response, 'close'))), { kind });
      const request = httpRequest(url(0), { agent: false, ...withCookie('not stored') }).end();
      request.on('error', () => undefined);
      await until(() => closed !== undefined, 'the handler runs');
      request.destroy();
      await closed;
      workers.expectClaims('not stored'); // for a second
      if (kind === kinds.resources) await workers.close();
    }
  });

  it('lets a handler call another worker with its own new session before it replies', async () => {
    for (const kind of Object.values(kinds)) {
      const states = [new Map<string, string>(), new Map<string, string>()];
      await start(
        (app, index) => {
          app.get('/state', (request, response) => {
            response.json([index, states[index]?.get(request.sessionID) ?? null]);
          });
          app.post('/call', async (request, response) => {
            request.session.count = 1;
            states[index]?.set(request.sessionID, 'mine');
            request.session.save();
            response.json((await new Client().get(`${url(1)}/state`, withCookie(request.sessionID))).json);
          });
        },
        { kind },
      );
      expect((await new Client().post(`${url(0)}/call`)).json).to.deep.equal([0, 'mine']);
      if (kind === kinds.resources) await workers.close();
    }
  });

  it('lets 200 clients use their new cookie at another worker as soon as the head has arrived', async () => {
    const streaming = new Map<string, () => void>();
    await start((app, index) => {
      app.post('/stream', (request, response) => {
        response.write('begun');
        streaming.set(request.sessionID, () => response.end());
      });
      app.post('/used/stream', (request, response) => {
        streaming.set(request.sessionID, () => response.end());
        response.write('begun');
      });
      app.get('/state', (request, response) => {
        streaming.get(request.sessionID)?.();
        response.json([index, streaming.has(request.sessionID)]);
      });
    });
    const one = async (_: unknown, number: number): Promise<unknown> => {
      const [first, other] = number % 2 === 0 ? [0, 1] : [1, 0];
      const request = httpRequest(`${url(first)}/used/stream`, { method: 'POST', agent: false }).end();
      const [reply] = (await once(request, 'response')) as [IncomingMessage];
      const [cookie = ''] = reply.headers['set-cookie']?.[0]?.split(';') ?? [];
      const { json } = await new Client().get(`${url(other)}/state`, { headers: { cookie } });
      reply.resume();
      await once(reply, 'end');
      return [json, first];
    };
    const seen = await Promise.all(Array.from({ length: 200 }, one));
    expect(seen).to.deep.equal(seen.map((_, number) => [[number % 2, true], number % 2]));
  });

  it('claims a new session that is first used after the head was sent, and says so in the debug log', async () => {
    await start(() => undefined);
    const program = fileURLToPath(new URL('fixtures/bridge-late-use.ts', import.meta.url));
    const child = spawn(process.execPath, ['--import', 'tsx', program], {
      env: { ...process.env, NODE_DEBUG: 'express-session-routing' },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [output, log] = await Promise.all([text(child.stdout), text(child.stderr)]);
    expect(JSON.parse(output)).to.deep.equal({ claimant: 0, setCookies: [] });
    expect(log).to.match(/GET \/late.*after the head/);
  });

  describe('for a session that only its cookie names', () => {
    let now: number;
    const internals = { clock: () => now };

    /** Has the sweep run at `now`: a request on a worker wakes it when something is due. */
    async function sweep(): Promise<void> {
      await new Client().get(`${url(0)}/unused`, withCookie(randomUUID()));
    }

    it('releases the claim by the sweep, no sooner than a second after the last request', async () => {
      now = 1000;
      await start(
        (app) => {
          app.get('/unused', (_request, response) => void response.json({}));
          app.get('/used', (request, response) => void response.json(request.sessionID));
        },
        { internals },
      );
      const get = (path: string, sessionId: string) => new Client().get(url(0) + path, withCookie(sessionId));
      await get('/used', 'used');
      await get('/unused', 'unused');
      now += 0.8;
      await get('/unused', 'sooner');
      now += 0.1;
      await get('/unused', 'unused');
      now += 0.95;
      await sweep();
      await until(() => workers.claimantOf('sooner') === undefined, 'the sooner one is released');
      expect(workers.claimantOf('unused')).to.equal(0);
      now += 0.1;
      await sweep();
      await until(() => workers.claimantOf('unused') === undefined, 'the unused one is released');
      expect(workers.claimantOf('used')).to.equal(0);
      expect(workers.stored()).to.deep.equal(['used']);
    });

    it('keeps the claim while a handler uses it whose client has left', async () => {
      now = 1000;
      let done = (): void => undefined;
      const handled = new Promise<void>((resolve) => (done = resolve));
      await start(
        (app) => {
          app.get('/unused', (_request, response) => void response.json({}));
          app.get('/slow', async (request, response) => {
            await new Promise((resolve) => response.once('close', resolve));
            now += 1.1;
            await sweep();
            await until(() => workers.claimantOf('slow') === undefined, 'its claim is released');
            expect(request.sessionID).to.equal('slow');
            done();
          });
        },
        { internals },
      );
      const request = httpRequest(`${url(0)}/slow`, { agent: false, ...withCookie('slow') }).end();
      request.on('error', () => undefined);
      await until(() => workers.claimantOf('slow') === 0, 'the handler runs');
      request.destroy();
      await handled;
      expect(workers.claimantOf('slow')).to.equal(0);
      now += 200;
      await sweep();
      expect(workers.claimantOf('slow')).to.equal(0);
    });
  });
});
