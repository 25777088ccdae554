import { expect } from 'chai';
import type { Express } from 'express';
import { gzipSync } from 'node:zlib';
import { closeOf, seedOf, startAgents, type AgentOptions, type Agents } from './fixtures/agent-workers.ts';
import { Client, portOf, send } from './fixtures/routed.ts';

describe('the routes of agent sessions', () => {
  let agents: Agents;
  afterEach(() => agents.close());

  async function start(options: AgentOptions = {}): Promise<void> {
    agents = await startAgents({ count: 1, ...options });
  }

  describe('whose reply the app cannot write', () => {
    const replies: Record<string, (app: Express) => void> = {
      'for its replacer': (app) =>
        app.set('json replacer', (key: string, value: unknown) => {
          if (key === 'agent_session_id') throw new Error('it cannot be written');
          return value;
        }),
      'for its own json()': (app) =>
        app.use((_request, response, next) => {
          const { json } = response;
          response.json = (body: object) => {
            if ('agent_session_id' in body) throw new Error('it cannot be written');
            return json.call(response, body);
          };
          next();
        }),
    };
    for (const [why, ahead] of Object.entries(replies)) {
      it(`${why} are answered by its error handlers`, async () => {
        await start({ ahead });
        expect((await agents.seedSession('a')).status).to.equal(500);
        expect((await agents.closeSession(closeOf('a'))).status).to.equal(500);
      });
    }
  });

  describe('take no body larger than the limit', () => {
    const body = gzipSync(
      Buffer.concat([Buffer.from('{"a":"'), Buffer.alloc(66 * 1024 * 1024, '0'), Buffer.from('"}')]),
    );
    const fields = ['Content-Type', 'application/json', 'Content-Encoding', 'gzip'];
    for (const target of [
      '/v1/agent_sessions',
      '/ng-rollout/a\\b/c/v1/agent_sessions',
      '/ng-rollout/\\/v1/agent_sessions/close',
    ]) {
      it(`on ${target}`, async () => {
        await start();
        const to = portOf(agents.all[0]!.server);
        expect((await send({ to, method: 'POST', target, fields, body })).status).to.equal(413);
      });
    }
  });

  for (const target of ['/ng-rollout/a\\b/c/v1/agent_sessions', '/ng-rollout/\\/v1/agent_sessions']) {
    it(`route ${target} by its body, as Express takes it for a seed`, async () => {
      await start({ count: 2 });
      await agents.seedSession('a', { on: 1 });
      const to = portOf(agents.all[0]!.server);
      const fields = ['Content-Type', 'application/json'];
      const { status } = await send({ to, method: 'POST', target, fields, body: JSON.stringify(seedOf('a')) });
      expect(status).to.equal(200);
      expect(agents.calls.filter(({ hook }) => hook === 'seed')).to.have.length(1);
    });
  }

  describe('refuse with 422 what is wrong many times over, and say so in short', () => {
    const stdio = (more: object) => ({
      kind: 'mcp',
      name: 'n',
      required: true,
      connection: { transport: 'stdio', command: 'c', ...more },
    });
    const many = Object.fromEntries(Array.from({ length: 100_000 }, (_, n) => [`k${n}`, 0]));
    const http = { kind: 'direct_http', name: 'n', required: true, base_url: 'http://127.0.0.1:1' };
    for (const [what, accesses] of Object.entries({
      'accesses to tools': Array(150_000).fill({ kind: 'mcp' }),
      arguments: [stdio({ args: Array(300_000).fill(0) })],
      'variables of an environment': [stdio({ env: many })],
      cookies: [{ ...http, cookies: many }],
      'header fields': [{ ...http, headers: many }],
      'things of each of many accesses': Array(1_000).fill(stdio({ args: Array(100).fill(0) })),
    })) {
      it(what, async () => {
        await start();
        const { status, json, text } = await agents.seedSession(seedOf('a', { tool_accesses: accesses }));
        expect(status).to.equal(422);
        expect(json.detail.length).to.be.within(1, 100);
        expect(text.length).to.be.below(5_000_000);
      });
    }
  });

  it('pass a hook on that throws what a body parser would', async () => {
    await start();
    agents.hooks.seed = () => {
      throw Object.assign(new Error('of another server'), { type: 'entity.parse.failed', status: 400 });
    };
    const { status, json } = await agents.seedSession('a');
    expect([status, json?.detail]).to.deep.equal([400, undefined]);
  });

  it('refuse to be mounted without being called', async () => {
    await start();
    const { router } = agents.sessions[0]!;
    expect(() => Reflect.apply(router, undefined, [{}, {}, () => undefined])).to.throw(TypeError, 'sessions.router()');
  });

  describe('with a cookie for https alone', () => {
    const session = () => ({ cookie: { secure: true } });

    it('open no session by plain http, which could not be named, and close it all the same', async () => {
      await start({ session });
      const { status, setCookies } = await agents.seedSession('a');
      expect([status, setCookies, agents.calls.length]).to.deep.equal([500, [], 0]);
      expect((await agents.closeSession(closeOf('a'))).status).to.equal(200);
    });

    it('open one behind a proxy that the app trusts', async () => {
      await start({ session, ahead: (app) => app.set('trust proxy', true) });
      const { url } = agents.all[0]!;
      const headers = { 'X-Forwarded-Proto': 'https' };
      const reply = await new Client().post(`${url}/v1/agent_sessions`, seedOf('a'), { headers });
      expect([reply.status, reply.setCookies.length]).to.deep.equal([200, 1]);
    });
  });

  it('give back observations that are an object of a class, as JSON has it', async () => {
    await start();
    class Steps {
      readonly steps = 1;
      readonly when = new Date(0);
    }
    agents.hooks.close = () => ({ agent_observations: new Steps() });
    await agents.seedSession('a');
    for (let n = 0; n < 2; n++) {
      const { status, json } = await agents.closeSession(closeOf('a'));
      expect([status, json.agent_observations]).to.deep.equal([200, { steps: 1, when: '1970-01-01T00:00:00.000Z' }]);
    }
    expect(agents.calls.filter(({ hook }) => hook === 'close')).to.have.length(1);
  });
});
