import { expect } from 'chai';
import express from 'express';
import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createSecureServer, request as httpsRequest, type RequestOptions } from 'node:https';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import type { Duplex } from 'node:stream';
import { text } from 'node:stream/consumers';
import type { ConnectionOptions } from 'node:tls';
import { RoutedServers, type RoutedServer } from '../lib/routed-servers.ts';
import { createRuntimeDirectory, type RuntimeDirectory } from '../lib/runtime-directory.ts';
import { socketPath } from '../lib/socket-path.ts';
import { resources } from '../lib/session-kinds.ts';
import { sessionRouting, type SessionRouting } from '../lib/session-routing.ts';
import { Client, cookieOf, Gate, listening, portOf, probe, secret, send, sessionIdIn } from './fixtures/routed.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;

const nothing = (): void => undefined;
const typed = (sessionId: string): object => ({ resources_session_id: sessionId });

describe('RoutedServers', () => {
  const servers: Server[] = [];
  afterEach(() => {
    for (const server of servers.splice(0)) server.close();
  });

  function newServer(listener: RequestListener = nothing): Server {
    const server = createServer(listener);
    servers.push(server);
    return server;
  }

  it('puts itself in front of request, checkContinue and upgrade, and of nothing else', () => {
    const seen: string[] = [];
    const routed = new RoutedServers(
      (event, args, proceed) => {
        seen.push(`${event} ${String(args)}`);
        proceed();
      },
      async () => undefined,
    );
    const server = newServer(() => seen.push('listener'));
    routed.wrap(server);
    server.on('custom', (argument) => seen.push(`custom ${argument}`));
    server.on('checkContinue', (...args) => seen.push(`later listener of ${String(args)}`));
    expect(server.emit('request', 1, 2)).to.equal(true);
    expect(server.emit('checkContinue', 3, 4)).to.equal(true);
    expect(server.emit('custom', 5)).to.equal(true);
    expect(server.emit('other')).to.equal(false);
    expect(seen).to.deep.equal(['request 1,2', 'listener', 'checkContinue 3,4', 'later listener of 3,4', 'custom 5']);
  });

  it('holds an event back for as long as it is not told to proceed', () => {
    let proceed: () => void = nothing;
    const routed = new RoutedServers(
      (_event, _args, go) => (proceed = go),
      async () => undefined,
    );
    let handled = 0;
    const server = newServer(() => handled++);
    routed.wrap(server);
    server.emit('request');
    expect(handled).to.equal(0);
    proceed();
    expect(handled).to.equal(1);
  });

  it('wraps a server once', () => {
    let dispatched = 0;
    const routed = new RoutedServers(
      (_event, _args, proceed) => {
        dispatched++;
        proceed();
      },
      async () => undefined,
    );
    const server = newServer();
    routed.wrap(server);
    routed.wrap(server);
    server.emit('request');
    expect(dispatched).to.equal(1);
  });

  it('leaves a server as it was', () => {
    const routed = new RoutedServers(nothing, async () => undefined);
    const [plain, own] = [newServer(), newServer()];
    const emit = (): boolean => true;
    own.emit = emit;
    routed.wrap(plain);
    routed.wrap(own);
    routed.close();
    expect(plain).not.to.have.own.property('emit');
    expect(own.emit).to.equal(emit);
  });

  it('leaves a wrapper that came later in place, and does nothing any more behind it', () => {
    let [dispatched, handled, outside] = [0, 0, 0];
    const routed = new RoutedServers(
      () => dispatched++,
      async () => undefined,
    );
    const server = newServer(() => handled++);
    routed.wrap(server);
    const { emit } = server;
    const later = (...args: unknown[]): boolean => {
      outside++;
      return Reflect.apply(emit, server, args);
    };
    server.emit = later;
    routed.close();
    expect(server.emit).to.equal(later);
    server.emit('request');
    expect({ dispatched, handled, outside }).to.deep.equal({ dispatched: 0, handled: 1, outside: 1 });
  });

  it('opens the private socket once, for however many servers', async () => {
    let opened = 0;
    const gate = new Gate();
    const routed = new RoutedServers(nothing, () => {
      opened++;
      return gate.opened;
    });
    const [one, other] = [newServer(), newServer()];
    const both = Promise.all([routed.serve(one), routed.serve(other), routed.serve(one)]);
    expect([opened, routed.isServing(one)]).to.deep.equal([1, false]);
    gate.open();
    await both;
    expect([routed.isServing(one), routed.isServing(other), routed.isServing(newServer())]).to.deep.equal([
      true,
      true,
      false,
    ]);
  });

  it('rejects for every server when the private socket cannot be opened', async () => {
    const routed = new RoutedServers(nothing, () => Promise.reject(new Error('no room')));
    for (const server of [newServer(), newServer()]) {
      const error = await routed.serve(server).catch((reason: unknown) => reason);
      expect(error).to.have.property('message', 'no room');
      expect(routed.isServing(server)).to.equal(false);
    }
  });

  it('finds the server of a port, or else the first', async () => {
    const routed = new RoutedServers(nothing, async () => undefined);
    expect(routed.serverFor(80)).to.equal(undefined);
    const [one, other, closed] = [await listening(newServer()), await listening(newServer()), newServer()];
    for (const server of [closed, one, other]) await routed.serve(server);
    expect(routed.serverFor(portOf(one))).to.equal(one);
    expect(routed.serverFor(portOf(other))).to.equal(other);
    expect(routed.serverFor(1)).to.equal(closed);
    expect(routed.serverFor(undefined)).to.equal(closed);
  });
});

/** One worker of a server, made by hand. */
interface Made {
  readonly server: RoutedServer;
  readonly routings: readonly SessionRouting[];
}

describe('a routed server', () => {
  let directory: RuntimeDirectory;
  let workers: Made[];

  beforeEach(async () => {
    directory = await createRuntimeDirectory();
    workers = [];
  });
  afterEach(async () => {
    for (const { server, routings } of workers) {
      server.closeAllConnections();
      server.close();
      for (const routing of routings) await routing.close();
    }
    directory.remove();
  });

  function newRouting(options: Partial<Parameters<typeof sessionRouting>[0]> = {}): SessionRouting {
    return sessionRouting({ secret, kind: resources(), runtimeDirectory: directory.path, ...options });
  }

  /** Starts two workers on servers that `make` makes. */
  async function start(make: (index: number) => Made | Promise<Made>): Promise<void> {
    for (const index of [0, 1]) {
      const made = await make(index);
      workers.push(made);
      await listening(made.server);
    }
  }

  function portOfWorker(index: number): number {
    return portOf((workers[index] as Made).server);
  }

  function request(index: number, path: string, init: Parameters<Client['request']>[1] = {}) {
    return new Client().request(`http://127.0.0.1:${portOfWorker(index)}${path}`, init);
  }

  async function attached(server: RoutedServer, ...routings: SessionRouting[]): Promise<Made> {
    for (const routing of routings) await routing.attach(server);
    return { server, routings };
  }

  const newApps: Record<string, (routing: SessionRouting, index: number) => RequestListener> = {
    'an Express 5 app': probe,
    'an Express 4 app'(routing, index) {
      const app = express4().set('env', 'test');
      app.use(routing, routing.session({ resave: false, saveUninitialized: false }), express4.json());
      app.use((request, response) => void response.json({ worker: index, sessionId: request.sessionID }));
      return app;
    },
    'a bare listener'(routing, index) {
      const session = routing.session({ resave: false, saveUninitialized: false });
      return (request, response) =>
        session(request, response, (error) => {
          const { sessionID: sessionId } = request as { sessionID?: string };
          response.statusCode = error === undefined ? 200 : 500;
          response.setHeader('Content-Type', 'application/json');
          response.end(JSON.stringify({ worker: index, sessionId }));
        });
    },
  };
  for (const [what, newApp] of Object.entries(newApps)) {
    for (const mode of what === 'a bare listener' ? ['attached'] : ['attached', 'middleware']) {
      it(`serves ${what} (${mode})`, async () => {
        await start((index) => {
          const routing = newRouting();
          const server = createServer(newApp(routing, index));
          return mode === 'attached' ? attached(server, routing) : { server, routings: [routing] };
        });
        const seed = await request(1, '/seed_session?use', { json: typed('s') });
        expect(seed.json).to.deep.include({ worker: 1, sessionId: 's' });
        expect(sessionIdIn(seed.setCookies)).to.equal('s');
        const again = await request(0, '/seed_session?use', { json: typed('s') });
        expect(again.json).to.deep.include({ worker: 1, sessionId: 's' });
        expect(again.setCookies).to.have.length(1);
        expect(sessionIdIn(again.setCookies)).to.equal('s');
        const headers = { cookie: cookieOf('s') };
        expect((await request(0, '/tool?use', { headers })).json).to.deep.include({ worker: 1, sessionId: 's' });
        expect((await request(0, '/seed_session', { json: typed('t'), headers })).status).to.equal(409);
      });
    }
  }

  it('serves a router under a mount path, whose forwarded requests keep their target', async () => {
    await start((index) => {
      const routing = newRouting();
      const router = express.Router();
      router.use(routing, routing.session({ resave: false, saveUninitialized: false }));
      router.post('/seed_session', (_request, response) => void response.json({ worker: index }));
      router.get('/tool', ({ originalUrl, baseUrl, url, sessionID }, response) => {
        response.json({ worker: index, originalUrl, baseUrl, url, sessionID });
      });
      const app = express();
      app.get('/v1/api/tool/stateless', (_request, response) => void response.json({ worker: index }));
      app.use('/v1', express.Router().use('/api', router));
      return { server: createServer(app), routings: [routing] };
    });
    await request(1, '/v1/api/seed_session', { json: typed('s') });
    const headers = { cookie: cookieOf('s') };
    expect((await request(0, '/v1/api/tool?a=%20', { headers })).json).to.deep.equal({
      worker: 1,
      originalUrl: '/v1/api/tool?a=%20',
      baseUrl: '/v1/api',
      url: '/tool?a=%20',
      sessionID: 's',
    });
    // What is mounted elsewhere is not routed.
    expect((await request(0, '/v1/api/tool/stateless', { headers })).json.worker).to.equal(0);
  });

  for (const mode of ['attached', 'middleware']) {
    describe(`with two routings, at two paths (${mode})`, () => {
      const names = { a: 'a.sid', b: 'b.sid' };

      beforeEach(() =>
        start((index) => {
          const [a, b] = (['a', 'b'] as const).map((path) =>
            newRouting({ name: names[path], kind: resources({ basePath: `/${path}` }) }),
          ) as [SessionRouting, SessionRouting];
          const app = express().set('env', 'test');
          app.use('/both', a, b, (_request, response) => void response.json({ worker: index }));
          app.use(probe(a, index, { mount: '/a' }), probe(b, index, { mount: '/b' }));
          const server = createServer(app);
          return mode === 'attached' ? attached(server, a, b) : { server, routings: [a, b] };
        }),
      );

      it('routes the sessions of each', async () => {
        for (const [path, name, creator] of [
          ['/a', names.a, 0],
          ['/b', names.b, 1],
        ] as const) {
          const id = randomUUID();
          const seed = await request(creator, `${path}/seed_session`, { json: typed(id) });
          expect(seed.json.worker).to.equal(creator);
          expect(sessionIdIn(seed.setCookies, name)).to.equal(id);
          const headers = { cookie: cookieOf(id, name) };
          for (const index of [0, 1]) {
            expect((await request(index, `${path}/tool?use`, { headers })).json).to.include({ worker: creator });
          }
        }
      });

      it('serves a request that has sessions of both on the worker that has both', async () => {
        await request(1, '/a/seed_session', { json: typed('s') });
        await request(1, '/b/seed_session', { json: typed('t') });
        const headers = { cookie: `${cookieOf('s', names.a)}; ${cookieOf('t', names.b)}` };
        for (const index of [0, 1]) expect((await request(index, '/both', { headers })).json.worker).to.equal(1);
      });

      it('refuses a request that has sessions of both on two workers, and sends it round no circle', async () => {
        await request(0, '/a/seed_session', { json: typed('s') });
        await request(1, '/b/seed_session', { json: typed('t') });
        const headers = { cookie: `${cookieOf('s', names.a)}; ${cookieOf('t', names.b)}` };
        for (const index of [0, 1]) {
          const { status, json } = await request(index, '/both', { headers });
          expect([status, json.code]).to.deep.equal([409, 'SESSION_CLAIMED_ELSEWHERE']);
        }
      });
    });
  }

  for (const order of ['as they came', 'in reverse']) {
    it(`has no rule left when two routings that were attached to it have closed, ${order}`, async () => {
      const server = createServer((_request, response) => response.end('served'));
      const routings = [newRouting({ name: 'a.sid' }), newRouting({ name: 'b.sid' })];
      await attached(server, ...routings);
      workers.push({ server, routings: [] });
      await listening(server);
      for (const routing of order === 'in reverse' ? routings.reverse() : routings) await routing.close();
      const fields = ['Cookie', `${cookieOf('s', 'a.sid')}; ${cookieOf('s', 'b.sid')}`];
      expect((await send({ to: portOfWorker(0), fields })).text).to.equal('served');
      expect(readdirSync(`${directory.path}/session-claims`)).to.deep.equal([]);
    });
  }

  it('may listen on a Unix socket', async () => {
    await start((index) => {
      const routing = newRouting();
      return attached(createServer(probe(routing, index)), routing);
    });
    const paths = workers.map((_, index) => `${directory.path}/public-${index}.sock`);
    for (const [index, { server }] of workers.entries()) {
      server.close();
      await new Promise<void>((resolve) => server.listen(paths[index], resolve));
    }
    const [one = '', other = ''] = paths;
    const seed = { fields: ['Content-Type', 'application/json'], body: JSON.stringify(typed('s')) };
    expect((await send({ to: other, method: 'POST', target: '/seed_session', ...seed })).json.worker).to.equal(1);
    const reply = await send({ to: one, target: '/tool?use', fields: ['Cookie', cookieOf('s')] });
    expect(reply.json).to.include({ worker: 1, sessionId: 's' });
  });

  it('makes the requests wait that come before the private socket listens', async () => {
    const early: boolean[] = [];
    await start((index) => {
      const routing = newRouting();
      const app = express();
      app.use(routing, routing.session({ resave: false, saveUninitialized: false }), express.json());
      app.use((request, response) => {
        early.push(!existsSync(socketPath(directory.path, routing.workerId)));
        response.json({ worker: index, sessionId: request.sessionID, body: request.body as unknown });
      });
      return { server: createServer(app), routings: [routing] };
    });
    const ids = Array.from({ length: 10 }, (_, n) => `s${n}`);
    const bodies = ids.map((sessionId) => ({ ...typed(sessionId), more: 'x'.repeat(50_000) }));
    const replies = await Promise.all(bodies.map((json) => request(1, '/seed_session', { json })));
    expect(replies.map(({ json }) => json)).to.deep.equal(
      ids.map((sessionId, n) => ({ worker: 1, sessionId, body: bodies[n] })),
    );
    expect(early).to.deep.equal(ids.map(() => false));
    // The other worker meets its first request here, and forwards it.
    expect((await request(0, '/seed_session', { json: bodies[0] })).json.worker).to.equal(1);
  });

  it('passes the failure to open its private socket on to Express, for every request', async () => {
    await start(() => {
      const routing = newRouting();
      const app = express();
      app.use(routing);
      app.use((error: Error, _request: express.Request, response: express.Response, _next: express.NextFunction) => {
        response.status(500).send(error.message);
      });
      return { server: createServer(app), routings: [routing] };
    });
    directory.remove();
    for (const index of [0, 0, 1]) {
      const reply = await request(index, '/');
      expect(reply.status).to.equal(500);
      expect(reply.text).to.match(/EACCES|ENOENT|EINVAL/);
    }
  });

  describe('over TLS', () => {
    // A key that both sides know, in the place of a certificate.
    const psk = createHash('sha256').update('a key for specs').digest();
    const tls = { ciphers: 'PSK', minVersion: 'TLSv1.2', maxVersion: 'TLSv1.2' } as const;

    async function secureRequest(index: number, path: string, headers: Record<string, string>, json?: object) {
      const options: RequestOptions & ConnectionOptions = {
        ...tls,
        host: '127.0.0.1',
        port: portOfWorker(index),
        path,
        method: json === undefined ? 'GET' : 'POST',
        headers: { ...headers, ...(json === undefined ? {} : { 'content-type': 'application/json' }) },
        agent: false,
        pskCallback: () => ({ psk, identity: 'spec' }),
        checkServerIdentity: () => undefined,
      };
      const client = httpsRequest(options);
      client.end(json === undefined ? undefined : JSON.stringify(json));
      const [reply] = (await once(client, 'response')) as [IncomingMessage];
      return { json: JSON.parse(await text(reply)), setCookies: reply.headers['set-cookie'] ?? [] };
    }

    it('sends Secure cookies, also on forwarded requests', async () => {
      await start((index) => {
        const routing = newRouting();
        const app = express();
        app.use(routing);
        app.use(routing.session({ resave: false, saveUninitialized: false, cookie: { secure: true } }));
        app.use((request, response) => {
          const { secure, protocol, ip, sessionID: sessionId } = request;
          response.json({ worker: index, secure, protocol, ip, sessionId });
        });
        return attached(createSecureServer({ ...tls, pskCallback: () => psk }, app), routing);
      });
      const seen = { worker: 1, secure: true, protocol: 'https', ip: '127.0.0.1', sessionId: 's' };
      for (const index of [1, 0]) {
        const { json, setCookies } = await secureRequest(index, '/seed_session', {}, typed('s'));
        expect(json).to.deep.equal(seen);
        expect(sessionIdIn(setCookies)).to.equal('s');
        expect(setCookies[0]).to.match(/; Secure/);
        expect((await secureRequest(index, '/tool', { cookie: cookieOf('s') })).json).to.deep.equal(seen);
      }
      // The first use of a session, by a request that lands where it stays, is no other matter.
      expect((await secureRequest(0, '/tool', {})).setCookies[0]).to.match(/; Secure/);
    });
  });

  describe('whose client waits for 100 Continue', () => {
    /** Sends a head that expects to continue, and the body once it may. Counts the interim replies. */
    async function expectContinue(index: number, path: string, json: object, fields: Record<string, string> = {}) {
      const body = JSON.stringify(json);
      const client = httpRequest({
        port: portOfWorker(index),
        host: '127.0.0.1',
        method: 'POST',
        path,
        headers: {
          ...fields,
          expect: '100-continue',
          'content-type': 'application/json',
          'content-length': body.length,
        },
        agent: false,
      });
      let interim = 0;
      client.on('continue', () => {
        if (interim++ === 0) client.end(body);
      });
      client.flushHeaders();
      const [reply] = (await once(client, 'response')) as [IncomingMessage];
      const answer = await text(reply);
      client.destroy();
      return { status: reply.statusCode, interim, json: JSON.parse(answer || '{}') };
    }

    const listeners: Record<string, (server: RoutedServer) => void> = {
      'without a listener for it': nothing,
      'with one that serves the request itself': (server) => {
        const [listener] = server.listeners('request') as [RequestListener];
        server.on('checkContinue', (request: IncomingMessage, response: ServerResponse<IncomingMessage>) => {
          response.writeContinue();
          listener(request, response as Parameters<RequestListener>[1]);
        });
      },
      'with one that emits the request again': (server) => {
        server.on('checkContinue', (request, response) => {
          response.writeContinue();
          server.emit('request', request, response);
        });
      },
    };
    for (const [what, listen] of Object.entries(listeners)) {
      it(`is told once, ${what}`, async () => {
        await start((index) => {
          const routing = newRouting();
          const server = createServer(probe(routing, index));
          listen(server);
          return attached(server, routing);
        });
        const seeded = { status: 200, interim: 1, json: { worker: 1, body: typed('s') } };
        expect(await expectContinue(1, '/seed_session?echo', typed('s'))).to.deep.equal(seeded);
        expect(await expectContinue(0, '/seed_session?echo', typed('s'))).to.deep.equal(seeded);
        const cookie = cookieOf('s');
        const used = { status: 200, interim: 1, json: { worker: 1, sessionId: 's', body: { a: 1 } } };
        for (const index of [1, 0]) {
          expect(await expectContinue(index, '/tool?use&echo', { a: 1 }, { cookie })).to.deep.equal(used);
        }
      });
    }

    it('is refused by the app without sending its body, wherever it lands, and leaves nothing open', async () => {
      let closed = new Gate();
      await start((index) => {
        const routing = newRouting();
        const server = createServer(probe(routing, index));
        server.on('checkContinue', ({ socket }: IncomingMessage, response: ServerResponse) => {
          socket.once('close', closed.open);
          response.writeHead(417, { 'Content-Type': 'application/json' }).end(JSON.stringify({ worker: index }));
        });
        return attached(server, routing);
      });
      await request(1, '/seed_session', { json: typed('s') });
      for (const index of [1, 0]) {
        closed = new Gate();
        const reply = await expectContinue(index, '/tool', { a: 1 }, { cookie: cookieOf('s') });
        expect(reply).to.deep.equal({ status: 417, interim: 0, json: { worker: 1 } });
        await closed.opened;
      }
    });
  });

  describe('and upgrades', () => {
    /** Answers an upgrade with the worker's number, and echoes what comes over the connection from then on. */
    function onUpgrade(index: number): (request: IncomingMessage, socket: Duplex, head: Buffer) => void {
      return (_request, socket, head) => {
        socket.write(
          `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spec\r\nX-Worker: ${index}\r\n\r\n`,
        );
        socket.write(head);
        socket.pipe(socket);
      };
    }

    async function upgrade(index: number, sessionId: string, more = 'with the head'): Promise<string> {
      const socket = connect(portOfWorker(index), '127.0.0.1');
      const head = [
        'GET /socket HTTP/1.1',
        'Host: localhost',
        'Connection: Upgrade',
        'Upgrade: spec',
        `Cookie: ${cookieOf(sessionId)}`,
        '',
        '',
      ].join('\r\n');
      socket.write(head + more);
      let received = '';
      for await (const chunk of socket) {
        received += String(chunk);
        if (received.endsWith('with the head')) socket.write('and later');
        if (received.endsWith('and later')) socket.end();
      }
      return received;
    }

    it('go to the claimant of their session with attach()', async () => {
      await start((index) => {
        const routing = newRouting();
        const server = createServer(probe(routing, index)).on('upgrade', onUpgrade(index));
        return attached(server, routing);
      });
      await request(1, '/seed_session', { json: typed('s') });
      for (const index of [1, 0]) {
        const received = await upgrade(index, 's');
        expect(received).to.match(/^HTTP\/1\.1 101 Switching Protocols\r\n/);
        expect(received).to.match(/\r\nX-Worker: 1\r\n/);
        expect(received).to.match(/\r\n\r\nwith the headand later$/);
      }
    });

    it('of a worker that is gone are refused with 410', async () => {
      await start((index) => {
        const routing = newRouting();
        const server = createServer(probe(routing, index)).on('upgrade', onUpgrade(index));
        return attached(server, routing);
      });
      await request(1, '/seed_session', { json: typed('s') });
      const [{ server, routings }] = workers.splice(1) as [Made];
      server.close();
      for (const routing of routings) await routing.close();
      const received = await upgrade(0, 's', '');
      expect(received).to.match(/^HTTP\/1\.1 410 Gone\r\n/);
      expect(received).to.include('application/problem+json');
      expect(received).to.include('"code":"SESSION_GONE"');
    });

    it('stay where they land with the middleware alone', async () => {
      await start((index) => {
        const routing = newRouting();
        const server = createServer(probe(routing, index)).on('upgrade', onUpgrade(index));
        return { server, routings: [routing] };
      });
      await request(1, '/seed_session', { json: typed('s') });
      for (const index of [1, 0])
        expect(await upgrade(index, 's')).to.match(new RegExp(`\\r\\nX-Worker: ${index}\\r\\n`));
    });

    it('that nobody listens for are requests as any other', async () => {
      await start((index) => {
        const routing = newRouting();
        return attached(createServer(probe(routing, index)), routing);
      });
      await request(1, '/seed_session', { json: typed('s') });
      for (const index of [1, 0]) {
        const fields = ['Connection', 'Upgrade', 'Upgrade', 'h2c', 'Cookie', cookieOf('s')];
        const reply = await send({ to: portOfWorker(index), target: '/tool?use', fields });
        expect(reply.status).to.equal(200);
        expect(reply.json).to.deep.include({ worker: 1, sessionId: 's' });
      }
    });
  });
});
