import { expect } from 'chai';
import express, { type ErrorRequestHandler, type Express, type Request, type RequestHandler } from 'express';
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import type { RoutedSessionOptions } from '../lib/session-cookie.ts';
import { bridge, servers, type BridgedWorkers } from './fixtures/bridge-app.ts';
import { replies } from './fixtures/bridge-replies.ts';
import { Client, listening, until, urlOf, type Worker } from './fixtures/routed.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;

let workers: BridgedWorkers;
const { start, url, sessionIdOf, withCookie, typed } = bridge((started) => (workers = started));

/** Under a function, express-session takes `auto` for true. */
const cookieByRequest = (request: Request) => ({ secure: request.get('Host') === undefined ? false : 'auto' });

describe('routing.session()', () => {
  afterEach(() => workers.close());

  for (const [server, size] of Object.entries(servers)) {
    const last = size.count - 1;
    for (const [how, reply] of Object.entries(replies)) {
      /** Runs an assertion with both kinds of store, with both values of `saveUninitialized`, and in both Expresses. */
      async function withEach(work: () => Promise<void>): Promise<void> {
        for (const [later, save] of [
          [false, false],
          [false, true],
          [true, false],
          [true, true],
        ] as const) {
          const states = [new Set<string>(), new Set<string>()];
          await start(
            (app, index) => {
              app.all('/unused', (_request, response) => reply(response));
              app.all('/read', (request, response) => {
                states[index]?.add(request.sessionID);
                reply(response);
              });
              app.all('/written', (request, response) => {
                states[index]?.add(request.session.id);
                request.session.count = 1;
                reply(response);
              });
              app.all('/state', ({ sessionID }, response) => void response.json(states[index]?.has(sessionID)));
            },
            { ...size, later, session: { saveUninitialized: save }, framework: later ? express : express4 },
          );
          await work();
          if (!(later && save)) await workers.close();
        }
      }

      it(`gives a new session that was not used neither cookie nor claim, with ${server} and ${how}`, () =>
        withEach(async () => {
          const inits = [{}, { method: 'HEAD' }, { headers: { cookie: `${workers.name}=s%3Aforged.signature` } }];
          for (const init of inits) {
            const answer = await new Client().get(`${url(0)}/unused`, init);
            expect(sessionIdOf(answer)).to.equal(undefined);
            expect(answer.status).to.be.below(500);
          }
          workers.expectClaims();
          expect(workers.stored()).to.deep.equal([]);
        }));

      it(`gives a new session that was used a claim and one cookie, with ${server} and ${how}`, () =>
        withEach(async () => {
          for (const path of ['/read', '/written']) {
            for (const method of ['POST', 'HEAD']) {
              const client = new Client();
              const answer = await client.request(url(0) + path, { method });
              expect(answer.setCookies.filter((field) => field.startsWith(`${workers.name}=`))).to.have.length(1);
              if (size.shared) expect(workers.claimantOf(sessionIdOf(answer) ?? '')).to.equal(0);
              expect((await client.get(`${url(last)}/state`)).json).to.equal(true);
              if (/writeHead/.test(how)) expect(answer.headers.get('x-own')).to.equal('own');
              if (/raw|own/.test(how)) expect(answer.setCookies.join()).to.match(/a=1.*b=2/);
            }
          }
        }));
    }

    describe(`with ${server}`, () => {
      for (const later of [false, true]) {
        const store = later ? 'a store that answers later' : 'a MemoryStore';

        it(`gives a session start a claim and a cookie, whatever its handler and its body, and ${store}`, async () => {
          await start(
            (app) => {
              app.post('/seed_session', (request, response) => {
                if ('used' in request.query) request.session.count = 1;
                response.sendStatus(Number(request.query['status'] ?? 200));
              });
            },
            { ...size, later },
          );
          const sessionIds: (string | undefined)[] = [];
          for (const query of ['', '?status=422', '?status=404', '?used', '?used&status=422']) {
            const untyped = await new Client().post(`${url(0)}/seed_session${query}`, {});
            const sessionId = randomUUID();
            const client = new Client();
            const first = await client.post(`${url(0)}/seed_session${query}`, typed(sessionId));
            const retried = await new Client().post(`${url(last)}/seed_session${query}`, typed(sessionId));
            const again = await client.post(`${url(last)}/seed_session${query}`, typed(sessionId));
            expect([first, retried, again].map(sessionIdOf)).to.deep.equal([sessionId, sessionId, sessionId]);
            sessionIds.push(sessionIdOf(untyped), sessionId);
          }
          expect(sessionIds).not.to.include(undefined);
          workers.expectClaims(...sessionIds);
          const failed = await new Client().post(`${url(0)}/seed_session?status=500`, typed('failed'));
          expect(failed.setCookies).to.deep.equal([]);
          workers.expectClaims(...sessionIds, 'failed');
        });

        it(`lets seeds and closes without a cookie see the session that is stored, with ${store}`, async () => {
          await start(
            (app) => {
              app.post(/seed_session$|close_session$/, (request, response) => {
                request.session.count = (request.session.count ?? 0) + 1;
                response.json(request.session.count);
              });
            },
            { ...size, later },
          );
          const counts: unknown[] = [];
          for (const path of ['/seed_session', '/seed_session', '/close_session', '/ng-rollout/x/close_session']) {
            counts.push((await new Client().post(url(counts.length % size.count) + path, typed('s'))).json);
          }
          expect(counts).to.deep.equal([1, 2, 3, 4]);
        });

        it(`keeps the ID of a cookie that the store does not know, with ${store}`, async () => {
          await start(
            (app, worker) => {
              app.post(
                '/use',
                (request, response) => void response.json([worker, request.sessionID, request.session.id]),
              );
            },
            { ...size, later },
          );
          for (const index of [0, last]) {
            const reply = await new Client().post(`${url(index)}/use`, {}, withCookie('not stored'));
            expect(reply.json).to.deep.equal([0, 'not stored', 'not stored']);
            expect(sessionIdOf(reply)).to.equal(undefined);
          }
          workers.expectClaims('not stored');
        });
      }

      it('sends no cookie with a 5xx, and none that express-session would renew', async () => {
        await start(
          (app) => {
            app.all('/seed_session', (request) => {
              request.session.count = 1;
              throw new Error('broken');
            });
            app.all('/status/:status', (request, response) => {
              request.session.count = 2;
              response.cookie('own', '1').sendStatus(Number(request.params.status));
            });
          },
          { ...size, session: { saveUninitialized: true, rolling: true, cookie: { maxAge: 60_000 } } },
        );
        expect((await new Client().post(`${url(0)}/seed_session`)).setCookies).to.deep.equal([]);
        for (const init of [{}, withCookie('known')]) {
          for (const [status, count] of [[500, 0] as const, [503, 0] as const, [404, 1] as const, [422, 1] as const]) {
            const reply = await new Client().post(`${url(0)}/status/${status}`, {}, init);
            expect(reply.setCookies.filter((field) => field.startsWith(workers.name))).to.have.length(count);
            expect(reply.setCookies.filter((field) => field.startsWith('own=1'))).to.have.length(1);
          }
        }
      });

      const secure: [string, RoutedSessionOptions, string | undefined, 'none' | 'plain' | 'Secure'][] = [
        ['secure: true', { cookie: { secure: true } }, undefined, 'none'],
        ['secure: true behind a proxy', { cookie: { secure: true } }, 'https', 'Secure'],
        ['secure: true and proxy: true', { cookie: { secure: true }, proxy: true }, 'https, http', 'Secure'],
        ['secure: true and proxy: false', { cookie: { secure: true }, proxy: false }, 'https', 'none'],
        ["secure: 'auto'", { cookie: { secure: 'auto' } }, undefined, 'plain'],
        ["secure: 'auto' behind a proxy", { cookie: { secure: 'auto' } }, 'https', 'Secure'],
        ['a function for the cookie', { cookie: cookieByRequest as never }, undefined, 'none'],
      ];
      for (const [title, session, protocol, expected] of secure) {
        it(`obeys ${title} over http`, async () => {
          const routes = (app: Express) => {
            app.set('trust proxy', true);
            app.post('/seed_session', (_request, response) => void response.json({}));
            app.post('/read', (request, response) => void response.json(request.sessionID));
          };
          await start(routes, { ...size, session });
          const headers = protocol === undefined ? {} : { 'X-Forwarded-Proto': protocol };
          for (const path of ['/seed_session', '/read']) {
            const { status, setCookies } = await new Client().post(url(0) + path, {}, { headers });
            expect(status).to.equal(200);
            const found = setCookies.map((field) => (/; Secure/.test(field) ? 'Secure' : 'plain'));
            expect(found).to.deep.equal(expected === 'none' ? [] : [expected]);
          }
          // A retried seed, whose cookie nothing but the router wants, and which another worker may forward.
          await new Client().post(`${url(0)}/seed_session`, typed('s'), { headers });
          const { setCookies } = await new Client().post(`${url(last)}/seed_session`, typed('s'), { headers });
          expect(setCookies).to.have.length(expected === 'none' ? 0 : 1);
        });
      }
    });
  }

  it('passes on the error of a cookie that cannot be written, as express-session does', async () => {
    const errors: string[] = [];
    const session: RoutedSessionOptions = { cookie: { sameSite: 'never' as never } };
    await start(
      (app) => {
        app.post(['/seed_session', '/written'], (request, response) => {
          if (request.path === '/written') request.session.count = 1;
          response.json({});
        });
        const noteError: ErrorRequestHandler = (error, request, _response, _next) => {
          errors.push(`${request.path}: ${error.message}`);
        };
        app.use(noteError);
      },
      { session },
    );
    for (const path of ['/seed_session', '/written']) {
      const reply = await new Client().post(url(0) + path);
      expect(reply).to.deep.include({ status: 200, setCookies: [] });
      await until(() => errors.some((error) => error.startsWith(path)), 'the error was passed on');
    }
    expect(new Set(errors)).to.deep.equal(
      new Set(['/seed_session: option sameSite is invalid', '/written: option sameSite is invalid']),
    );
  });

  it('may be mounted twice, as the routing may', async () => {
    await start(
      (app, _worker, routing) => {
        app.use(routing, routing.session({ resave: false, saveUninitialized: false }));
        app.get('/unused', (_request, response) => void response.json({}));
        app.get('/used', (request, response) => void response.json(request.sessionID));
      },
      { ahead: (app, _worker, routing) => void app.use(routing) },
    );
    expect((await new Client().get(`${url(0)}/unused`)).setCookies).to.deep.equal([]);
    workers.expectClaims();
    const client = new Client();
    const reply = await client.get(`${url(0)}/used`);
    expect(reply.setCookies).to.have.length(1);
    expect(reply.json).to.equal(sessionIdOf(reply));
    expect((await client.get(`${url(1)}/used`)).json).to.equal(reply.json);
    workers.expectClaims(reply.json);
  });

  it('takes no genid, name, key or secret', async () => {
    await start(() => undefined);
    for (const key of ['genid', 'name', 'key', 'secret']) {
      const refused = () => (workers.all[0] as Worker).routing.session({ [key]: undefined } as RoutedSessionOptions);
      expect(refused).to.throw(TypeError, `"${key}"`);
    }
  });

  it('refuses a request that the routing has not seen', async () => {
    await start(() => undefined);
    const app = express().set('env', 'test');
    app.use(workers.sessions[0] as RequestHandler);
    const server = await listening(createServer(app));
    const reply = await new Client().get(urlOf(server));
    server.close();
    expect(reply.status).to.equal(500);
    expect(reply.text).to.include('Mount it ahead: app.use(routing)');
  });
});
