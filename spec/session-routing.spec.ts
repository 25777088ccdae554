import { expect } from 'chai';
import { createHook } from 'node:async_hooks';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, linkSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, IncomingMessage, request as httpRequest, ServerResponse, type Server } from 'node:http';
import { connect, Socket } from 'node:net';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { text } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import express from 'express';
import { MemoryStore } from 'express-session';
import { AgentSessions } from '../lib/agent-sessions.ts';
import { sessionKind } from '../lib/custom-kind.ts';
import { createRuntimeDirectory, type RuntimeDirectory } from '../lib/runtime-directory.ts';
import type { SessionKind } from '../lib/session-kind.ts';
import { agent, resources, web } from '../lib/session-kinds.ts';
import { sessionRouting, type SessionRouting } from '../lib/session-routing.ts';
import { fromHeader } from '../lib/session-sources.ts';
import {
  Client,
  cookieOf,
  Gate,
  listening,
  portOf,
  privateSocketOf,
  probe,
  secret,
  send,
  sessionIdIn,
  startWorkers,
  until,
  urlOf,
  type ProbeOptions,
  type RawReply,
  type Reply,
  type Worker,
  type Workers,
} from './fixtures/routed.ts';
import { warningsOf } from './fixtures/warnings.ts';

type StartOptions = Parameters<typeof startWorkers>[1] & ProbeOptions;

let workers: Workers;
/** The targets of the requests that reached a handler, in their order. */
let handled: string[];

/** Starts workers of a resources server whose app is {@link probe}. */
async function start({ mount, session, onRequest, ...options }: StartOptions = {}): Promise<void> {
  handled = [];
  const probeOptions: ProbeOptions = {
    ...(mount === undefined ? {} : { mount }),
    ...(session === undefined ? {} : { session }),
    onRequest(request, response, index) {
      handled.push(request.originalUrl);
      return onRequest?.(request, response, index);
    },
  };
  workers = await startWorkers((routing, index) => probe(routing, index, probeOptions), {
    kind: resources(),
    ...options,
  });
}

async function stop(): Promise<void> {
  await workers.close();
}

function worker(index: number): Worker {
  return workers.all[index] as Worker;
}

const typed = (sessionId: unknown): object => ({ resources_session_id: sessionId });
const withCookie = (sessionId: string, name?: string): { headers: { cookie: string } } => ({
  headers: { cookie: cookieOf(sessionId, name) },
});

/** A request without a cookie, on a connection of its own, to the worker of that number. */
function post(index: number, path: string, json: unknown = {}, init: Parameters<Client['post']>[2] = {}) {
  return new Client().post(worker(index).url + path, json, init);
}

function get(index: number, path: string, init: Parameters<Client['get']>[1] = {}) {
  return new Client().get(worker(index).url + path, init);
}

/** Seeds a session on a worker. */
async function seedOn(index: number, sessionId: string = randomUUID(), path = '/seed_session'): Promise<string> {
  const reply = await post(index, path, typed(sessionId));
  expect(reply.status).to.equal(200);
  expect(reply.json.worker).to.equal(index);
  return sessionId;
}

function expectRefusal(reply: Reply | RawReply, status: number, code: string): void {
  expect({ status: reply.status, code: reply.json?.code }).to.deep.equal({ status, code });
}

/** Asserts that there is one claim, of that session and on that worker. */
function expectOnlyClaim(sessionId: string | undefined, index: number): void {
  expect(workers.claims()).to.have.length(1);
  expect(workers.claimantOf(sessionId ?? '')).to.equal(index);
}

/** What was seen of a request or its reply, without what every hop has for itself. */
function withoutHop(seen: object | undefined): object {
  const { rawHeaders = [], headers, ...rest } = (seen ?? {}) as { rawHeaders?: string[]; headers?: object };
  const own = /^(connection|keep-alive|date|etag)$/i;
  const fields = rawHeaders.flatMap((name, at) =>
    at % 2 === 0 && !own.test(name) ? [[name, rawHeaders[at + 1]]] : [],
  );
  return { ...rest, fields, headers: { ...headers, connection: undefined } };
}

describe('sessionRouting()', () => {
  describe('finds the session of a request', () => {
    const modes: Record<string, StartOptions & { below: string }> = {
      'with listen()': { below: '' },
      'with listen() and a basePath': { below: '/api', mount: '/api', kind: resources({ basePath: '/api/' }) },
      'with the middleware alone': { below: '', middlewareOnly: true },
      'with the middleware alone, under a mount path': { below: '/api', mount: '/api', middlewareOnly: true },
    };
    const seedAndClosePaths = [
      '/seed_session',
      '/close_session',
      '/SEED_SESSION',
      '/Close_Session',
      '/seed_session/',
      '/close_session/?of=a&query',
      '/ng-rollout/x/seed_session',
      '/ng-rollout/x/close_session/',
      '/ng-rollout/x/y/seed_session',
      '/NG-Rollout/x/Y/Close_session',
    ];
    for (const [mode, { below, ...options }] of Object.entries(modes)) {
      describe(mode, () => {
        before(() => start({ ...options, count: 3 }));
        after(stop);

        it('in its cookie', async () => {
          for (const creator of [0, 1, 2]) {
            const sessionId = await seedOn(creator, randomUUID(), `${below}/seed_session`);
            for (const index of [0, 1, 2]) {
              const reply = await get(index, `${below}/tool?use`, withCookie(sessionId));
              expect(reply.json).to.include({ worker: creator, sessionId });
            }
          }
        });

        for (const path of seedAndClosePaths) {
          it(`in the body of POST ${path}`, async () => {
            const sessionId = await seedOn(1, randomUUID(), `${below}/seed_session`);
            const reply = await post(0, `${below}${path}${path.includes('?') ? '&' : '?'}use`, typed(sessionId));
            expect(reply.json).to.include({ worker: 1, sessionId });
            expect(workers.claimantOf(sessionId)).to.equal(1);
          });
        }

        it('in the body of a request whose target is an absolute URL', async () => {
          const sessionId = await seedOn(1, randomUUID(), `${below}/seed_session`);
          const reply = await send({
            to: portOf(worker(0).server),
            method: 'POST',
            target: `http://example.org${below}/close_session`,
            fields: ['Content-Type', 'application/json'],
            body: JSON.stringify(typed(sessionId)),
          });
          expect(reply.json.worker).to.equal(1);
        });

        it('in no body of another request', async () => {
          const sessionId = await seedOn(1, randomUUID(), `${below}/seed_session`);
          for (const path of ['/tool', '/seed_session/more', '/ng-rollout/x/y/z/seed_session', '/seed_sessions']) {
            expect((await post(0, `${below}${path}`, typed(sessionId))).json.worker).to.equal(0);
          }
          const url = `${worker(0).url}${below}/seed_session`;
          const put = await new Client().request(url, { method: 'PUT', json: typed(sessionId) });
          expect(put.json.worker).to.equal(0);
        });
      });
    }
  });

  describe('claims a session', () => {
    beforeEach(() => start({ kind: resources({ starts: ['/reset', 'GET /begin'] }) }));
    afterEach(stop);

    const typedId = 'a-session';
    const creating: Record<string, () => Promise<Reply>> = {
      'a typed seed': () => post(1, '/seed_session', typed(typedId)),
      'a typed seed with the cookie of its session': () =>
        post(1, '/seed_session', typed(typedId), withCookie(typedId)),
      'a typed seed under a rollout prefix': () => post(1, '/ng-rollout/x/y/seed_session', typed(typedId)),
      'a seed that names no session and whose handler does not read it': () => post(1, '/seed_session'),
      'a seed with a cookie that nobody claims': () => post(1, '/seed_session', {}, withCookie('a-cookie')),
      'a seed whose body the app refuses': () => post(1, '/seed_session?status=422', typed(typedId)),
      'another route that starts sessions': () => post(1, '/reset'),
      'another route with its own method': () => get(1, '/begin'),
      'a first request whose handler uses the session': () => post(1, '/tool?use'),
      'a request with a cookie that nobody claims': () => post(1, '/tool?use', {}, withCookie('a-cookie')),
    };
    for (const [what, create] of Object.entries(creating)) {
      it(`once, on the worker that serves ${what}, and its reply's cookie names it`, async () => {
        const { json, setCookies, status } = await create();
        expect(json.worker).to.equal(1);
        const sent = what.includes('cookie that nobody') ? 'a-cookie' : undefined;
        expectOnlyClaim(sent ?? sessionIdIn(setCookies), 1);
        if (what.includes('typed')) expect(sessionIdIn(setCookies)).to.equal(typedId);
        // The client can name the session now, and finds it through any worker.
        const sessionId = sent ?? sessionIdIn(setCookies) ?? '';
        expect((await get(0, '/tool?use', withCookie(sessionId))).json).to.include({ worker: 1, sessionId });
        expect(status).to.be.lessThan(500);
      });
    }

    it('for a seed that fails, whose reply carries no cookie', async () => {
      const seed = await post(1, '/seed_session?status=500&use', typed(typedId));
      expect(seed.status).to.equal(500);
      expect(seed.setCookies).to.deep.equal([]);
      expectOnlyClaim(typedId, 1);
      // The caller's cleanup has no cookie either.
      expect((await post(0, '/close_session', typed(typedId))).json.worker).to.equal(1);
    });

    it('for a close of an ID that nobody knows, so that a delayed seed reaches the same worker', async () => {
      await post(1, '/close_session', typed(typedId));
      expectOnlyClaim(typedId, 1);
      expect((await post(0, '/seed_session', typed(typedId))).json.worker).to.equal(1);
    });

    it('before the reply begins', async () => {
      await stop();
      let claimed: string[] = [];
      await start({ onRequest: () => void (claimed = workers.claims()) });
      await post(1, '/seed_session');
      expect(claimed).to.have.length(1);
      const { setCookies } = await new Client().get(`${worker(0).url}/tool?use`);
      // The handler read the session ahead of `onRequest`, and nothing was sent yet.
      expect(claimed).to.have.length(2);
      expect(workers.claimantOf(sessionIdIn(setCookies) ?? '')).to.equal(0);
    });

    for (const saveUninitialized of [false, true]) {
      it(`for no handler that does not use it, and sends it no cookie (saveUninitialized: ${saveUninitialized})`, async () => {
        await stop();
        await start({ session: { saveUninitialized } });
        for (const reply of [
          await get(1, '/health'),
          await post(1, '/aggregate_metrics'),
          await post(1, '/v1/checkpoint/pause', { until: 'resumed' }),
          await post(1, '/verify'),
          await get(1, '/anything?status=404'),
          await get(1, '/anything?status=500&use'),
        ]) {
          expect(reply.json.worker).to.equal(1);
          expect(reply.setCookies).to.deep.equal([]);
        }
        // The last one used its session, so only that one may be claimed: its handler may have told others of it.
        expect(workers.claims()).to.have.length(1);
      });
    }

    it('for no refused request', async () => {
      await post(1, '/seed_session', typed('one'), withCookie('another'));
      await post(1, '/seed_session', typed('x'.repeat(5000)));
      expect(workers.claims()).to.deep.equal([]);
    });

    it('with IDs that differ from worker to worker', async () => {
      const replies = await Promise.all(Array.from({ length: 50 }, (_, n) => post(n % 2, '/seed_session')));
      expect(new Set(replies.map(({ setCookies }) => sessionIdIn(setCookies))).size).to.equal(50);
      expect(workers.claims()).to.have.length(50);
    });

    for (const path of ['/seed_session', '/tool?use']) {
      it(`under another ID where a minted one exists already (POST ${path})`, async () => {
        await stop();
        const ids = ['taken', 'taken', 'taken', 'free'];
        await start({ internals: { mint: () => ids.shift() ?? randomUUID() } });
        await seedOn(0, 'taken');
        const { setCookies, json } = await post(1, path);
        expect(sessionIdIn(setCookies)).to.equal('free');
        if (path.includes('use')) expect(json.sessionId).to.equal('free');
        expect(workers.claimantOf('taken')).to.equal(0);
        expect(workers.claimantOf('free')).to.equal(1);
      });
    }

    it('again on the worker that uses it, when its claim has ended', async () => {
      await stop();
      await start({ kind: resources({ closeRetryWindowSeconds: 0.1 }) });
      const sessionId = await seedOn(0);
      await post(0, '/close_session', {}, withCookie(sessionId));
      await until(() => workers.claims().length === 0, 'the claim has ended');
      expect((await get(1, '/tool?use', withCookie(sessionId))).json).to.include({ worker: 1, sessionId });
      expectOnlyClaim(sessionId, 1);
      expect((await get(0, '/tool?use', withCookie(sessionId))).json.worker).to.equal(1);
    });
  });

  describe('a cookie and a body that name different sessions', () => {
    for (const count of [1, 2]) {
      for (const path of ['/seed_session', '/close_session', '/ng-rollout/x/Seed_Session/']) {
        it(`are refused by POST ${path} with ${count} worker(s), and the app never sees the request`, async () => {
          await start({ count, shared: count > 1 });
          await seedOn(0, 'one');
          await seedOn(count - 1, 'another');
          handled = [];
          for (let index = 0; index < count; index++) {
            const reply = await post(index, path, typed('one'), withCookie('another'));
            expectRefusal(reply, 409, 'SESSION_MISMATCH');
            expect(reply.setCookies).to.deep.equal([]);
          }
          expect(handled).to.deep.equal([]);
          await stop();
        });
      }
    }

    it('are no matter to any other request', async () => {
      await start();
      const reply = await post(0, '/tool?use', typed('one'), withCookie('another'));
      expect(reply.json.sessionId).to.equal('another');
      await stop();
    });

    it('are told apart by verified cookies only', async () => {
      await start();
      const forged = { headers: { cookie: cookieOf('another', 'resources.sid', 'not the secret') } };
      const reply = await post(0, '/seed_session?use', typed('one'), forged);
      expect(reply.json.sessionId).to.equal('one');
      expect(sessionIdIn(reply.setCookies)).to.equal('one');
      await stop();
    });
  });

  describe('the body of a seed', () => {
    beforeEach(() => start({ bodyLimit: 10 * 1024 * 1024 }));
    afterEach(stop);

    it('of 9 MiB reaches the claimant whole', async () => {
      await seedOn(1, 'large');
      const body = { ...typed('large'), task_data: { text: 'é'.repeat(4.5 * 1024 * 1024) } };
      const reply = await post(0, '/seed_session?echo', body);
      expect(reply.json.worker).to.equal(1);
      expect(reply.json.body).to.deep.equal(body);
    });

    it('of 9 MiB is claimed where it lands', async () => {
      const body = { ...typed('large'), task_data: { text: 'x'.repeat(9 * 1024 * 1024) } };
      const reply = await post(1, '/seed_session', body);
      expect(reply.json.worker).to.equal(1);
      expectOnlyClaim('large', 1);
    });

    for (const encoding of ['gzip', 'identity'] as const) {
      it(`names its session in the content coding ${encoding}, in chunks`, async () => {
        await seedOn(1, 'coded');
        const json = Buffer.from(JSON.stringify({ ...typed('coded'), more: 'é' }));
        const fields = ['Content-Type', 'application/json', 'Content-Encoding', encoding];
        const reply = await send({
          to: portOf(worker(0).server),
          method: 'POST',
          target: '/seed_session?echo',
          fields: [...fields, 'Transfer-Encoding', 'chunked'],
          body: encoding === 'gzip' ? gzipSync(json) : json,
        });
        expect(reply.json).to.deep.equal({ worker: 1, body: { resources_session_id: 'coded', more: 'é' } });
      });
    }

    it('names its session whatever its content type', async () => {
      await seedOn(1, 'plain');
      for (const fields of [['Content-Type', 'text/plain'], []]) {
        const body = JSON.stringify(typed('plain'));
        const reply = await send({
          to: portOf(worker(0).server),
          method: 'POST',
          target: '/seed_session',
          fields,
          body,
        });
        expect(reply.json.worker).to.equal(1);
      }
    });

    it('of a client that leaves halfway reaches no handler, and claims nothing', async () => {
      const client = connect(portOf(worker(0).server), '127.0.0.1');
      const [connection] = (await once(worker(0).server, 'connection')) as [Socket];
      const closed = new Promise((resolve) => connection.once('close', resolve));
      client.write('POST /close_session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n');
      client.write(JSON.stringify(typed('s'))); // only blanks are missing
      await until(() => connection.bytesRead > 90, 'the request has begun to arrive');
      client.destroy();
      await closed;
      await post(0, '/health');
      expect(handled).to.deep.equal(['/health']);
      expect(workers.claims()).to.deep.equal([]);
    });

    it('over the limit is refused, as sent or inflated, and the app never sees it', async () => {
      const large = Buffer.from(JSON.stringify({ ...typed('s'), text: 'x'.repeat(11 * 1024 * 1024) }));
      for (const [body, encoding] of [
        [large, 'identity'],
        [gzipSync(large), 'gzip'],
      ] as const) {
        const fields = ['Content-Type', 'application/json', 'Content-Encoding', encoding];
        const to = portOf(worker(0).server);
        expectRefusal(await send({ to, method: 'POST', target: '/seed_session', fields, body }), 413, 'BODY_TOO_LARGE');
      }
      expect(handled).to.deep.equal([]);
      expect(workers.claims()).to.deep.equal([]);
    });

    const nameless: Record<string, string> = {
      'no ID': '{"initial_count":3}',
      'an empty ID': '{"resources_session_id":""}',
      'a number for an ID': '{"resources_session_id":7}',
      'an array for an ID': '{"resources_session_id":["a"]}',
      'null for an ID': '{"resources_session_id":null}',
      'an object for an ID': '{"resources_session_id":{"toString":"a"}}',
      'an ID on its prototype': '{"__proto__":{"resources_session_id":"a"}}',
      'an array': '["resources_session_id"]',
      null: 'null',
      'no bytes': '',
    };
    for (const [what, body] of Object.entries(nameless)) {
      it(`with ${what} is served where it lands, and claimed there under a new ID`, async () => {
        const fields = ['Content-Type', 'application/json'];
        const to = portOf(worker(1).server);
        const reply = await send({ to, method: 'POST', target: '/seed_session', fields, body });
        if (what === 'null') {
          expect(reply.status).to.equal(400); // express.json() wants an object
          expect(handled).to.deep.equal([]);
        } else {
          expect(reply.json.worker).to.equal(1);
        }
        expectOnlyClaim(sessionIdIn(reply.setCookies), 1);
      });
    }

    it('that is no JSON is answered by the app, and claimed, since its reply names the session', async () => {
      const fields = ['Content-Type', 'application/json'];
      const to = portOf(worker(1).server);
      const body = '{"resources_session_id":"a"';
      const reply = await send({ to, method: 'POST', target: '/seed_session', fields, body });
      expect(reply.status).to.equal(400);
      expect(reply.text).to.include('SyntaxError');
      expectOnlyClaim(sessionIdIn(reply.setCookies), 1);
    });

    it('is read whole from behind an awaited middleware, and a clear 500 from behind a parser', async () => {
      await stop();
      workers = await startWorkers(
        (routing, index) => {
          const app = express().set('env', 'test');
          app.use('/early', express.json());
          app.use('/awaited', async (_request, _response, next) => {
            await new Promise((resolve) => setTimeout(resolve, 20));
            next();
          });
          app.use(['/early', '/awaited'], probe(routing, index));
          return app;
        },
        { kind: resources(), middlewareOnly: true },
      );
      await post(1, '/awaited/seed_session', typed('s'));
      const reply = await post(0, '/awaited/seed_session?use&echo', { ...typed('s'), more: 'x'.repeat(90_000) });
      expect(reply.json).to.deep.include({ worker: 1, sessionId: 's' });
      expect(reply.json.body.more).to.have.length(90_000);
      const refusal = await post(0, '/early/seed_session', typed('s'));
      expectRefusal(refusal, 500, 'BODY_ALREADY_READ');
      expect(refusal.json.detail).to.include('ahead of body parsers');
    });
  });

  describe('session IDs of any kind', () => {
    beforeEach(() => start());
    afterEach(stop);

    const valid: [string, string][] = Object.entries({
      'a path': '../../../../tmp/x',
      'an absolute path': '/etc/passwd',
      'a NUL': 'a\0b',
      'line ends': 'a\r\nSet-Cookie: b=c',
      'cookie syntax': 'a; Path=/; b="c", d=%25%',
      'the name of a prototype': '__proto__',
      'the name of a constructor': 'constructor',
      'a dot': '.',
      'four bytes a character': '🦊'.repeat(1024),
      '4,096 bytes': 'x'.repeat(4096),
      'a signature of its own': 's:a.b',
      blanks: ' \t ',
    });
    for (const [what, sessionId] of valid) {
      it(`such as ${what} are found in bodies and cookies, and are no file names`, async () => {
        await seedOn(1, sessionId);
        expect(workers.claims()).to.have.length(1);
        expect(workers.claims()[0]).to.match(/^[\w-]{43}$/);
        const seed = await post(0, '/seed_session?use', typed(sessionId));
        expect(seed.json).to.include({ worker: 1, sessionId });
        expect(sessionIdIn(seed.setCookies)).to.equal(sessionId);
        const cookie = cookieOf(sessionId);
        const tool = await send({ to: portOf(worker(0).server), target: '/tool?use', fields: ['Cookie', cookie] });
        expect(tool.json).to.include({ worker: 1, sessionId });
        expect(workers.claims()).to.have.length(1);
      });
    }

    it('that differ in case or Unicode form, or in blanks, are different sessions', async () => {
      const ids = ['a', 'A', 'a ', '\u00e9', 'e\u0301', '\ufb01', 'fi', '1', '01'];
      for (const [n, sessionId] of ids.entries()) await seedOn(n % 2, sessionId);
      expect(workers.claims()).to.have.length(ids.length);
      for (const [n, sessionId] of ids.entries()) {
        const reply = await get((n + 1) % 2, '/tool?use', withCookie(sessionId));
        expect(reply.json).to.include({ worker: n % 2, sessionId });
      }
    });

    it('over 4,096 bytes are refused, in bodies and in cookies', async () => {
      for (const sessionId of ['x'.repeat(4097), '🦊'.repeat(1024) + 'x']) {
        const cookie = cookieOf(sessionId);
        expectRefusal(await post(0, '/seed_session', typed(sessionId)), 400, 'SESSION_ID_INVALID');
        const to = portOf(worker(0).server);
        expectRefusal(await send({ to, target: '/tool', fields: ['Cookie', cookie] }), 400, 'SESSION_ID_INVALID');
      }
      expect(handled).to.deep.equal([]);
    });

    for (const sessionId of ['\ud800', 'a\udfff', '\udc00\ud800']) {
      it(`with lone surrogates (${JSON.stringify(sessionId)}) are refused`, async () => {
        expectRefusal(await post(0, '/seed_session', typed(sessionId)), 400, 'SESSION_ID_INVALID');
        expect(handled).to.deep.equal([]);
      });
    }

    it('that are empty in a cookie are no session', async () => {
      const reply = await get(0, '/tool?use', withCookie(''));
      expect(reply.status).to.equal(200);
      expect(reply.json.sessionId).to.be.a('string').with.length.above(10);
    });
  });

  describe('a session of a worker that is gone', () => {
    afterEach(stop);

    const ways: Record<string, () => Promise<void>> = {
      'whose socket is missing': () => workers.leave(worker(1)),
      'whose socket was left behind': async () => {
        const socket = privateSocketOf(workers, worker(1));
        linkSync(socket, `${socket}.left`);
        await workers.leave(worker(1));
        renameSync(`${socket}.left`, socket);
      },
    };
    for (const [what, leave] of Object.entries(ways)) {
      it(`${what} is refused with 410, and it alone`, async () => {
        await start({ count: 3 });
        const [gone, kept] = [await seedOn(1), await seedOn(2)];
        await post(0, '/tool', {}, withCookie(gone)); // there is a pooled connection
        await leave();
        handled = [];
        for (const reply of [
          await get(0, '/tool?use', withCookie(gone)),
          await post(2, '/tool?use', {}, withCookie(gone)),
          await post(0, '/seed_session', typed(gone)),
          await post(2, '/close_session', typed(gone), withCookie(gone)),
        ]) {
          expectRefusal(reply, 410, 'SESSION_GONE');
          expect(reply.headers.get('content-type')).to.equal('application/problem+json');
          expect(reply.setCookies).to.deep.equal([]);
        }
        expect(handled).to.deep.equal([]);
        expect(workers.claimantOf(gone)).to.equal(1);
        expect((await get(0, '/tool?use', withCookie(kept))).json.worker).to.equal(2);
        expect((await post(0, '/seed_session')).status).to.equal(200);
      });
    }

    const cookieOptions = { 'a cookie for every path': {}, 'a cookie for one path': { path: '/tool' } };
    for (const [what, cookie] of Object.entries(cookieOptions)) {
      it(`is refused by a web app with 410, which expires ${what}`, async () => {
        await start({ kind: web(), session: { saveUninitialized: true, cookie } });
        const [field = ''] = (await get(1, '/tool?use')).setCookies;
        const [pair = ''] = field.split(';');
        await workers.leave(worker(1));
        const reply = await get(0, '/tool?use', { headers: { cookie: pair } });
        expectRefusal(reply, 410, 'SESSION_GONE');
        expect(reply.setCookies).to.have.length(1);
        expect(reply.setCookies[0]).to.match(/^connect\.sid=;.* Expires=Thu, 01 Jan 1970 00:00:00 GMT/);
        // A browser takes it for the same cookie only if the path is the same.
        expect(/Path=[^;]*/.exec(reply.setCookies[0] ?? '')?.[0]).to.equal(/Path=[^;]*/.exec(field)?.[0]);
      });
    }
  });

  describe('a claim that cannot be read or made', () => {
    beforeEach(() => start());
    afterEach(stop);

    it('is a 503, and the app never sees the request', async () => {
      const sessionId = await seedOn(1);
      const [name = ''] = workers.claims();
      const claim = join(workers.directory.path, 'session-claims', name);
      rmSync(claim);
      writeFileSync(claim, 'no worker');
      handled = [];
      const warnings = await warningsOf(async () => {
        const reply = await get(0, '/tool?use', withCookie(sessionId));
        expectRefusal(reply, 503, 'CLAIM_UNREADABLE');
        expect(reply.headers.get('retry-after')).to.equal('1');
        expectRefusal(await post(0, '/close_session', typed(sessionId)), 503, 'CLAIM_UNREADABLE');
      });
      expect(warnings.map(({ code }) => code)).to.deep.equal(['CLAIM_UNREADABLE']);
      expect(handled).to.deep.equal([]);
    });

    it('is a 503 for a new session where the runtime directory is gone, and no matter to others', async () => {
      workers.directory.remove();
      await warningsOf(async () => {
        expectRefusal(await post(0, '/seed_session', typed('s')), 503, 'CLAIM_UNREADABLE');
        expectRefusal(await post(0, '/seed_session'), 503, 'CLAIM_UNREADABLE');
        const used = await get(0, '/tool?use');
        expect(used.status).to.equal(503);
        expect(used.setCookies).to.deep.equal([]);
        expect((await get(0, '/health')).status).to.equal(200);
      });
    });
  });

  describe('a request over a private socket', () => {
    afterEach(stop);

    it('is handled where it arrives, also where nobody claims its session yet', async () => {
      await start();
      const to = privateSocketOf(workers, worker(1));
      const fields = ['Cookie', cookieOf('nobodys')];
      expect((await send({ to, target: '/tool?use', fields })).json).to.include({ worker: 1, sessionId: 'nobodys' });
      expectOnlyClaim('nobodys', 1);
      expect((await send({ to, target: '/health' })).json.worker).to.equal(1);
      expect((await send({ to, method: 'POST', target: '/seed_session', body: '' })).json.worker).to.equal(1);
    });

    it('whose claim another worker has made meanwhile is refused with 409, and no handler runs', async () => {
      await start();
      const sessionId = await seedOn(0);
      const to = privateSocketOf(workers, worker(1));
      const json = { fields: ['Content-Type', 'application/json'], body: JSON.stringify(typed(sessionId)) };
      handled = [];
      for (const request of [
        { target: '/tool?use', fields: ['Cookie', cookieOf(sessionId)] },
        { method: 'POST', target: '/seed_session', ...json },
        { method: 'POST', target: '/ng-rollout/x/close_session', ...json },
      ]) {
        expectRefusal(await send({ to, ...request }), 409, 'SESSION_CLAIMED_ELSEWHERE');
      }
      expect(handled).to.deep.equal([]);
      expect(workers.claimantOf(sessionId)).to.equal(0);
    });

    it('whose claim moves while its body arrives is refused with 409, and no handler runs', async () => {
      await start();
      const json = JSON.stringify(typed('s'));
      const forwarded = httpRequest({
        socketPath: privateSocketOf(workers, worker(1)),
        method: 'POST',
        path: '/seed_session',
        headers: { 'content-type': 'application/json', 'content-length': json.length },
      });
      forwarded.write(json.slice(0, 10));
      await seedOn(0, 's');
      forwarded.end(json.slice(10));
      const [reply] = (await once(forwarded, 'response')) as [IncomingMessage];
      expect(reply.statusCode).to.equal(409);
      expect(JSON.parse(await text(reply))).to.include({ code: 'SESSION_CLAIMED_ELSEWHERE' });
      expect(handled).to.have.length(1);
    });

    it('reaches the app unchanged, and its reply the client with one session cookie', async () => {
      let seen: object[] = [];
      await start({
        onRequest({ method, originalUrl, rawHeaders, headers, ip, protocol, hostname }, response) {
          seen.push({ method, originalUrl, rawHeaders, headers, ip, protocol, hostname });
          response.append('Set-Cookie', ['a=1; Path=/', 'b=2']);
          response.set('X-Case', 'kept').status(201);
        },
      });
      const sessionId = await seedOn(1);
      const requests = [
        {
          method: 'POST',
          target: '/ng-rollout/x/seed_session?a=1&a=%32&b=+%2F#c',
          fields: [
            'Content-Type',
            'application/json',
            'X-One',
            '1',
            'x-one',
            '2',
            'ACCEPT',
            '*/*',
            'Cookie',
            'other=1',
          ],
          body: `{ "resources_session_id" : ${JSON.stringify(sessionId)} }`,
        },
        {
          method: 'PATCH',
          target: '//tool?',
          fields: ['Cookie', cookieOf(sessionId), 'Range', 'bytes=0-1'],
          body: 'x',
        },
        {
          method: 'GET',
          target: '/%e9/..;/tool?use',
          fields: ['cookie', `${cookieOf(sessionId)}; x=y`, 'TE', 'trailers'],
        },
        { method: 'DELETE', target: '/tool', fields: ['X-Forwarded-For', '1.2.3.4', 'Cookie', cookieOf(sessionId)] },
      ];
      for (const request of requests) {
        seen = [];
        const [direct, forwarded] = [
          await send({ to: portOf(worker(1).server), ...request }),
          await send({ to: portOf(worker(0).server), ...request }),
        ];
        expect(forwarded.json.worker).to.equal(1);
        expect(withoutHop(seen[1])).to.deep.equal(withoutHop(seen[0]));
        expect(withoutHop(forwarded)).to.deep.equal(withoutHop(direct));
        const isSeed = request.target.includes('seed');
        expect(forwarded.setCookies).to.have.length(isSeed ? 3 : 2);
      }
    });

    it('is told from a public one by nothing that a client can send', async () => {
      let forwarded: boolean[] = [];
      await start({ onRequest: (request) => void forwarded.push(worker(1).routing.isForwarded(request)) });
      const sessionId = await seedOn(1);
      forwarded = [];
      const origin = Buffer.from('{"remoteAddress":"6.6.6.6"}').toString('base64url');
      const fields = ['Cookie', cookieOf(sessionId), 'X-Session-Routing-Origin', origin];
      await send({ to: portOf(worker(1).server), target: '/tool', fields });
      expect((await send({ to: portOf(worker(0).server), target: '/tool', fields })).json.worker).to.equal(1);
      expect(forwarded).to.deep.equal([false, true]);
    });
  });

  describe('two workers at once', () => {
    afterEach(stop);

    it('never both claim a session', async () => {
      await start();
      for (let round = 0; round < 200; round++) {
        const sessionId = `round ${round}`;
        const replies = await Promise.all([
          post(round % 2, '/seed_session', typed(sessionId)),
          post((round + 1) % 2, '/seed_session', typed(sessionId)),
        ]);
        const claimant = workers.claimantOf(sessionId);
        expect(replies.map(({ json }) => json.worker)).to.deep.equal([claimant, claimant]);
      }
      expect(workers.claims()).to.have.length(200);
    });

    it('that get a seed and a close of one session serve both on one worker', async () => {
      await start();
      for (let round = 0; round < 50; round++) {
        const sessionId = `round ${round}`;
        const replies = await Promise.all([
          post(round % 2, '/seed_session', typed(sessionId)),
          post((round + 1) % 2, '/close_session', typed(sessionId)),
        ]);
        const claimant = workers.claimantOf(sessionId);
        expect(replies.map(({ json }) => json.worker)).to.deep.equal([claimant, claimant]);
      }
    });

    it('that get a cookie which nobody claims serve it on one worker', async () => {
      await start();
      for (let round = 0; round < 50; round++) {
        const cookie = withCookie(`round ${round}`);
        const replies = await Promise.all([0, 1, 0, 1].map((index) => get(index, '/tool?use', cookie)));
        expect(new Set(replies.map(({ json }) => json.worker)).size).to.equal(1);
      }
    });

    it('never serve one session, while its claim comes and goes', async () => {
      const serving = new Map<string, number[]>();
      let clashes = 0;
      await start({
        kind: resources({ closeRetryWindowSeconds: 0.05 }),
        async onRequest({ sessionID }, _response, index) {
          const others = serving.get(sessionID) ?? [];
          if (others.some((other) => other !== index)) clashes++;
          others.push(index);
          serving.set(sessionID, others);
          await new Promise((resolve) => setTimeout(resolve, 3));
          others.splice(others.indexOf(index), 1);
        },
      });
      const statuses = new Set<number>();
      await Promise.all(
        Array.from({ length: 20 }, async (_, session) => {
          for (let round = 0; round < 20; round++) {
            await new Promise((resolve) => setTimeout(resolve, 45 + ((session + round) % 30)));
            const requests = [0, 1].map((index) => get(index, '/tool?use', withCookie(`${session}`)));
            for (const { status } of await Promise.all(requests)) statuses.add(status);
          }
        }),
      );
      expect(clashes).to.equal(0);
      expect([...statuses].filter((status) => status !== 200 && status !== 409)).to.deep.equal([]);
    });

    it('handle a forwarded request whose claim ended on the way where it arrives', async () => {
      await start({ kind: resources({ closeRetryWindowSeconds: 0.1 }) });
      await post(1, '/tool?use', {}, withCookie('s'));
      await until(() => workers.claims().length === 0, 'the claim has ended');
      // What another worker would send that saw the claim just before.
      const fields = ['Cookie', cookieOf('s')];
      const reply = await send({ to: privateSocketOf(workers, worker(1)), target: '/tool?use', fields });
      expect(reply.json).to.include({ worker: 1, sessionId: 's' });
      expectOnlyClaim('s', 1);
    });

    it('keep a claim while a request of its session is served, however long', async () => {
      const end = new Gate();
      await start({
        kind: resources({ closeRetryWindowSeconds: 0.05 }),
        onRequest: ({ path }) => (path === '/slow' ? end.opened : undefined),
      });
      const slow = get(0, '/slow?use', withCookie('s'));
      await until(() => workers.claims().length === 1, 'the slow request is served');
      await new Promise((resolve) => setTimeout(resolve, 300));
      expectOnlyClaim('s', 0);
      expect((await get(1, '/tool', withCookie('s'))).json.worker).to.equal(0);
      end.open();
      expect((await slow).status).to.equal(200);
      await until(() => workers.claims().length === 0, 'the claim has ended');
    });
  });

  it('handles cookies from before a restart where they land, and claims their sessions there', async () => {
    await start();
    const sessionId = await seedOn(1);
    await stop();
    expect(existsSync(workers.directory.path)).to.equal(false);
    await start();
    expect((await get(0, '/tool?use', withCookie(sessionId))).json).to.include({ worker: 0, sessionId });
    expect((await get(1, '/tool?use', withCookie(sessionId))).json).to.include({ worker: 0, sessionId });
    await stop();
  });

  describe('one worker', () => {
    for (const [what, options] of Object.entries({
      'without a runtime directory': { shared: false },
      'that is opted out with routing: false': { routing: false },
    })) {
      it(`${what} names sessions as several do, and writes no claim and opens no socket`, async () => {
        await start({ count: 1, ...options });
        const seed = await post(0, '/seed_session?use', typed('s'));
        expect(seed.json.sessionId).to.equal('s');
        expect(sessionIdIn(seed.setCookies)).to.equal('s');
        expect(sessionIdIn((await post(0, '/seed_session')).setCookies)).to.be.a('string');
        expect((await get(0, '/health')).setCookies).to.deep.equal([]);
        expectRefusal(await post(0, '/seed_session', typed('s'), withCookie('t')), 409, 'SESSION_MISMATCH');
        expect(readdirSync(workers.directory.path)).to.deep.equal([]);
        await stop();
      });
    }
  });

  it('leaves every worker to itself with routing: false', async () => {
    await start({ routing: false });
    await seedOn(0, 's');
    expect((await get(1, '/tool?use', withCookie('s'))).json.worker).to.equal(1);
    await stop();
  });

  describe('claim()', () => {
    afterEach(stop);

    const games = (): SessionKind => sessionKind({ from: [fromHeader('x-game-id')], idleSeconds: 0.1 });
    const ask = (index: number, sessionId: string): Promise<Reply> =>
      get(index, '/use', { headers: { 'x-game-id': sessionId } });
    const startGames = async (options: Parameters<typeof startWorkers>[1] = {}): Promise<void> => {
      const makeApp = (routing: SessionRouting, index: number): express.Express => {
        const app = express().set('env', 'test');
        app.use(routing, (_request, response) => void response.json({ worker: index }));
        return app;
      };
      workers = await startWorkers(makeApp, { kind: games, ...options });
    };
    const codeOf = (act: () => void): unknown => {
      try {
        act();
      } catch (error) {
        return (error as { code?: string }).code ?? error;
      }
      return undefined;
    };

    it('holds a session for its worker, before any request of it, and however long none comes', async () => {
      await startGames();
      worker(1).routing.claim('g');
      worker(1).routing.claim('g');
      expectOnlyClaim('g', 1);
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect((await ask(0, 'g')).json.worker).to.equal(1);
      expectOnlyClaim('g', 1);
    });

    it('is refused for what another worker holds, which stays as it was, and for what is no ID', async () => {
      await startGames();
      worker(1).routing.claim('g');
      expect(codeOf(() => worker(0).routing.claim('g'))).to.equal('SESSION_CLAIMED_ELSEWHERE');
      for (const sessionId of ['', '\ud800', 'x'.repeat(4097)]) {
        expect(codeOf(() => worker(0).routing.claim(sessionId))).to.equal('SESSION_ID_INVALID');
      }
      expectOnlyClaim('g', 1);
      worker(0).routing.claim('x'.repeat(4096));
      expect((await ask(1, 'x'.repeat(4096))).json.worker).to.equal(0);
    });

    it('is refused for a session whose worker is gone', async () => {
      await startGames();
      worker(1).routing.claim('g');
      await workers.leave(worker(1));
      expect(codeOf(() => worker(0).routing.claim('g'))).to.equal('SESSION_CLAIMED_ELSEWHERE');
      expectRefusal(await ask(0, 'g'), 410, 'SESSION_GONE');
    });

    it('is the same with one worker, which holds every session', async () => {
      await startGames({ count: 1, shared: false });
      worker(0).routing.claim('g');
      expect(codeOf(() => worker(0).routing.claim(''))).to.equal('SESSION_ID_INVALID');
      expect((await ask(0, 'g')).json.worker).to.equal(0);
    });

    it('opens a resources session, and leaves those of agent() and web() to the requests', async () => {
      await start({ kind: resources({ closeRetryWindowSeconds: 0.1 }) });
      worker(1).routing.claim('s');
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect((await get(0, '/use?use', withCookie('s'))).json).to.include({ worker: 1, sessionId: 's' });
      worker(0).routing.ended('s');
      expectOnlyClaim('s', 1);
      worker(1).routing.ended('s');
      await until(() => workers.claims().length === 0, 'it has ended');
      const sessions = new AgentSessions({ seed: () => ({}), close: () => undefined });
      for (const kind of [agent({ sessions }), web()]) {
        const routing = sessionRouting({ secret, kind });
        expect(() => routing.claim('s')).to.throw(TypeError, `the kind "${kind.kind}" are claimed by other means`);
        await routing.close();
      }
    });

    it('may come within the second for which a session that has ended is claimed still', async () => {
      await startGames();
      const { routing } = worker(1);
      routing.claim('g');
      for (let round = 0; round < 3; round++) {
        routing.ended('g');
        routing.claim('g');
      }
      expect(codeOf(() => worker(0).routing.claim('g'))).to.equal('SESSION_CLAIMED_ELSEWHERE');
      await new Promise((resolve) => setTimeout(resolve, 1_300));
      expect((await ask(0, 'g')).json.worker).to.equal(1);
    });

    it("is of no use to a kind without cookies for an express-session, which is the app's own", async () => {
      await startGames();
      const { routing } = worker(0);
      for (const use of [() => routing.session(), () => routing.genid({} as IncomingMessage)]) {
        expect(use).to.throw(TypeError, 'no cookie names the sessions of the kind "session"');
      }
      expect(routing.tokens).to.equal(undefined);
    });

    describe('beside adopt()', () => {
      /** A request of the app's own making, and the status of its reply once that has ended. */
      async function serve(index: number, sessionId: string): Promise<number> {
        const { routing, server } = worker(index);
        const inner = Object.assign(new IncomingMessage(new Socket()), {
          method: 'GET',
          url: '/inner',
          complete: true,
        });
        inner.push(null);
        const response = new ServerResponse(inner);
        response.assignSocket(new PassThrough().resume() as unknown as Socket);
        routing.adopt(inner, response, sessionId);
        expect(workers.claimantOf(sessionId)).to.equal(index);
        server.listeners('request').at(-1)?.call(server, inner, response);
        await once(response, 'finish');
        return response.statusCode;
      }

      it("serves a request of the app's own as one of a session, for as long as that is held here", async () => {
        await startGames();
        worker(1).routing.claim('g');
        expect(await serve(1, 'g')).to.equal(200);
        expect(await serve(1, 'new')).to.equal(200);
        const refused = await serve(0, 'g').catch((error: { code?: string }) => error.code);
        expect(refused).to.equal('SESSION_CLAIMED_ELSEWHERE');
        for (const none of ['', '\ud800']) {
          expect(await serve(0, none).catch((error: { code?: string }) => error.code)).to.equal('SESSION_ID_INVALID');
        }
        expect(workers.claimantOf('g')).to.equal(1);
        // One that nothing opened is held no longer than any other.
        await until(() => workers.claims().length === 1, 'the new one has gone');
      });
    });
  });

  describe('close()', () => {
    const servers: Server[] = [];
    let directory: RuntimeDirectory;

    beforeEach(async () => {
      directory = await createRuntimeDirectory();
    });
    afterEach(() => {
      for (const server of servers.splice(0)) {
        server.closeAllConnections();
        server.close();
      }
      directory.remove();
    });

    function newRouting(kind: SessionKind = resources()): SessionRouting {
      return sessionRouting({ secret, kind, runtimeDirectory: directory.path });
    }

    function sockets(): string[] {
      return readdirSync(directory.path).filter((name) => name.endsWith('.sock'));
    }

    it('leaves no timer, socket, file, listener or wrapper', async function () {
      this.timeout(10_000); // less than a connection is kept idle for
      directory.remove();
      const [handles, listeners] = [openHandles(), processListeners()];
      const stores = [new MemoryStore(), new MemoryStore()] as const;
      const { destroy } = stores[0];
      const timers = libraryTimers(async () => {
        directory = await createRuntimeDirectory();
        const all: { routing: SessionRouting; server: Server }[] = [];
        for (const [index, store] of stores.entries()) {
          const routing = newRouting(resources({ closeRetryWindowSeconds: 5 }));
          const app = probe(routing, index, { session: { store } });
          const server = await routing.listen(app, { port: 0, host: '127.0.0.1' });
          all.push({ routing, server });
        }
        const [one, other] = all.map(({ server }) => urlOf(server));
        expect((await new Client().post(`${one}/seed_session?status=500`, typed('s'))).status).to.equal(500);
        expect((await new Client().post(`${other}/close_session`, typed('s'))).json.worker).to.equal(0);
        expect(sockets()).to.have.length(2);
        await all[1]?.routing.close();
        const pipes = (names: string[]): number => names.filter((name) => name === 'PipeWrap').length;
        const ofOther = 1; // which still listens
        await until(() => pipes(openHandles()) === pipes(handles) + ofOther, 'its connections to others are closed');
        await all[0]?.routing.close();
        expect(sockets()).to.deep.equal([]);
        for (const { server } of all) {
          expect(server.listening).to.equal(false);
          expect(server).not.to.have.own.property('emit');
        }
        directory.remove();
      });
      expect(await timers)
        .to.have.property('made')
        .that.is.above(1);
      expect(await timers).to.have.property('left', 0);
      for (const store of stores) expect(store.destroy).to.equal(destroy);
      expect(processListeners()).to.deep.equal(listeners);
      await until(() => String(openHandles()) === String(handles), 'every handle is closed');
    });

    it('leaves the claims, so that siblings answer 410', async () => {
      await start();
      const sessionId = await seedOn(1);
      await workers.leave(worker(1));
      expectOnlyClaim(sessionId, 1);
      await stop();
    });

    it('lets the requests that it has begun end, forwarded ones too, and waits for nothing else', async function () {
      this.timeout(10_000); // a sibling keeps an idle connection for longer
      const [begun, end] = [new Gate(), new Gate()];
      await start({
        onRequest({ path }) {
          if (path !== '/slow') return undefined;
          begun.open();
          return end.opened;
        },
      });
      await seedOn(1, 's');
      const reply = get(0, '/slow?use', withCookie('s'));
      await begun.opened;
      const closed = workers.leave(worker(1));
      // What comes from now on is refused.
      await until(async () => (await get(0, '/tool', withCookie('s'))).status === 410, 'the socket is closed');
      end.open();
      expect((await reply).json).to.include({ worker: 1, sessionId: 's' });
      await closed;
      await stop();
    });

    it('may be called again', async () => {
      const routing = newRouting();
      servers.push(await routing.listen(probe(routing, 0), { port: 0, host: '127.0.0.1' }));
      await Promise.all([routing.close(), routing.close()]);
      await routing.close();
    });

    it('has the last word on a server that is about to listen, and on any later one', async () => {
      const routing = newRouting();
      const refused = 'The session routing has been closed. Make another one.';
      const server = createServer();
      const listens = routing.listen(probe(routing, 0), { port: 0, host: '127.0.0.1' });
      const failure = listens.catch((error: Error) => error.message);
      const handles = openHandles();
      await routing.close();
      expect(await failure).to.equal(refused);
      for (const later of [() => routing.listen(probe(routing, 0)), () => routing.attach(server)]) {
        expect(await later().catch((error: Error) => error.message)).to.equal(refused);
      }
      expect(server).not.to.have.own.property('emit');
      expect(sockets()).to.deep.equal([]);
      const servers = (names: string[]): number => names.filter((name) => name === 'TCPServerWrap').length;
      await until(() => servers(openHandles()) === servers(handles), 'the server is closed');
    });

    it('waits for a private socket that is being opened, and closes it', async () => {
      const routing = newRouting();
      const server = createServer();
      servers.push(server);
      const attached = routing.attach(server);
      await routing.close();
      await attached;
      expect(sockets()).to.deep.equal([]);
    });

    it('without a server, or with one that cannot listen, leaves nothing either', async () => {
      await newRouting().close();
      const taken = await listening(createServer());
      servers.push(taken);
      const routing = newRouting();
      const failure = await routing
        .listen(probe(routing, 0), { port: portOf(taken), host: '127.0.0.1' })
        .catch((error: unknown) => error);
      expect(failure).to.have.property('code', 'EADDRINUSE');
      await routing.close();
      expect(sockets()).to.deep.equal([]);
    });
  });
});

/** The connections and listening sockets of this process. */
function openHandles(): string[] {
  return process
    .getActiveResourcesInfo()
    .filter((name) => /TCP|Pipe/.test(name))
    .sort();
}

function processListeners(): Record<string, number> {
  return Object.fromEntries(process.eventNames().map((event) => [String(event), process.listenerCount(event)]));
}

/** How many timers the library makes while `work` runs, and how many of them are left after it. */
async function libraryTimers(work: () => Promise<void>): Promise<{ made: number; left: number }> {
  const library = new URL('../lib/', import.meta.url).pathname;
  const timers = new Set<number>();
  let made = 0;
  const hook = createHook({
    init(id, type) {
      if (type !== 'Timeout') return;
      const [, , ...frames] = new Error().stack?.split('\n') ?? [];
      const maker = frames.find((frame) => !/\(node:(internal\/(async_hooks|timers)|timers)\b/.test(frame));
      if (!maker?.includes(library)) return; // Node's own
      timers.add(id);
      made++;
    },
    destroy: (id) => void timers.delete(id),
  }).enable();
  try {
    await work();
    await new Promise((resolve) => setImmediate(resolve));
    return { made, left: timers.size };
  } finally {
    hook.disable();
  }
}
