import { expect } from 'chai';
import express, { type Request } from 'express';
import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import { AgentSessions } from '../lib/agent-sessions.ts';
import { refusalHandler } from '../lib/errors.ts';
import type { RoutedSessionOptions } from '../lib/session-cookie.ts';
import { agent } from '../lib/session-kinds.ts';
import {
  Client,
  cookieOf,
  Gate,
  portOf,
  privateSocketOf,
  send,
  sessionIdIn,
  startWorkers,
  until,
  type Reply,
  type Workers,
} from './fixtures/routed.ts';

declare module 'express-session' {
  interface SessionData {
    note?: string;
  }
}

const episode_id = { rollout_id: 'rollout' };
const seedOf = (agent_session_id: unknown, more: object = {}): object => ({
  agent_session_id,
  episode_id,
  task_id: { taskset: 'specs', task_id: '1' },
  ...more,
});
const closeOf = (agent_session_id: unknown): object => ({ agent_session_id, episode_id });

const agentCookie = (expressId: string) => ({ headers: { cookie: cookieOf(expressId, 'agent.sid') } });
const sessionIdOf = ({ setCookies }: { readonly setCookies: readonly string[] }) =>
  sessionIdIn(setCookies, 'agent.sid');

interface AgentOptions {
  readonly count?: number;
  readonly shared?: boolean;
  readonly mount?: string;
  readonly basePath?: string;
  readonly session?: RoutedSessionOptions;
  readonly seed?: (id: string) => void | Promise<void>;
  readonly close?: () => void | Promise<void>;
  /** Runs behind the routing, ahead of the agent session routes. */
  readonly ahead?: (worker: number) => void | Promise<void>;
}

describe('agent()', () => {
  let workers: Workers;
  /** The records of each worker. */
  let records: AgentSessions<{ worker: number }>[];
  afterEach(() => workers.close());

  async function start({
    count = 2,
    shared = true,
    mount = '/',
    basePath = '',
    session = {},
    seed = () => undefined,
    close = () => undefined,
    ahead,
  }: AgentOptions = {}): Promise<void> {
    records = Array.from(
      { length: count },
      (_, worker) =>
        new AgentSessions({
          async seed({ agent_session_id }) {
            await seed(agent_session_id);
            return { worker };
          },
          async close() {
            await close();
            return { agent_observations: { worker } };
          },
        }),
    );
    const recordsOf = (worker: number): AgentSessions<{ worker: number }> => {
      const found = records[worker];
      if (found === undefined) throw new Error(`there is no worker ${worker}`);
      return found;
    };
    workers = await startWorkers(
      (routing, worker) => {
        const sessions = recordsOf(worker);
        const routes = express.Router();
        routes.use(routing.session({ resave: false, saveUninitialized: false, ...session }));
        if (ahead !== undefined) {
          routes.use(express.json(), async (_request, _response, next) => {
            await ahead(worker);
            next();
          });
        }
        routes.use(sessions.router());
        routes.post('/v1/responses', (request, response) => {
          response.json({ worker, opened: sessions.current(request)?.worker ?? null });
        });
        routes.post(
          '/note',
          (request: Request<object, unknown, unknown, { note?: string; anew?: string }>, response) => {
            const { note, anew } = request.query;
            const answer = (): void => {
              if (note !== undefined) request.session.note = note;
              response.json({ worker, note: request.session.note ?? null, id: request.sessionID });
            };
            if (anew === undefined) answer();
            else request.session.regenerate(answer);
          },
        );
        routes.use(refusalHandler);
        const app = express();
        app.set('env', 'test'); // Express prints errors otherwise
        app.use(routing);
        app.use(mount, routes);
        return app;
      },
      { count, shared, kind: (worker) => agent({ sessions: recordsOf(worker), ...(basePath && { basePath }) }) },
    );
  }

  const post = (worker: number, path: string, body: unknown = {}, init = {}, client = new Client()): Promise<Reply> =>
    client.post((workers.all[worker]?.url ?? '') + path, body, init);
  const seed = (worker: number, body: unknown, init = {}, client = new Client()): Promise<Reply> =>
    post(worker, '/v1/agent_sessions', body, init, client);
  const close = (worker: number, body: unknown, init = {}, client = new Client()): Promise<Reply> =>
    post(worker, '/v1/agent_sessions/close', body, init, client);

  describe('routes an agent session', () => {
    it('by the cookie, and by the body of a seed or close, to the worker that opened it', async () => {
      await start();
      const client = new Client();
      const opened = await seed(1, seedOf('a session'), {}, client);
      expect([opened.status, opened.json]).to.deep.equal([200, { agent_session_id: 'a session' }]);
      expect(sessionIdOf(opened)).to.equal('agent:a session');
      expect(workers.claimantOf('a session')).to.equal(1);
      for (const worker of [0, 1]) {
        expect((await post(worker, '/v1/responses', {}, {}, client)).json).to.deep.equal({ worker: 1, opened: 1 });
        expect((await seed(worker, seedOf('a session'))).status).to.equal(200);
        expect((await seed(worker, seedOf('a session'), {}, client)).status).to.equal(200);
      }
      expect((await close(0, closeOf('a session'))).json.agent_observations).to.deep.equal({ worker: 1 });
      expect(records.map(({ size }) => size)).to.deep.equal([0, 1]);
      expect(workers.claims()).to.have.length(1);
    });

    for (const prefix of ['/ng-rollout/r1', '/ng-rollout/r1-a2/training-token-capture']) {
      it(`under ${prefix}, in any case and with a slash more`, async () => {
        await start();
        expect((await post(1, `${prefix}/V1/Agent_Sessions/`, seedOf('s'))).status).to.equal(200);
        const closed = await post(0, `${prefix}/v1/agent_sessions/CLOSE`, closeOf('s'));
        expect([closed.status, closed.json.agent_observations]).to.deep.equal([200, { worker: 1 }]);
      });
    }

    it('whose close came first, so that the seed is refused by any worker', async () => {
      await start();
      const closed = await close(1, closeOf('late'));
      expect([closed.status, sessionIdOf(closed)]).to.deep.equal([200, 'agent:late']);
      expect(workers.claimantOf('late')).to.equal(1);
      const { status, json } = await seed(0, seedOf('late'));
      expect([status, json.code]).to.deep.equal([409, 'AGENT_SESSION_CLOSED']);
    });

    it('below the path on which the routes are mounted', async () => {
      await start({ mount: '/agents', basePath: '/agents' });
      expect((await post(1, '/agents/v1/agent_sessions', seedOf('s'))).status).to.equal(200);
      const { json } = await post(0, '/agents/v1/agent_sessions/close', closeOf('s'));
      expect(json.agent_observations).to.deep.equal({ worker: 1 });
    });

    it('and says so where it has not been told of that path, before anything is set up', async () => {
      let seeds = 0;
      await start({ mount: '/agents', seed: () => void seeds++ });
      const { status, text } = await post(1, '/agents/v1/agent_sessions', seedOf('s'));
      expect([status, seeds]).to.deep.equal([500, 0]);
      expect(text).to.include('basePath');
      expect(records.map(({ size }) => size)).to.deep.equal([0, 0]);
    });

    it('and inflates no more of a body there than is allowed', async () => {
      await start({ mount: '/agents' });
      const body = gzipSync(
        Buffer.concat([Buffer.from('{"a":"'), Buffer.alloc(66 * 1024 * 1024, '0'), Buffer.from('"}')]),
      );
      const fields = ['Content-Type', 'application/json', 'Content-Encoding', 'gzip'];
      const to = portOf(workers.all[0]!.server);
      const reply = await send({ to, method: 'POST', target: '/agents/v1/agent_sessions', fields, body });
      expect(reply.status).to.equal(413);
    });

    for (const [what, id] of Object.entries({
      'with characters of every kind': 'ä/€?😀%00 "\\',
      'of 4,096 bytes': 'x'.repeat(4_096),
      'that looks like a marked one': 'agent:agent:',
      'that is a name of Object': '__proto__',
    })) {
      it(`whose ID is one ${what}`, async () => {
        await start();
        const client = new Client();
        expect((await seed(1, seedOf(id), {}, client)).json).to.deep.equal({ agent_session_id: id });
        expect((await post(0, '/v1/responses', {}, {}, client)).json).to.deep.equal({ worker: 1, opened: 1 });
        expect((await close(0, closeOf(id), {}, client)).json).to.include({ agent_session_id: id });
      });
    }

    it('and refuses an ID that is none with 400, one that is missing or empty with 422, and claims nothing', async () => {
      await start();
      for (const [id, status] of [
        ['\ud800', 400],
        ['x'.repeat(4_097), 400],
        ['', 422],
        [7, 422],
        [null, 422],
        [undefined, 422],
      ]) {
        for (const of of [seed(0, seedOf(id)), close(1, closeOf(id))]) {
          const reply = await of;
          expect([reply.status, reply.setCookies]).to.deep.equal([status, []]);
        }
      }
      expect(workers.claims()).to.deep.equal([]);
    });
  });

  for (const [title, count] of [
    ['one worker', 1],
    ['two workers', 2],
  ] as const) {
    describe(`with ${title}`, () => {
      const other = count - 1;
      const options = { count, shared: count > 1 };

      it('refuses a cookie and a body that name different sessions, and opens nothing', async () => {
        await start(options);
        await seed(0, seedOf('one'));
        for (const reply of [
          await seed(other, seedOf('two'), agentCookie('agent:one')),
          await close(other, closeOf('two'), agentCookie('agent:one')),
        ]) {
          expect(reply.headers.get('content-type')).to.equal('application/problem+json');
          expect([reply.status, reply.json.code, reply.json.detail]).to.deep.equal([
            409,
            'SESSION_MISMATCH',
            'agent_session_id does not match the session cookie',
          ]);
        }
        expect(records.map(({ size }) => size)).to.deep.equal(count === 1 ? [1] : [1, 0]);
      });

      it('refuses the marker with nothing behind it', async () => {
        await start(options);
        for (const reply of [
          await seed(0, seedOf('s'), agentCookie('agent:')),
          await close(other, closeOf('s'), agentCookie('agent:')),
          await post(other, '/v1/responses', {}, agentCookie('agent:')),
        ]) {
          expect([reply.status, reply.json.code, reply.json.detail]).to.deep.equal([
            409,
            'AGENT_SESSION_MARKER_INVALID',
            'Invalid agent session marker',
          ]);
        }
        expect(records[0]?.size).to.equal(0);
      });

      it('takes a cookie that is badly signed for none', async () => {
        await start(options);
        const forged = { headers: { cookie: cookieOf('agent:s', 'agent.sid', 'another secret') } };
        expect((await seed(other, seedOf('s'), forged)).status).to.equal(200);
        expect((await post(0, '/v1/responses', {}, forged)).json.opened).to.equal(null);
      });

      it('refuses the seed and the close of a session that it knows only by their cookie', async () => {
        await start(options);
        const seeded = await seed(other, seedOf('old'), agentCookie('agent:old'));
        expect([seeded.status, seeded.json.detail]).to.deep.equal([409, 'Agent session cookie has expired']);
        const closed = await close(other, closeOf('old'), agentCookie('agent:old'));
        expect([closed.status, closed.json.detail]).to.deep.equal([409, 'Agent close receipt has expired']);
        const activated = await post(0, '/v1/responses', {}, agentCookie('agent:old'));
        expect([activated.status, activated.json.detail]).to.deep.equal([409, 'Unknown or closing agent_session_id']);
        await until(() => workers.claims().length === 0, 'the session is not claimed any longer');
        expect((await seed(other, seedOf('old'))).status).to.equal(200);
      });

      it('makes an ordinary session of one that no agent session is, and gives it a cookie once it is used', async () => {
        await start(options);
        const client = new Client();
        const unused = await post(0, '/v1/responses', {}, {}, client);
        expect([unused.json.opened, unused.setCookies]).to.deep.equal([null, []]);
        const used = await post(0, '/note?note=tea', {}, {}, client);
        const id = sessionIdOf(used);
        expect([used.json.note, used.json.id]).to.deep.equal(['tea', id]);
        expect(id).not.to.match(/^agent:/);
        expect((await post(0, '/note', {}, {}, client)).json).to.deep.equal({ worker: 0, note: 'tea', id });
        expect((await post(0, '/v1/responses', {}, {}, client)).json.opened).to.equal(null);
        expect(workers.claims()).to.deep.equal([]);
      });

      it('opens an agent session for a client with an ordinary one, and the cookie names it from then on', async () => {
        await start(options);
        const client = new Client();
        await post(0, '/note?note=tea', {}, {}, client);
        const refused = await seed(other, { ...seedOf('s'), surplus: 1 }, {}, client);
        expect([refused.status, refused.setCookies]).to.deep.equal([422, []]);
        expect((await post(0, '/note', {}, {}, client)).json.note).to.equal('tea');
        const opened = await seed(other, seedOf('s'), {}, client);
        expect([opened.status, sessionIdOf(opened)]).to.deep.equal([200, 'agent:s']);
        const { json } = await post(0, '/v1/responses', {}, {}, client);
        expect(json).to.deep.equal({ worker: other, opened: other });
      });
    });
  }

  it('keeps what an app puts into the express-session of an agent session, also when it is seeded again', async () => {
    await start();
    const client = new Client();
    await seed(1, seedOf('s'), {}, client);
    expect((await post(0, '/note?note=tea', {}, {}, client)).json).to.deep.equal({
      worker: 1,
      note: 'tea',
      id: 'agent:s',
    });
    const again = await seed(0, seedOf('s'));
    expect(sessionIdOf(again)).to.equal('agent:s');
    expect((await post(0, '/note', {}, agentCookie('agent:s'))).json.note).to.equal('tea');
  });

  it('gives an app that regenerates the express-session an ordinary one', async () => {
    await start();
    const client = new Client();
    await seed(1, seedOf('s'), {}, client);
    const anew = await post(0, '/note?anew&note=tea', {}, {}, client);
    expect(sessionIdOf(anew)).to.equal(anew.json.id);
    expect(anew.json.id).not.to.match(/^agent:/);
    expect(workers.claims()).to.have.length(1);
    expect((await post(0, '/v1/responses', {}, {}, client)).json.opened).to.equal(null);
  });

  it('refuses to open a session where no express-session can give it a cookie', async () => {
    await start({ session: { cookie: { path: '/elsewhere' } } });
    const { status, text } = await seed(0, seedOf('s'));
    expect(status).to.equal(500);
    expect(text).to.include('routing.session()');
    expect(records[0]?.size).to.equal(0);
    // What is to be cleaned up is cleaned up all the same.
    expect((await close(0, closeOf('s'))).status).to.equal(200);
  });

  it('answers a forwarded request whose claim was lost on the way with 409, and sets nothing up', async () => {
    const gate = new Gate();
    await start({ seed: () => gate.opened });
    const seeding = seed(0, seedOf('s'));
    await until(() => workers.claimantOf('s') === 0, 'the session is claimed');
    const [, second] = workers.all;
    const body = JSON.stringify(seedOf('s'));
    const fields = ['Content-Type', 'application/json'];
    const target = '/v1/agent_sessions';
    const reply = await send({ to: privateSocketOf(workers, second!), method: 'POST', target, fields, body });
    expect([reply.status, reply.json.code]).to.deep.equal([409, 'SESSION_CLAIMED_ELSEWHERE']);
    gate.open();
    expect((await seeding).status).to.equal(200);
    expect(records.map(({ size }) => size)).to.deep.equal([1, 0]);
  });

  describe('whose client left before the app ran', () => {
    const gates = { arrived: new Gate(), goOn: new Gate() };
    let seeds: number;

    /** Starts workers of which the first holds seeds up, and sends it one whose client leaves. */
    async function leave(): Promise<void> {
      Object.assign(gates, { arrived: new Gate(), goOn: new Gate() });
      seeds = 0;
      await start({
        seed: () => void seeds++,
        async ahead(worker) {
          if (worker !== 0) return;
          gates.arrived.open();
          await gates.goOn.opened;
        },
      });
      const socket = connect(portOf(workers.all[0]!.server), '127.0.0.1');
      socket.on('error', () => undefined);
      const body = JSON.stringify(seedOf('left'));
      const head = ['POST /v1/agent_sessions HTTP/1.1', 'Host: x', 'Content-Type: application/json'];
      socket.write([...head, `Content-Length: ${Buffer.byteLength(body)}`, '', body].join('\r\n'));
      await gates.arrived.opened;
      expect(workers.claimantOf('left')).to.equal(0);
      socket.resetAndDestroy();
      await until(() => workers.claims().length === 0, 'the claim has gone with the client');
    }

    it('is claimed again before it is opened', async () => {
      await leave();
      gates.goOn.open();
      await until(() => seeds === 1, 'the session is set up');
      expect(workers.claimantOf('left')).to.equal(0);
      expect((await close(1, closeOf('left'))).json.agent_observations).to.deep.equal({ worker: 0 });
    });

    it('is not opened if another worker has closed it meanwhile', async () => {
      await leave();
      expect((await close(1, closeOf('left'))).status).to.equal(200);
      gates.goOn.open();
      // Nobody is there to be told of the refusal; by now it has been given.
      expect((await seed(0, seedOf('left'))).json.code).to.equal('AGENT_SESSION_CLOSED');
      expect([seeds, ...records.map(({ size }) => size)]).to.deep.equal([0, 0, 1]);
    });
  });

  it('is for one routing at a time', async () => {
    await start();
    expect(() => records[0]?.useAgentSessionClaims({} as never)).to.throw('belong to another session routing already');
    const lonely = new AgentSessions({ seed: () => ({}), close: () => undefined });
    expect(() => lonely.current({} as never)).to.throw('agent({ sessions })');
  });
});
