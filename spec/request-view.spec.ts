import { expect } from 'chai';
import cookieParser from 'cookie-parser';
import express, { type Express, type Request, type RequestHandler } from 'express';
import type { ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { resources, web } from '../lib/session-kinds.ts';
import { bridge, servers, type BridgedWorkers } from './fixtures/bridge-app.ts';
import { sessionRouting } from '../lib/index.ts';
import { compressing, withEachHead } from './fixtures/bridge-middleware.ts';
import { replies } from './fixtures/bridge-replies.ts';
import type { LaterStore } from './fixtures/bridge-stores.ts';
import { Client, cookieOf, portOf, until, type Worker } from './fixtures/routed.ts';

const kinds = { resources: resources(), web: web() };

let workers: BridgedWorkers;
const { start, url, sessionIdOf, withCookie, typed } = bridge((started) => (workers = started));

describe('an app with routing.session()', () => {
  afterEach(() => workers.close());

  for (const [server, size] of Object.entries(servers)) {
    describe(`with ${server}`, () => {
      it('is not misled by a cookie-parser that is mounted ahead with another secret', async () => {
        const ahead = (app: Express) => void app.use(cookieParser('another secret'));
        const routes = (app: Express) => {
          app.get('/read', (request, response) => {
            response.json([request.sessionID, request.signedCookies[workers.name] ?? null, request.headers.cookie]);
          });
        };
        await start(routes, { ...size, ahead });
        const cookie = cookieOf('parsed', workers.name, 'another secret');
        const reply = await new Client().get(`${url(0)}/read`, { headers: { cookie } });
        expect(reply.json).to.deep.equal([sessionIdOf(reply), 'parsed', cookie]);
        expect(sessionIdOf(reply)).to.be.a('string').that.is.not.equal('parsed');
      });

      it('takes the ID that the router read, where something between has changed the Cookie field', async () => {
        const ahead = (app: Express) =>
          void app.use((request, _response, next) => {
            request.headers.cookie = cookieOf('another', workers.name);
            next();
          });
        const routes = (app: Express) => {
          app.all(['/read', '/seed_session'], (request, response) => {
            request.session.count ??= 1;
            response.json([request.sessionID, request.session.id, request.headers.cookie]);
          });
        };
        await start(routes, { ...size, ahead });
        const seen = (sessionId: string) => [sessionId, sessionId, cookieOf('another', workers.name)];
        for (const sessionId of ['another', 'routed']) {
          await new Client().post(`${url(0)}/seed_session`, typed(sessionId));
          const reply = await new Client().get(`${url(0)}/read`, withCookie(sessionId));
          expect(reply.json).to.deep.equal(seen(sessionId));
        }
        const { json, setCookies } = await new Client().get(`${url(0)}/read`);
        expect(json).to.deep.equal(seen(sessionIdOf({ setCookies }) ?? ''));
      });
    });
  }

  describe("with an app's own listeners", () => {
    const looks: Record<string, (look: (request: Request) => void) => RequestHandler> = {
      'when the head is written': withEachHead,
      'when the reply has finished': (look) => (request, response, next) => {
        response.on('finish', () => look(request));
        next();
      },
      'when the reply is closed': (look) => (request, response, next) => {
        response.on('close', () => look(request));
        next();
      },
    };
    for (const [when, listening] of Object.entries(looks)) {
      for (const place of ['ahead', 'behind']) {
        it(`does not take their look at a new session ${when} for its use, mounted ${place}`, async () => {
          const seen: unknown[] = [];
          const middleware = listening((request) => seen.push([typeof request.sessionID, typeof request.session?.id]));
          // A listener that is mounted behind sees the handler's own writeHead() before anybody else does.
          const implicit = Object.entries(replies).filter(([how]) => place === 'ahead' || !how.startsWith('writeHead'));
          await start(
            (app) => {
              if (place === 'behind') app.use(middleware);
              for (const [index, [, reply]] of implicit.entries()) {
                app.get(`/unused/${index}`, (_request, response) => reply(response));
              }
            },
            { ahead: (app) => void (place === 'ahead' && app.use(middleware)), session: { saveUninitialized: true } },
          );
          for (const index of implicit.keys()) {
            const reply = await new Client().get(`${url(0)}/unused/${index}`);
            await until(() => seen.length > index, 'the listener was called');
            expect(sessionIdOf(reply)).to.equal(undefined);
          }
          expect(seen).to.deep.equal(implicit.map(() => ['string', 'string']));
          expect([workers.claims(), workers.stored()]).to.deep.equal([[], []]);
        });
      }
    }

    for (const place of ['ahead', 'behind']) {
      it(`works with a middleware that compresses, mounted ${place}`, async () => {
        await start(
          (app) => {
            if (place === 'behind') app.use(compressing);
            app.get('/unused', (_request, response) => void response.send('unused'));
            app.get('/stream', (_request, response) => void Readable.from(['un', 'used']).pipe(response));
            app.get('/used', (request, response) => void response.send(request.sessionID));
            app.get('/written', (request, response) => {
              request.session.count = 1;
              response.write(request.sessionID);
              response.end();
            });
          },
          { later: true, ahead: (app) => void (place === 'ahead' && app.use(compressing)) },
        );
        for (const path of ['/unused', '/stream']) {
          const reply = await new Client().get(url(0) + path);
          expect([reply.text, reply.setCookies]).to.deep.equal(['unused', []]);
        }
        workers.expectClaims();
        for (const path of ['/used', '/written']) {
          const reply = await new Client().get(url(0) + path);
          expect(reply.headers.get('content-encoding')).to.equal('gzip');
          expect(reply.text).to.equal(sessionIdOf(reply));
          expect(workers.claimantOf(reply.text)).to.equal(0);
        }
      });
    }
  });

  describe('under unset: destroy', () => {
    it('destroys no session but the one that a handler has unset', async () => {
      await start(
        (app) => {
          app.all('/unused', (request, response) => void response.sendStatus(Number(request.query['status'] ?? 200)));
          app.post('/unset', (request, response) => {
            request.session = null as never;
            response.json(null);
          });
        },
        { later: true, session: { unset: 'destroy' } },
      );
      for (const init of [{}, withCookie('known')]) {
        for (const status of [200, 404, 500]) await new Client().get(`${url(0)}/unused?status=${status}`, init);
      }
      const destroyed = () => (workers.stores[0] as LaterStore).calls.filter((call) => call.startsWith('destroy'));
      expect(destroyed()).to.deep.equal([]);
      const reply = await new Client().post(`${url(0)}/unset`, {}, withCookie('known'));
      expect(reply.setCookies).to.deep.equal([]);
      expect(destroyed()).to.deep.equal(['destroy known']);
    });
  });

  describe('on an upgrade', () => {
    /** A reply as engine.io makes one for the middleware of a WebSocket. */
    class HandshakeReply {
      readonly fields: Record<string, unknown> = {};
      setHeader(field: string, value: unknown): void {
        this.fields[field] = value;
      }
      getHeader(field: string): unknown {
        return this.fields[field];
      }
      removeHeader(field: string): void {
        delete this.fields[field];
      }
      writeHead(): void {}
      write(): void {}
      end(): void {}
    }

    /** Asks for an upgrade, and reads what the server sends until it closes the connection. */
    async function upgrade(index: number, path: string, init: { headers?: { cookie: string } } = {}): Promise<unknown> {
      const socket = connect(portOf((workers.all[index] as Worker).server), '127.0.0.1');
      const cookie = init.headers === undefined ? '' : `Cookie: ${init.headers.cookie}\r\n`;
      socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: own\r\n${cookie}\r\n`);
      const [, json = ''] = (await text(socket)).split('\r\n\r\n');
      return JSON.parse(json);
    }

    const makeReplies = { '{}': () => ({}), 'a reply of engine.io': () => new HandshakeReply() };
    for (const [title, makeReply] of Object.entries(makeReplies)) {
      for (const [server, size] of Object.entries(servers)) {
        it(`finds the session with ${title} for a reply, with ${server}`, async () => {
          await start((app) => {
            app.post('/write', (request, response) => {
              request.session.count = 1;
              response.json({});
            });
          }, size);
          for (const [index, { server }] of workers.all.entries()) {
            server.on('upgrade', (request: Request, socket) => {
              const reply = makeReply();
              workers.sessions[index]?.(request, reply as ServerResponse & HandshakeReply, (error) => {
                if (reply instanceof HandshakeReply) reply.writeHead();
                const isUsed = request.url !== '/unused';
                const session = isUsed ? [request.sessionID, request.session?.count ?? null] : [];
                const claimed = workers.claims().length;
                const fields = reply instanceof HandshakeReply ? reply.fields : {};
                const head = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n';
                socket.end(head + JSON.stringify({ index, session, claimed, fields, error: error ?? null }));
              });
            });
          }
          const nothing = { index: 0, session: [], claimed: 0, fields: {}, error: null };
          expect(await upgrade(0, '/unused')).to.deep.equal(nothing);
          const client = new Client();
          const sessionId = sessionIdOf(await client.post(`${url(0)}/write`));
          const claimed = size.shared ? 1 : 0;
          expect(await upgrade(size.count - 1, '/used', { headers: { cookie: client.cookie } })).to.deep.equal({
            ...nothing,
            claimed,
            session: [sessionId, 1],
          });
          const fresh = (await upgrade(0, '/used')) as { session: unknown[]; claimed: number };
          expect(fresh.session[0]).to.be.a('string');
          expect(fresh.claimed).to.equal(2 * claimed);
        });
      }
    }
  });

  describe('where express-session declines', () => {
    const declining: Record<string, Parameters<typeof start>[1] & { disconnected?: boolean }> = {
      'because of the path of its cookie': { session: { cookie: { path: '/elsewhere' } } },
      'because its store is disconnected': { disconnected: true },
    };
    for (const [why, { disconnected, ...options }] of Object.entries(declining)) {
      for (const kind of Object.values(kinds)) {
        it(`has no session and leaves no claim, ${why}, for ${kind.kind}()`, async () => {
          await start(
            (app) => {
              app.all('/seed_session', (request, response) => {
                const { session, sessionID, sessionStore } = request as Partial<Request>;
                response.json([session, sessionID, sessionStore].map((each) => typeof each));
              });
            },
            { ...options, kind },
          );
          if (disconnected) for (const store of workers.stores) store.emit('disconnect');
          for (const init of [{}, withCookie('known')]) {
            const reply = await new Client().post(`${url(0)}/seed_session`, {}, init);
            expect(reply).to.deep.include({ status: 200, setCookies: [] });
            expect(reply.json).to.deep.equal(['undefined', 'undefined', 'undefined']);
          }
          const left = kind === kinds.resources ? ['known'] : []; // a start of a session that the client knows
          await until(() => workers.claims().length === left.length, 'the other claims are gone');
          workers.expectClaims(...left);
        });
      }
    }

    it('passes on the error of a store, with no cookie and no claim of a new session', async () => {
      await start((app) => void app.all('/', (_request, response) => void response.json({})), { later: true });
      (workers.stores[0] as LaterStore).failure = Object.assign(new Error('no store'), { status: 503 });
      const reply = await new Client().get(`${url(0)}/`, withCookie('known'));
      expect(reply).to.deep.include({ status: 503, setCookies: [] });
    });
  });

  it('puts properties on the request that an app may redefine and delete', async () => {
    await start((app) => {
      app.get('/', (request, response) => {
        expect(Object.keys(request)).to.include.members(['session', 'sessionID', 'sessionStore']);
        for (const key of ['session', 'sessionID'] as const) {
          expect(Object.getOwnPropertyDescriptor(request, key)).to.include({ configurable: true, enumerable: true });
          Object.defineProperty(request, key, { value: 'own', configurable: true });
          expect(request[key]).to.equal('own');
          expect(delete (request as Partial<Request>)[key]).to.equal(true);
          expect(request[key]).to.equal(undefined);
        }
        response.json({});
      });
    });
    expect(await new Client().get(`${url(0)}/`)).to.deep.include({ status: 200, setCookies: [] });
  });
});

describe('two routings in one app', () => {
  it("leave the session to the first, and do not take the other's look at it for its use", async () => {
    const app = express();
    const first = sessionRouting({ secret: 'one', kind: resources(), name: 'one.sid', routing: false });
    const second = sessionRouting({ secret: 'two', kind: web(), name: 'two.sid', routing: false });
    const session = { resave: false, saveUninitialized: true };
    app.use(first, second, first.session(session), second.session(session));
    app.get('/unused', (_request, response) => response.json({}));
    app.get('/used', (request, response) => response.json(request.session.id));
    // A request that inherits from another, as some wrappers of requests do.
    app.get('/inherited', (request, response) => response.json((Object.create(request) as Request).session.id));
    const server = await first.listen(app, { port: 0, host: '127.0.0.1' });
    try {
      const at = `http://127.0.0.1:${portOf(server)}`;
      expect((await new Client().get(`${at}/unused`)).setCookies).to.deep.equal([]);
      for (const path of ['/used', '/inherited']) {
        const reply = await new Client().get(`${at}${path}`);
        expect(reply.setCookies).to.have.lengthOf(1);
        const [cookie] = reply.setCookies;
        expect(decodeURIComponent(cookie ?? '')).to.contain(`one.sid=s:${reply.json as string}.`);
      }
    } finally {
      await Promise.all([first.close(), second.close()]);
    }
  });
});
