import { expect } from 'chai';
import { rmSync, utimesSync, statSync, readdirSync } from 'node:fs';
import { request as httpRequest, createServer } from 'node:http';
import { connect } from 'node:net';
import { join } from 'node:path';
import { once } from 'node:events';
import { gzipSync } from 'node:zlib';
import express from 'express';
import expressSession, { MemoryStore } from 'express-session';
import { CookieExpiry } from '../lib/cookie-expiry.ts';
import { createRuntimeDirectory } from '../lib/runtime-directory.ts';
import { SessionClaims } from '../lib/claims.ts';
import { resources, web } from '../lib/session-kinds.ts';
import {
  appWith,
  Client,
  portOf,
  privateSocketOf,
  secret,
  startWorkers,
  until,
  type Workers,
} from './fixtures/routed.ts';

/** What went wrong once, and is to go right. */
describe('a client that leaves while its requests wait behind others', () => {
  let workers: Workers;

  afterEach(() => workers.close());

  it('leaves no claim and no session behind', async () => {
    const store = new MemoryStore();
    const slow: (() => void)[] = [];
    const used: string[] = [];
    workers = await startWorkers(
      (routing) =>
        appWith(
          routing,
          (app) => {
            app.get('/slow', (_request, response) => void slow.push(() => response.end()));
            app.post('/use', (request, response) => {
              used.push(request.sessionID);
              response.json({});
            });
          },
          { store },
        ),
      { kind: resources({ closeRetryWindowSeconds: 0.2 }), count: 1 },
    );
    const [worker] = workers.all;
    const socket = connect(portOf(worker!.server), '127.0.0.1');
    const use = 'POST /use HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}';
    socket.write(`GET /slow HTTP/1.1\r\nHost: x\r\n\r\n${use}${use}`);
    await until(() => used.length === 2, 'both have run');
    expect(workers.claims()).to.have.length(2);
    socket.destroy();
    await until(() => workers.claims().length === 0, 'the claims have gone');
  });
});

describe('a runtime directory that is gone', () => {
  let workers: Workers;

  beforeEach(async () => {
    workers = await startWorkers(
      (routing) =>
        appWith(routing, (app) => {
          app.post('/in-handler', (request, response) => void response.json(request.sessionID));
          app.post('/in-callback', (request, response) => {
            setTimeout(() => {
              const { sessionID } = request;
              response.set('X-Session', sessionID).status(201).json({ sessionID });
            }, 1);
          });
          app.post('/regenerate', (request, response) => {
            request.session.regenerate(() => response.json(request.sessionID));
          });
          app.use(((error, _request, response, _next) => {
            response.status(error.status ?? 500).json({ code: error.code });
          }) as express.ErrorRequestHandler);
        }),
      { kind: resources(), count: 1 },
    );
  });

  afterEach(() => workers.close());

  for (const path of ['/in-handler', '/in-callback']) {
    it(`refuses a request whose session is first used ${path.slice(1).replace('-', ' a ')}, and ends no worker`, async () => {
      rmSync(workers.directory.path, { recursive: true });
      const reply = await new Client().post(`${workers.all[0]!.url}${path}`);
      expect([reply.status, reply.json.code]).to.deep.equal([503, 'CLAIM_UNREADABLE']);
      expect(reply.headers.get('x-session')).to.equal(null);
      expect(reply.setCookies).to.deep.equal([]);
    });
  }

  it('refuses a request that makes a new session of its own, and ends no worker', async () => {
    const client = new Client();
    await client.post(`${workers.all[0]!.url}/in-handler`);
    rmSync(workers.directory.path, { recursive: true });
    const reply = await client.post(`${workers.all[0]!.url}/regenerate`);
    expect([reply.status, reply.json.code, reply.setCookies]).to.deep.equal([503, 'CLAIM_UNREADABLE', []]);
  });
});

describe('a resources server without routing.session()', () => {
  it('answers a handler that reads req.sessionID with an error that says what to mount', async () => {
    let message = '';
    const workers = await startWorkers(
      (routing) => {
        const app = express();
        app.use(routing);
        app.get('/', (request, response) => void response.json(request.sessionID));
        app.use(((error, _request, response, _next) => {
          ({ message } = error);
          response.status(500).end();
        }) as express.ErrorRequestHandler);
        return app;
      },
      { kind: resources() },
    );
    const { status } = await new Client().get(workers.all[0]!.url);
    await workers.close();
    expect(status).to.equal(500);
    expect(message).to.include('routing.session()');
  });
});

describe('seeds whose path is spelt in a way that Express takes for the route', () => {
  for (const target of [
    '/api//seed_session',
    '/api/seed_session/',
    '/API/Seed_Session',
    '/api/seed_session?x',
    '/api\\seed_session#',
  ]) {
    it(`names its session in its body: ${target}`, async () => {
      const workers = await startWorkers(
        (routing) =>
          appWith(routing, (app) => {
            app.use((request, response) => void response.json(request.sessionID));
          }),
        { kind: resources({ basePath: '/api' }), count: 1 },
      );
      const body = '{"resources_session_id":"A"}';
      const request = httpRequest({
        port: portOf(workers.all[0]!.server),
        path: target,
        method: 'POST',
        headers: { 'content-type': 'application/json', 'content-length': body.length },
      });
      request.end(body);
      const [response] = await once(request, 'response');
      const chunks: Buffer[] = await response.toArray();
      await workers.close();
      expect(JSON.parse(Buffer.concat(chunks).toString())).to.equal('A');
    });
  }

  it('are refused with the basePath to give, where only the mounted middleware can tell them', async () => {
    let message = '';
    const workers = await startWorkers(
      (routing) => {
        const app = express();
        app.use(
          '/api',
          appWith(routing, (api) => void api.post('/seed_session', (_q, response) => void response.json(1))),
        );
        app.use(((error, _request, response, _next) => {
          ({ message } = error);
          response.status(500).end();
        }) as express.ErrorRequestHandler);
        return app;
      },
      { kind: resources(), count: 1 },
    );
    const { status } = await new Client().post(`${workers.all[0]!.url}/api/seed_session`, {
      resources_session_id: 'A',
    });
    await workers.close();
    expect(status).to.equal(500);
    expect(message).to.include("basePath: '/api'");
  });
});

describe('compressed seeds that come all at once', () => {
  it('are inflated one after the other, and each is routed by its body', async () => {
    const workers = await startWorkers(
      (routing) =>
        appWith(routing, (app) => void app.post('/seed_session', (q, response) => void response.json(q.sessionID))),
      { kind: resources() },
    );
    const ids = Array.from({ length: 20 }, (_, index) => `session-${index}`);
    const replies = await Promise.all(
      ids.map((id, index) =>
        new Client().request(`${workers.all[index % 2]!.url}/seed_session`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' },
          body: gzipSync(JSON.stringify({ resources_session_id: id, filling: 'x'.repeat(100_000) })),
        }),
      ),
    );
    await workers.close();
    expect(replies.map(({ json }) => json)).to.deep.equal(ids);
  });
});

describe('a private socket that somebody else of the same user writes to', () => {
  for (const value of ['!!!', 'e30', 'bnVsbA', Buffer.from('{"socket":null}').toString('base64url')]) {
    it(`survives the origin ${value}`, async () => {
      const workers = await startWorkers(
        (routing) => appWith(routing, (app) => void app.get('/', (_request, response) => void response.json('here'))),
        { kind: resources(), count: 1 },
      );
      const request = httpRequest({
        socketPath: privateSocketOf(workers, workers.all[0]!),
        headers: { 'x-session-routing-origin': value, 'x-session-routing-': 'bare' },
      });
      request.end();
      const [response] = await once(request, 'response');
      response.resume();
      await workers.close();
      expect(response.statusCode).to.equal(200);
    });
  }
});

describe('CookieExpiry', () => {
  async function fields(expiry: CookieExpiry, path: string): Promise<string[]> {
    const server = createServer((_request, response) => {
      expiry.expire(response);
      response.end();
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { setCookies } = await new Client().get(`http://127.0.0.1:${portOf(server)}${path}`);
    server.close();
    return setCookies.map((field) => field.replace('; Expires=Thu, 01 Jan 1970 00:00:00 GMT', ''));
  }

  it('expires a cookie at every path that it may have, while nothing is known of it', async () => {
    expect(await fields(new CookieExpiry('sid'), '/shop/cart?x=/y')).to.deep.equal([
      'sid=; Path=/; HttpOnly',
      'sid=; Path=/shop; HttpOnly',
      'sid=; Path=/shop/cart; HttpOnly',
    ]);
  });

  it('adds Secure for the names that browsers want it for', async () => {
    expect(await fields(new CookieExpiry('__Host-sid'), '/')).to.deep.equal(['__Host-sid=; Path=/; Secure; HttpOnly']);
  });

  it('takes the attributes of the cookies that the app sets', async () => {
    const expiry = new CookieExpiry('sid');
    expiry.learnOptions({ path: '/a', domain: 'example.org', secure: true });
    expect(await fields(expiry, '/')).to.deep.equal(['sid=; Path=/a; Domain=example.org; Secure; HttpOnly']);
    expiry.learnField('sid=s%3Ax.y; Path=/shop; Expires=Fri, 01 Jan 2100 00:00:00 GMT; Max-Age=9; SameSite=Strict');
    expect(await fields(expiry, '/')).to.deep.equal(['sid=; Path=/shop; SameSite=Strict']);
  });

  it('is used for the 410 of a web app with an express-session of its own', async () => {
    const workers = await startWorkers(
      (routing) => {
        const app = express();
        app.use(
          expressSession({
            secret,
            genid: routing.genid,
            resave: false,
            saveUninitialized: true,
            cookie: { path: '/shop' },
          }),
        );
        app.use((_request, response) => void response.end());
        return app;
      },
      { kind: web() },
    );
    const client = new Client();
    await client.get(`${workers.all[0]!.url}/shop`);
    await workers.all[0]!.routing.close();
    const reply = await client.get(`${workers.all[1]!.url}/shop`);
    await workers.close();
    expect(reply.status).to.equal(410);
    expect(reply.setCookies.join()).to.match(/connect\.sid=; Path=\/shop;/);
    expect(client.jar.size).to.equal(0);
  });
});

describe('the files of a runtime directory', () => {
  it('are marked as in use by the primary, those of claims too, so that cleaners of temporary files leave them', async () => {
    const directory = await createRuntimeDirectory({ sweepSeconds: 0.05 });
    const claims = new SessionClaims({ directory: directory.path, workerId: 'a'.repeat(32), holds: () => true });
    claims.claim('session');
    const folder = join(directory.path, 'session-claims');
    const claim = join(folder, readdirSync(folder)[0]!);
    const old = new Date(2000, 0);
    for (const path of [claim, folder, directory.path]) utimesSync(path, old, old);
    await until(
      () => [claim, folder, directory.path].every((path) => statSync(path).mtimeMs > Date.now() - 60_000),
      'all are new again',
    );
    directory.remove();
  });
});
