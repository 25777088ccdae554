import { expect } from 'chai';
import { sign } from 'cookie-signature';
import { randomUUID } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { monotonicSeconds } from '../lib/seconds.ts';
import { AgentSessionLifetimes } from '../lib/agent-lifetimes.ts';
import { AgentSessions } from '../lib/agent-sessions.ts';
import type { SessionKind } from '../lib/session-kind.ts';
import { agent, resources, web, type AgentOptions, type ResourcesOptions } from '../lib/session-kinds.ts';
import { SessionTokens } from '../lib/session-token.ts';
import {
  Client,
  cookieOf,
  Gate,
  portOf,
  probe,
  secret,
  send,
  sessionIdIn,
  startWorkers,
  until,
  type RawReply,
  type Reply,
  type Worker,
  type Workers,
} from './fixtures/routed.ts';

const isRead = ({ bodyReader }: SessionKind, method: string, path: string): boolean =>
  bodyReader(method, path, false) !== undefined;
const newSessions = (): AgentSessions<object> => new AgentSessions({ seed: () => ({}), close: () => undefined });
const typed = (sessionId: string): object => ({ resources_session_id: sessionId });

describe('resources()', () => {
  it('reads the session from the bodies of seeds and closes, and from no other', () => {
    const kind = resources();
    expect(kind.bodyReader('POST', '/seed_session', true)?.(typed('a'))).to.equal('a');
    for (const path of ['/seed_session', '/close_session', '/ng-rollout/a/SEED_session/']) {
      expect(isRead(kind, 'POST', path)).to.equal(true);
      expect(isRead(kind, 'GET', path)).to.equal(false);
    }
    expect(isRead(kind, 'POST', '/verify')).to.equal(false);
  });

  it('takes other paths for them', () => {
    const kind = resources({ seedPath: '/v1/open', closePath: '/v1/shut/' });
    expect(isRead(kind, 'POST', '/v1/open/')).to.equal(true);
    expect(isRead(kind, 'POST', '/V1/Shut')).to.equal(true);
    expect(isRead(kind, 'POST', '/seed_session')).to.equal(false);
    const lifetimes = kind.createLifetimes(monotonicSeconds);
    expect(lifetimes.starts({ method: 'POST', path: '/v1/open', headers: {} })).to.equal(true);
    expect(lifetimes.starts({ method: 'POST', path: '/seed_session', headers: {} })).to.equal(false);
  });

  it('names its cookie resources.sid, and leaves its claims to the end of the server', () => {
    expect(resources()).to.include({ kind: 'resources', cookieName: 'resources.sid', cookies: 'router' });
    expect(resources().claimsExpireSeconds).to.equal(undefined);
  });

  it('takes a base path with a slash at its end or without', () => {
    expect(resources({ basePath: '/api/v1/' }).basePath).to.equal('/api/v1');
    expect(resources({ basePath: '/api/v1' }).basePath).to.equal('/api/v1');
    expect(resources({ basePath: '/' }).basePath).to.equal('');
    expect(resources().basePath).to.equal('');
  });

  it('makes lifetimes that know nothing of one another', () => {
    const kind = resources();
    const [one, other] = [kind.createLifetimes(monotonicSeconds), kind.createLifetimes(monotonicSeconds)];
    one.served('s', { method: 'POST', path: '/seed_session', headers: {} }, 200);
    expect([one.holds('s'), other.holds('s')]).to.deep.equal([true, false]);
  });
});

describe('agent()', () => {
  it('reads the session from the bodies of seeds and closes, and from no other', () => {
    const kind = agent({ sessions: newSessions() });
    expect(kind.bodyReader('POST', '/v1/agent_sessions', false)?.({ agent_session_id: 'a' })).to.equal('a');
    for (const path of ['/v1/agent_sessions', '/v1/agent_sessions/close', '/V1/Agent_sessions/']) {
      for (const prefix of ['', '/ng-rollout/r1', '/ng-rollout/r1/training-token-capture']) {
        expect(isRead(kind, 'POST', prefix + path)).to.equal(true);
        expect(isRead(kind, 'GET', prefix + path)).to.equal(false);
      }
    }
    for (const path of ['/v1/responses', '/v1/agent_sessions/finish', '/ng-rollout/a/b/c/v1/agent_sessions', '/run']) {
      expect(isRead(kind, 'POST', path)).to.equal(false);
    }
  });

  it('names its cookie agent.sid, routes no ordinary session, and leaves its claims to the end of the server', () => {
    const kind = agent({ sessions: newSessions() });
    expect(kind).to.include({ kind: 'agent', cookieName: 'agent.sid', cookies: 'router', routesNewSessions: false });
    expect(kind.mismatch).to.equal('agent_session_id does not match the session cookie');
    expect(kind.claimsExpireSeconds).to.equal(undefined);
  });

  it('tells the express-session ID of an agent session from that of an ordinary one', () => {
    const { expressIdOf, sessionIdOf } = agent({ sessions: newSessions() });
    for (const id of ['s', 'agent:s', 'ü', ':']) {
      expect(expressIdOf(id)).to.equal(`agent:${id}`);
      expect(sessionIdOf(expressIdOf(id))).to.equal(id);
    }
    expect(sessionIdOf('agent:')).to.equal('');
    for (const ordinary of ['s', 'Agent:s', ' agent:s', 'agent', '']) expect(sessionIdOf(ordinary)).to.equal(undefined);
  });

  it('lets the records of the sessions decide how long they live', () => {
    const sessions = newSessions();
    const kind = agent({ sessions });
    expect(kind.agentSessions).to.equal(sessions);
    expect(kind.createLifetimes(monotonicSeconds)).to.be.instanceOf(AgentSessionLifetimes);
  });

  it('takes a base path with a slash at its end or without', () => {
    expect(agent({ sessions: newSessions(), basePath: '/api/' }).basePath).to.equal('/api');
    expect(agent({ sessions: newSessions() }).basePath).to.equal('');
  });

  const refused: Record<string, [object | undefined, RegExp]> = {
    'no options': [undefined, /^agent\(\): option "sessions": must hold the records of agent sessions/],
    'no sessions': [{}, /^agent\(\): option "sessions"/],
    'sessions that are null': [{ sessions: null }, /^agent\(\): option "sessions"/],
    'sessions that hold no records': [{ sessions: new Map() }, /^agent\(\): option "sessions"/],
    'a base path without a slash': [{ sessions: newSessions(), basePath: 'api' }, /^agent\(\): option "basePath"/],
    'an unknown option': [
      { session: newSessions(), sessions: newSessions() },
      /no option "session"; did you mean "sessions"/,
    ],
  };
  for (const [what, [options, message]] of Object.entries(refused)) {
    it(`refuses ${what}`, () => {
      expect(() => agent(options as AgentOptions)).to.throw(TypeError, message);
    });
  }
});

describe('web()', () => {
  it('names no session in bodies, and leaves cookies to express-session', () => {
    const kind = web();
    expect(kind).to.include({ kind: 'web', cookieName: 'connect.sid', cookies: 'express-session' });
    expect(isRead(kind, 'POST', '/seed_session')).to.equal(false);
  });

  it('lets the claims of a dead worker go after idleSeconds, a day by default', () => {
    expect(web().claimsExpireSeconds).to.equal(86_400);
    expect(web({ idleSeconds: 60 }).claimsExpireSeconds).to.equal(60);
  });
});

describe('a claim', () => {
  const windowSeconds = 0.15;
  let workers: Workers;

  afterEach(() => workers.close());

  async function start(options: ResourcesOptions = {}): Promise<void> {
    workers = await startWorkers(probe, { kind: resources({ closeRetryWindowSeconds: windowSeconds, ...options }) });
  }

  function post(index: number, path: string, json: object, sessionId?: string, more = {}): Promise<Reply> {
    const headers = sessionId === undefined ? more : { cookie: cookieOf(sessionId), ...more };
    return new Client().post(`${workers.all[index]?.url}${path}`, json, { headers });
  }

  /** Makes the last request of a session, and waits until its claim is gone, a window or more later. */
  async function expectEndAfter(lastRequest: () => Promise<Reply>, seconds = windowSeconds): Promise<void> {
    const sentAt = performance.now();
    await lastRequest();
    expect(workers.claims()).to.have.length(1);
    await until(() => workers.claims().length === 0, 'the claim has ended');
    expect(performance.now() - sentAt).to.be.at.least(seconds * 1000);
  }

  const windows = (count: number): Promise<void> =>
    new Promise((resolve) => setTimeout(resolve, count * windowSeconds * 1000));

  describe('of a resources session ends with no further request', () => {
    it('a window after its close, by any worker', async () => {
      await start();
      await post(1, '/seed_session', typed('s'));
      await windows(3);
      await expectEndAfter(() => post(0, '/close_session', typed('s')));
    });

    it('a window after its verify', async () => {
      await start();
      const sessionId = sessionIdIn((await post(1, '/seed_session', {})).setCookies);
      await windows(3);
      await expectEndAfter(() => post(0, '/verify', {}, sessionId));
    });

    it('a window after routing.ended()', async () => {
      await start();
      const sessionId = sessionIdIn((await post(1, '/seed_session', {})).setCookies);
      await windows(3);
      await expectEndAfter(() => post(0, '/finish?end', {}, sessionId));
    });

    it('a window after routing.ended(), though the request that says so fails', async () => {
      await start();
      await post(1, '/seed_session', typed('s'));
      await expectEndAfter(() => post(0, '/finish?end&status=500', {}, 's'));
    });

    it('a window after the last request of one that was never seeded', async () => {
      await start();
      const sessionId = sessionIdIn((await post(1, '/tool?use', {})).setCookies);
      for (let round = 0; round < 5; round++) {
        await windows(0.5);
        await post(0, '/tool?use', {}, sessionId);
        expect(workers.claims()).to.have.length(1);
      }
      await expectEndAfter(() => post(0, '/health', {}, sessionId));
    });

    it('a window after the cleanup close of a seed that failed', async () => {
      await start();
      await post(1, '/seed_session?status=500', typed('s'));
      await windows(0.5);
      await expectEndAfter(() => post(0, '/close_session', typed('s')));
    });

    it('a window after a seed that failed and was never closed', async () => {
      await start();
      await expectEndAfter(() => post(1, '/seed_session?status=422', typed('s')));
    });

    it('a window after the close of an ID that nobody knew', async () => {
      await start();
      await expectEndAfter(() => post(1, '/close_session', typed('s')));
    });

    it('a window after the last request that comes behind its close', async () => {
      await start();
      await post(1, '/seed_session', typed('s'));
      await post(1, '/close_session', typed('s'));
      for (let round = 0; round < 4; round++) {
        await windows(0.5);
        expect((await post(0, '/close_session', typed('s'))).json.worker).to.equal(1);
      }
      await expectEndAfter(() => post(0, '/verify', {}, 's'));
    });

    it('a window after a route that is declared to end sessions', async () => {
      await start({ ends: ['/finish', 'DELETE /session'] });
      await post(1, '/seed_session', typed('s'));
      await post(1, '/verify', {}, 's');
      await windows(2);
      expect(workers.claims()).to.have.length(1);
      await expectEndAfter(() => post(0, '/Finish/', {}, 's'));
    });

    it('a window after a seed whose client left before its reply', async () => {
      const begun = new Gate();
      workers = await startWorkers(
        (routing, index) =>
          probe(routing, index, {
            onRequest(_request, response) {
              begun.open();
              return new Promise((resolve) => response.once('close', resolve));
            },
          }),
        { kind: resources({ closeRetryWindowSeconds: windowSeconds }) },
      );
      const leaving = new AbortController();
      const { signal } = leaving;
      const seed = new Client().post(`${workers.all[1]?.url}/seed_session`, typed('s'), { signal });
      await begun.opened;
      expect(workers.claimantOf('s')).to.equal(1);
      leaving.abort();
      expect(await seed.catch((error: Error) => error.name)).to.equal('AbortError');
      await until(() => workers.claims().length === 0, 'the claim has ended');
    });

    it('and is not made by routing.ended() of a request without a session', async () => {
      await start();
      expect((await post(1, '/health?end', {})).setCookies).to.deep.equal([]);
      expect(workers.claims()).to.deep.equal([]);
    });

    it('a second or more after a request whose cookie names it and whose handler does not use it', async () => {
      await start();
      const sessionId = randomUUID();
      await expectEndAfter(() => post(1, '/health', {}, sessionId), 1);
    });
  });

  describe('of a resources session stays', () => {
    const follows = { 'X-NG-Checkpoint-Close-Follows': '1' };
    const stays: Record<string, () => Promise<unknown>> = {
      'while it is open': () => post(1, '/tool?use', {}, 's'),
      'after a verify that says that a close follows': () => post(0, '/verify', {}, 's', follows),
      'after a verify that fails': () => post(0, '/verify?status=500', {}, 's'),
      'after a close that fails': () => post(0, '/close_session?status=503', typed('s')),
      'after another seed that fails': () => post(0, '/seed_session?status=409', typed('s')),
      'after routing.ended() and another seed': async () => {
        await post(0, '/finish?end', {}, 's');
        await post(0, '/seed_session', typed('s'));
      },
    };
    for (const [when, act] of Object.entries(stays)) {
      it(when, async () => {
        await start();
        await post(1, '/seed_session', typed('s'));
        await act();
        await windows(4);
        expect(workers.claimantOf('s')).to.equal(1);
        expect((await post(0, '/tool?use', {}, 's')).json.worker).to.equal(1);
      });
    }

    it('after another header that says so, and goes with the one by default', async () => {
      await start({ closeFollowsHeader: 'X-Close-Follows' });
      await post(1, '/seed_session', typed('s'));
      await post(0, '/verify', {}, 's', { 'x-close-follows': 'yes' });
      await windows(3);
      expect(workers.claims()).to.have.length(1);
      await expectEndAfter(() => post(0, '/verify', {}, 's', follows));
    });

    it('after a route that is declared to start sessions', async () => {
      await start({ starts: ['/reset'] });
      const sessionId = sessionIdIn((await post(1, '/reset', {})).setCookies) ?? '';
      await windows(3);
      expect(workers.claimantOf(sessionId)).to.equal(1);
    });
  });

  describe('of a web session', () => {
    async function startWeb(idleSeconds: number, cookie: { maxAge?: number } = {}, gate?: Gate): Promise<void> {
      workers = await startWorkers(
        (routing, index) =>
          probe(routing, index, {
            session: { saveUninitialized: true, cookie },
            async onRequest(request) {
              if (request.path === '/login') Object.assign(request.session, { user: 'me' });
              if (request.path === '/logout') request.session.destroy(() => undefined);
              if (request.path === '/slow') await gate?.opened;
            },
          }),
        { kind: web({ idleSeconds }) },
      );
    }

    function get(index: number, path: string, client: Client): Promise<Reply> {
      return client.get(`${workers.all[index]?.url}${path}`);
    }

    it('lasts for idleSeconds after the last request', async () => {
      await startWeb(0.3);
      const client = new Client();
      await get(1, '/login?use', client);
      for (let round = 0; round < 4; round++) {
        await windows(1);
        expect((await get(0, '/page', client)).json.worker).to.equal(1);
      }
      await expectEndAfter(() => get(0, '/page', client), 0.3);
    });

    it('lasts as long as its cookie, in whole seconds', async () => {
      await startWeb(600, { maxAge: 400 });
      const client = new Client();
      await expectEndAfter(() => get(1, '/login?use', client), 0.4);
    });

    it('lasts while a request of it is served', async () => {
      const gate = new Gate();
      await startWeb(0.1, {}, gate);
      const client = new Client();
      await get(1, '/login?use', client);
      const slow = get(0, '/slow', client);
      await windows(4);
      expect(workers.claims()).to.have.length(1);
      gate.open();
      expect((await slow).json.worker).to.equal(1);
    });

    it('ends with the session', async () => {
      await startWeb(600);
      const client = new Client();
      await get(1, '/login?use', client);
      await expectEndAfter(() => get(0, '/logout', client), 0);
    });
  });
});

describe('a route below a path that the kind was not told of', () => {
  /** What the process is warned of while a kind is asked for the bodies of some requests. */
  async function warningsOf(kind: SessionKind, requests: [method: string, path: string][]): Promise<string[]> {
    const warnings: string[] = [];
    const onWarning = ({ name, message }: Error): void => void warnings.push(`${name}: ${message}`);
    process.on('warning', onWarning);
    for (const [method, path] of requests) kind.bodyReader(method, path, false);
    await setImmediate();
    process.off('warning', onWarning);
    return warnings;
  }

  it('is warned of once, with the basePath that it lacks', async () => {
    const below = await warningsOf(resources({ basePath: '/v1' }), [
      ['POST', '/api/env/Seed_Session/'],
      ['POST', '/other/close_session'],
    ]);
    expect(below).to.have.lengthOf(1);
    expect(below[0]).to.match(
      /^SessionRoutingWarning: .* POST \/v1\/api\/env\/Seed_Session\/, .* POST \/v1\/seed_session\. .*'\/v1\/api\/env'\.$/,
    );
    const agents = await warningsOf(agent({ sessions: newSessions() }), [['POST', '/api/v1/agent_sessions/close']]);
    expect(agents).to.have.lengthOf(1);
    expect(agents[0]).to.contain("give the kind basePath: '/api'.");
  });

  it('is not seen in a route that the kind knows, nor in another', async () => {
    const known = ['/seed_session', '/close_session/', '/ng-rollout/x/seed_session', '/ng-rollout/x/y/close_session'];
    const others = ['/', '/tool', '/my_seed_session', '/seed_session/tool', '/seed_sessions'];
    const requests = [...known, ...others].map((path): [string, string] => ['POST', path]);
    expect(await warningsOf(resources(), [...requests, ['GET', '/api/seed_session']])).to.deep.equal([]);
  });
});

describe('the session token of a resources server', () => {
  let workers: Workers;
  /** The sessions that tokens and cookies name: one on each worker. */
  const [byToken, byCookie] = ['on-1', 'on-0'];
  const field = 'X-NeMo-Gym-Session-Token';

  async function start(options: ResourcesOptions = {}, mount = '/'): Promise<void> {
    workers = await startWorkers((routing, index) => probe(routing, index, { mount }), { kind: resources(options) });
    const base = options.basePath ?? '';
    for (const [index, sessionId] of [byCookie, byToken].entries()) {
      await ask(index, `${base}/seed_session`, { body: typed(sessionId) });
    }
  }

  const minted = (sessionId: string): string => workers.all[0]?.routing.tokens?.mint(sessionId, ['tool']) ?? '';

  interface Asked {
    /** The token's session, or the field as it is. */
    token?: string | { raw: string };
    cookie?: string;
    body?: object;
    name?: string;
  }

  function ask(index: number, target: string, { token, cookie, body, name = field }: Asked = {}): Promise<RawReply> {
    const fields = [
      ...(token === undefined ? [] : [name, typeof token === 'string' ? minted(token) : token.raw]),
      ...(cookie === undefined ? [] : ['Cookie', cookieOf(cookie)]),
      ...(body === undefined ? [] : ['Content-Type', 'application/json']),
    ];
    const to = portOf((workers.all[index] as Worker).server);
    return send({ to, method: 'POST', target, fields, ...(body && { body: JSON.stringify(body) }) });
  }

  /** Expects a reply of a worker for a session that its request named, so that it gives no cookie. */
  function expectServed({ status, json, setCookies }: RawReply, worker: number, sessionId: string): void {
    expect({ status, worker: json?.worker, sessionId: json?.sessionId, setCookies }).to.deep.equal({
      status: 200,
      worker,
      sessionId,
      setCookies: [],
    });
  }

  describe('by default', () => {
    before(() => start());
    after(() => workers.close());

    const mcpPaths = [
      '/mcp',
      '/mcp/',
      '/mcp/x',
      '/MCP/',
      '/ng-rollout/a/mcp',
      '/NG-rollout/a/b/mcp/x',
      'http://host/mcp',
    ];
    for (const path of mcpPaths) {
      it(`counts on ${path}, whatever the cookie says`, async () => {
        for (const index of [0, 1]) {
          expectServed(await ask(index, `${path}?use`, { token: byToken, cookie: byCookie }), 1, byToken);
          expectServed(await ask(index, `${path}?use`, { token: byToken }), 1, byToken);
          expectServed(await ask(index, `${path}?use`, { cookie: byCookie }), 0, byCookie);
        }
      });
    }

    for (const path of [
      '/tool',
      '/',
      '/mcpx',
      '/mc',
      '/x/mcp',
      '/ng-rollout/a/b/c/mcp',
      '/%6dcp',
      '/?/mcp',
      '/#/mcp',
    ]) {
      it(`counts on ${path} only without a cookie`, async () => {
        const target = path.includes('?') ? `${path}&use` : path.replace(/(#.*)?$/, '?use$1');
        for (const index of [0, 1]) {
          expectServed(await ask(index, target, { token: byToken, cookie: byCookie }), 0, byCookie);
          expectServed(await ask(index, target, { token: byToken }), 1, byToken);
        }
      });
    }

    const bad: Record<string, () => string | Promise<string>> = {
      'that is empty': () => '',
      'that is none': () => byToken,
      'that is cut': () => minted(byToken).slice(0, -1),
      'that is sent twice': () => `${minted(byToken)}, ${minted(byToken)}`,
      'of another secret': () => new SessionTokens(['another secret']).mint(byToken),
      'that is a session cookie': () => cookieOf(byToken).slice('resources.sid='.length),
      'that is a session cookie, decoded': () => `s:${sign(byToken, secret)}`,
      'that is the cookie of a session whose ID was chosen to look like a token': async () => {
        const chosen = Buffer.from(JSON.stringify({ sid: byToken, tools: null })).toString('base64url');
        const { setCookies } = await ask(1, '/seed_session', { body: typed(chosen) });
        expect(sessionIdIn(setCookies)).to.equal(chosen);
        return decodeURIComponent(setCookies[0]?.split(/[=;]/)[1] ?? '').slice('s:'.length);
      },
    };
    for (const [which, make] of Object.entries(bad)) {
      it(`names no session if it is one ${which}, whatever the cookie says`, async () => {
        const raw = await make();
        for (const cookie of [{}, { cookie: byCookie }]) {
          const { status, json } = await ask(1, '/mcp?use', { token: { raw }, ...cookie });
          expect([status, json.worker]).to.deep.equal([200, 1]);
          expect(json.sessionId).not.to.be.oneOf([byToken, byCookie]);
        }
        expectServed(await ask(1, '/tool?use', { token: { raw }, cookie: byCookie }), 0, byCookie);
        expectServed(await ask(0, '/mcp?use', { token: byToken, cookie: byCookie }), 1, byToken);
      });
    }

    it('counts beside a cookie that is not validly signed', async () => {
      const fields = [field, minted(byToken), 'Cookie', cookieOf(byCookie, 'resources.sid', 'another secret')];
      const to = portOf((workers.all[0] as Worker).server);
      expectServed(await send({ to, target: '/tool?use', fields }), 1, byToken);
    });

    it('is no cookie', async () => {
      const to = portOf((workers.all[0] as Worker).server);
      for (const value of [minted(byToken), `s:${minted(byToken)}`]) {
        const fields = ['Cookie', `resources.sid=${encodeURIComponent(value)}`];
        const { json } = await send({ to, target: '/tool?use', fields });
        expect(json.worker).to.equal(0);
        expect(json.sessionId).not.to.be.oneOf([byToken, minted(byToken), minted(byToken).split('.')[0]]);
      }
    });

    it('has to agree with the body of a seed or close, where no cookie counts in its place', async () => {
      for (const path of ['/seed_session?use', '/close_session?use']) {
        const refused = await ask(0, path, { token: byToken, body: typed(byCookie) });
        expect([refused.status, refused.json.code]).to.deep.equal([409, 'SESSION_MISMATCH']);
        expect(refused.json.detail).to.include('token');
        const alike = await ask(0, path, { token: byCookie, body: typed(byCookie) });
        expect([alike.status, alike.json.worker]).to.deep.equal([200, 0]);
        const beside = await ask(0, path, { token: byToken, cookie: byCookie, body: typed(byCookie) });
        expect([beside.status, beside.json.worker]).to.deep.equal([200, 0]);
      }
    });

    it('is refused if it is signed and its ID is none', async () => {
      for (const sessionId of ['\ud800', 'x'.repeat(4097)]) {
        const { status, json } = await ask(0, '/mcp', { token: sessionId });
        expect([status, json.code]).to.deep.equal([400, 'SESSION_ID_INVALID']);
      }
      expectServed(await ask(0, '/mcp?use', { token: 'x'.repeat(4096) }), 0, 'x'.repeat(4096));
    });

    it('keeps the claim of a session that nobody seeded, as a cookie does', async () => {
      expectServed(await ask(1, '/mcp?use', { token: 'never seeded' }), 1, 'never seeded');
      expectServed(await ask(0, '/tool?use', { token: 'never seeded' }), 1, 'never seeded');
      expectServed(await ask(0, '/tool?use', { cookie: 'never seeded' }), 1, 'never seeded');
    });

    it('is a 410 where the worker of its session is gone', async () => {
      await workers.leave(workers.all[1] as Worker);
      for (const path of ['/mcp', '/tool']) {
        const { status, json } = await ask(0, path, { token: byToken });
        expect([status, json.code]).to.deep.equal([410, 'SESSION_GONE']);
      }
      expectServed(await ask(0, '/mcp?use', { token: byCookie }), 0, byCookie);
    });
  });

  it('has the field and the path that it is given, below the base path', async () => {
    await start({ sessionTokenHeader: 'X-My-Token', mcpPath: '/rpc/', basePath: '/api' }, '/api');
    const both = { token: byToken, cookie: byCookie, name: 'x-my-TOKEN' };
    for (const path of ['/api/rpc', '/API/RPC/x', '/api/ng-rollout/a/rpc']) {
      expectServed(await ask(0, `${path}?use`, both), 1, byToken);
      expectServed(await ask(1, `${path}?use`, { ...both, name: field }), 0, byCookie);
    }
    for (const path of ['/api/mcp', '/api/rpcx']) expectServed(await ask(1, `${path}?use`, both), 0, byCookie);
    await workers.close();
  });
});
