import { expect } from 'chai';
import express from 'express';
import { gzipSync } from 'node:zlib';
import { AgentSessionSetupError } from '../lib/agent-hooks.ts';
import { AgentSessions } from '../lib/agent-sessions.ts';
import type { RefusalCode } from '../lib/errors.ts';
import type { AgentSessionSeed } from '../lib/protocol.ts';
import { agent } from '../lib/session-kinds.ts';
import { sessionRouting, type SessionRouting } from '../lib/session-routing.ts';
import {
  agentCookie,
  closeOf,
  expectRefusal,
  namedIn,
  ordinaryCookie,
  receiptOf,
  seedOf,
  startAgents,
  type AgentOptions,
  type Agents,
  type AgentState,
  type Sent,
} from './fixtures/agent-workers.ts';
import { appWith, Client, portOf, secret, send, startWorkers, type Reply, type Worker } from './fixtures/routed.ts';

const windowSeconds = 300;

let agents: Agents;
let count = 0;

/** An ID that no session had before. */
const newId = (): string => `s${++count}`;

afterEach(() => agents?.close());

/** What brings a session into each of its states, with requests to the worker that is to hold it. */
const reach: Record<string, (id: string) => Promise<void>> = {
  unknown: async () => undefined,
  async open(id) {
    expect((await agents.seedSession(id, held())).status).to.equal(200);
  },
  async 'failed to open'(id) {
    const { seed } = agents.hooks;
    agents.hooks.seed = (request) => {
      throw new AgentSessionSetupError({ id, request }, new Error('half done'));
    };
    expect((await agents.seedSession(id, held())).status).to.equal(500);
    agents.hooks.seed = seed;
  },
  async 'failed to close'(id) {
    await reach['open']?.(id);
    const { close } = agents.hooks;
    agents.hooks.close = (state) => (state.id === id ? Promise.reject(new Error('not now')) : close(state));
    expect((await agents.closeSession(id, held())).status).to.equal(500);
    agents.hooks.close = close;
  },
  async closed(id) {
    await reach['open']?.(id);
    expect((await agents.closeSession(id, held())).status).to.equal(200);
  },
  async 'closed before any seed'(id) {
    expect((await agents.closeSession(id, held())).status).to.equal(200);
  },
  async 'closed a window ago'(id) {
    await reach['closed']?.(id);
    agents.time.now += windowSeconds;
  },
};

const held = (): Sent => ({ on: agents.holder });

/** The cookie that a client of a session may send. */
const cookies: Record<string, (id: string) => string | undefined> = {
  'no cookie': () => undefined,
  'an ordinary cookie': () => ordinaryCookie,
  'its cookie': (id) => agentCookie(id),
  "another session's cookie": () => agentCookie('another'),
  'an empty marker': () => agentCookie(''),
};
const unnamed = ['no cookie', 'an ordinary cookie'];
const unlessAnother = [...unnamed, 'its cookie'];

const otherTask = { task_id: { taskset: 'set', task_id: 't2' } };
const otherEpisode = { episode_id: { rollout_id: 'r1', attempt: 1 } };
const bodies: Record<string, object> = {
  'the same body': {},
  'another task': otherTask,
  'another episode': otherEpisode,
  'an unknown key': { surplus: 1 },
};
const anyValid = ['the same body', 'another task', 'another episode'];

/** What a request gets: a refusal, issues with its body, or success, and which hooks it runs. */
type Answer = readonly [RefusalCode, string] | 'issues' | { readonly ran: string[]; readonly named: boolean };

/** In each of these states, with each of these cookies, each of these bodies gets this answer. */
interface Row {
  readonly states: readonly string[];
  readonly cookies: readonly string[];
  readonly bodies: readonly string[];
  readonly answer: Answer;
}

const anyState = Object.keys(reach);
const invalid: Answer = ['AGENT_SESSION_MARKER_INVALID', 'Invalid agent session marker'];
const notOpen = ['AGENT_SESSION_NOT_OPEN', 'Unknown or closing agent_session_id'] as const;
const mismatch: Answer = ['SESSION_MISMATCH', 'agent_session_id does not match the session cookie'];

/** The checks that come first, whatever is asked and whatever the session's state. */
const first: Row[] = [
  { states: anyState, cookies: ['an empty marker'], bodies: [...anyValid, 'an unknown key'], answer: invalid },
  {
    states: anyState,
    cookies: ["another session's cookie"],
    bodies: [...anyValid, 'an unknown key'],
    answer: mismatch,
  },
  { states: anyState, cookies: unlessAnother, bodies: ['an unknown key'], answer: 'issues' },
];

const seedRows: Row[] = [
  ...first,
  {
    states: ['closed', 'closed before any seed'],
    cookies: unlessAnother,
    bodies: anyValid,
    answer: ['AGENT_SESSION_CLOSED', 'Agent session is already closed'],
  },
  {
    states: ['failed to open', 'failed to close'],
    cookies: unlessAnother,
    bodies: anyValid,
    answer: ['AGENT_SESSION_CLOSING', 'Agent session is closing'],
  },
  {
    states: ['unknown', 'closed a window ago'],
    cookies: ['its cookie'],
    bodies: anyValid,
    answer: ['AGENT_SESSION_EXPIRED', 'Agent session cookie has expired'],
  },
  {
    states: ['unknown', 'closed a window ago'],
    cookies: unnamed,
    bodies: anyValid,
    answer: { ran: ['seed', 'admit'], named: true },
  },
  {
    states: ['open'],
    cookies: unlessAnother,
    bodies: ['another task', 'another episode'],
    answer: ['AGENT_SESSION_CONFLICT', 'agent_session_id is already bound to another seed request'],
  },
  { states: ['open'], cookies: unnamed, bodies: ['the same body'], answer: { ran: [], named: true } },
];

const otherEpisodeRefused: Answer = ['AGENT_SESSION_CONFLICT', 'episode_id does not match the seeded agent session'];
const closeRows: Row[] = [
  ...first.map((row) => ({ ...row, bodies: row.bodies.filter((body) => body !== 'another task') })),
  {
    states: ['open', 'failed to open', 'failed to close', 'closed', 'closed before any seed'],
    cookies: unlessAnother,
    bodies: ['another episode'],
    answer: otherEpisodeRefused,
  },
  {
    states: ['closed', 'closed before any seed'],
    cookies: unnamed,
    bodies: ['the same body'],
    answer: { ran: [], named: false },
  },
  {
    states: ['unknown', 'closed a window ago'],
    cookies: ['its cookie'],
    bodies: ['the same body', 'another episode'],
    answer: ['AGENT_SESSION_EXPIRED', 'Agent close receipt has expired'],
  },
  {
    states: ['unknown', 'closed a window ago'],
    cookies: unnamed,
    bodies: ['the same body', 'another episode'],
    answer: { ran: [], named: true },
  },
  {
    states: ['open', 'failed to open', 'failed to close'],
    cookies: unnamed,
    bodies: ['the same body'],
    answer: { ran: ['close'], named: true },
  },
];

const setups: Record<string, AgentOptions> = {
  'one worker': { count: 1 },
  'two workers': { count: 2 },
};

/** Express-sessions that set more cookies than the default one, and apps that look at more sessions. */
const readers: Record<string, AgentOptions> = {
  'a plain app': {},
  'the middleware alone': { middlewareOnly: true },
  'saveUninitialized and rolling': { session: () => ({ saveUninitialized: true, rolling: true }) },
  'an app that reads every session ID': {
    ahead: (app) => void app.use((request, _response, next) => next(void request.sessionID)),
  },
};

function start(options: AgentOptions): Promise<Agents> {
  return startAgents({ now: 1000, closeRetryWindowSeconds: windowSeconds, ...options });
}

/** A reply without the cookie that `rolling` sets anew for a client that has it. */
function unrolled(reply: Reply, id: string, rolls: boolean): Reply {
  return rolls && namedIn(reply) === `agent:${id}` ? { ...reply, setCookies: [] } : reply;
}

/** Sends a request of a table's row, and checks its reply and which hooks it has run. */
async function expectAnswer(answer: Answer, id: string, send: () => Promise<Reply>, rolls: boolean): Promise<Reply> {
  const before = agents.calls.length;
  const reply = unrolled(await send(), id, rolls);
  const ran = agents.calls.slice(before).filter((call) => call.id === id);
  if (answer === 'issues') {
    expect(reply.status, reply.text).to.equal(422);
    expect(reply.json.detail).to.be.an('array').with.length(1);
    expect(reply.setCookies).to.deep.equal([]);
    expect(ran).to.deep.equal([]);
  } else if ('named' in answer) {
    expect(reply.status, reply.text).to.equal(200);
    expect(ran.map(({ hook }) => hook)).to.deep.equal(answer.ran);
    expect(namedIn(reply)).to.equal(answer.named ? `agent:${id}` : undefined);
  } else {
    expectRefusal(reply, ...answer);
    expect(ran).to.deep.equal([]);
  }
  return reply;
}

/** What can be seen of a session, without changing it. */
async function seen(id: string, state: string): Promise<object> {
  const { status, json } = await agents.activate({ cookie: agentCookie(id) });
  // A receipt whose window has passed may go at any time.
  const isHeld = state !== 'closed a window ago' && agents.sessions.map((each) => each.holdsAgentSession(id));
  return { status, session: json.session, code: json.code, isHeld };
}

for (const [workers, setup] of Object.entries(setups)) {
  for (const [app, more] of Object.entries(readers)) {
    describe(`AgentSessions on ${workers}, with ${app}`, () => {
      for (const [what, rows] of [['seed', seedRows] as const, ['close', closeRows] as const]) {
        it(`answer a ${what} by the first check that applies`, async () => {
          agents = await start({ ...setup, ...more });
          for (const row of rows) {
            for (const state of row.states) {
              for (const cookie of row.cookies) {
                for (const body of row.bodies) {
                  const id = newId();
                  await reach[state]?.(id);
                  const before = await seen(id, state);
                  const sent = { cookie: cookies[cookie]?.(id) };
                  const rolls = app.endsWith('rolling') && cookie === 'its cookie';
                  const send = (): Promise<Reply> =>
                    what === 'seed'
                      ? agents.seedSession(seedOf(id, bodies[body]), sent)
                      : agents.closeSession(closeOf(id, bodies[body]), sent);
                  try {
                    const reply = await expectAnswer(row.answer, id, send, rolls);
                    if (reply.status !== 200) expect(await seen(id, state)).to.deep.equal(before);
                    else if (what === 'seed') expect(reply.json).to.deep.equal({ agent_session_id: id });
                    else
                      expect(reply.json).to.deep.equal(
                        /^closed b|unk|ago/.test(state) ? receiptOf(id) : receiptOf(id, result(id)),
                      );
                  } catch (error) {
                    (error as Error).message +=
                      `, for ${what} with ${cookie} and ${body} of a session that is ${state}`;
                    throw error;
                  }
                }
              }
            }
          }
        });
      }

      it('answer an activation by the state of the session that its cookie names', async () => {
        agents = await start({ ...setup, ...more });
        for (const state of anyState) {
          const id = newId();
          await reach[state]?.(id);
          const cookie = agentCookie(id);
          const ran = agents.ran().filter((call) => call.endsWith(` ${id}`));
          for (const prefix of ['', '/ng-rollout/r1']) {
            const reply = await agents.activate({ cookie, prefix });
            if (state === 'open') expect(reply.json).to.deep.equal({ worker: agents.holder, session: id });
            else expectRefusal(unrolled(reply, id, app.endsWith('rolling')), ...notOpen);
          }
          expect(agents.ran().filter((call) => call.endsWith(` ${id}`))).to.deep.equal(ran);
        }
        expectRefusal(await agents.activate({ cookie: agentCookie('') }), ...invalid);
      });
    });
  }

  describe(`AgentSessions on ${workers}`, () => {
    beforeEach(async () => {
      agents = await start(setup);
    });

    it('have no state for a request that names no agent session', async () => {
      for (const cookie of [undefined, ordinaryCookie, `${agentCookie('s')}x`]) {
        const reply = await agents.activate({ cookie });
        expect(reply.json).to.deep.equal({ worker: 0, session: null });
        expect(reply.setCookies).to.deep.equal([]);
      }
      expect(agents.claims()).to.deep.equal([]);
    });

    it('have the state for an upgrade, too', async () => {
      agents.all.forEach(({ server }, worker) => {
        server.on('upgrade', (request, socket) => {
          let text: string | undefined;
          try {
            text = agents.sessions[worker]?.current(request)?.id;
          } catch (error) {
            text = (error as Error).message;
          }
          socket.end(`HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n${worker}: ${text}`);
        });
      });
      const id = newId();
      await agents.seedSession(id, held());
      const upgrade = async (cookie: string): Promise<string> => {
        const to = portOf((agents.all[0] as Worker).server);
        return (await send({ to, fields: ['Connection', 'Upgrade', 'Upgrade', 'any', 'Cookie', cookie] })).text;
      };
      expect(await upgrade(agentCookie(id))).to.equal(`${agents.holder}: ${id}`);
      expect(await upgrade(agentCookie('unknown'))).to.equal('0: Unknown or closing agent_session_id');
      expect(await upgrade(ordinaryCookie)).to.equal('0: undefined');
      expect(await upgrade(agentCookie(''))).to.include('"AGENT_SESSION_MARKER_INVALID"');
    });

    it('say Set-Cookie once, with the marked ID, on a seed, its equal, and a fresh close', async () => {
      const id = newId();
      const replies = [
        await agents.seedSession(id, held()),
        await agents.seedSession(id),
        await agents.seedSession(id, { cookie: ordinaryCookie }),
        await agents.closeSession(id),
      ];
      for (const { setCookies } of replies) {
        expect(setCookies).to.have.length(1);
        expect(setCookies[0]).to.match(/^agent\.sid=s%3Aagent%3As\d+\.[^;]+; Path=\/; HttpOnly$/);
      }
      expect(new Set(replies.map(({ setCookies }) => setCookies[0])).size).to.equal(1);
    });

    it('keep the session in the cookie after its close, so that a late activation is refused', async () => {
      const id = newId();
      const client = new Client();
      const { url } = agents.all[0] as { url: string };
      await client.post(`${url}/v1/agent_sessions`, seedOf(id));
      expect((await client.post(`${url}/v1/responses`)).json).to.include({ session: id });
      expect((await client.post(`${url}/v1/agent_sessions/close`, closeOf(id))).status).to.equal(200);
      expectRefusal(await client.post(`${url}/v1/responses`), ...notOpen);
    });

    it('let a client with the cookie of its session seed and close it again', async () => {
      const id = newId();
      const cookie = agentCookie(id);
      await agents.seedSession(id, held());
      expect((await agents.seedSession(id, { cookie })).json).to.deep.equal({ agent_session_id: id });
      const closed = await agents.closeSession(id, { cookie });
      expect(closed.json).to.deep.equal(receiptOf(id, result(id)));
      expect((await agents.closeSession(id, { cookie })).json).to.deep.equal(closed.json);
      expect(agents.ran()).to.deep.equal([`seed ${id}`, `admit ${id}`, `close ${id}`]);
    });

    it('run every hook on the worker that the session was seeded on', async () => {
      const id = newId();
      await agents.seedSession(id, held());
      await agents.seedSession(id);
      await agents.closeSession(id);
      expect(agents.calls.map(({ worker }) => worker)).to.deep.equal([agents.holder, agents.holder, agents.holder]);
    });

    it('send no cookie with a reply that has failed, though rolling would set it anew', async () => {
      await agents.close();
      agents = await start({ ...setup, session: () => ({ saveUninitialized: true, rolling: true }) });
      const id = newId();
      await agents.seedSession(id, held());
      agents.hooks.close = () => Promise.reject(new Error('no close'));
      const reply = await agents.closeSession(id, { cookie: agentCookie(id) });
      expect([reply.status, reply.setCookies]).to.deep.equal([500, []]);
    });

    it('send no cookie with a reply that has failed', async () => {
      for (const hook of ['seed', 'admit', 'close'] as const) {
        const id = newId();
        const own = { ...agents.hooks };
        agents.hooks[hook] = () => Promise.reject(new Error(`no ${hook}`));
        const replies = [await agents.seedSession(id, held()), await agents.closeSession(id)];
        const failed = replies.find(({ status }) => status === 500);
        expect(failed?.json).to.deep.equal({ failed: `no ${hook}` });
        expect(failed?.setCookies).to.deep.equal([]);
        Object.assign(agents.hooks, own);
      }
    });

    it('leave what the seed was, whatever a hook does to its copy', async () => {
      const id = newId();
      const seen: AgentSessionSeed[] = [];
      agents.hooks.seed = (request) => {
        seen.push(structuredClone(request));
        request.episode_id.attempt = 9;
        request.tool_accesses.length = 0;
        return { id, request };
      };
      agents.hooks.admit = (request, state) => {
        seen.push(structuredClone(request));
        request.task_id.task_id = 'changed';
        expect(state.request).not.to.equal(request);
      };
      const body = seedOf(id, { tool_accesses: [direct('a')] });
      await agents.seedSession(body, held());
      expect(seen[0]).to.deep.equal(seen[1]).and.to.include({ agent_session_id: id, sandbox_access: null });
      expect(seen[0]?.tool_accesses[0]).to.deep.include({ name: 'a', cookies: {}, headers: {} });
      expect((await agents.seedSession(body)).status).to.equal(200);
      expect((await agents.seedSession(seedOf(id))).status).to.equal(409);
      expect((await agents.closeSession(id)).status).to.equal(200);
    });

    it('leave what a close gave back, whatever is done to it later', async () => {
      const id = newId();
      const given = { agent_observations: { deep: { list: [1, { two: 2 }] } }, resources_cookies: { jar: 'a' } };
      const expected = receiptOf(id, structuredClone(given));
      agents.hooks.close = () => given;
      await agents.seedSession(id, held());
      const replies = [await agents.closeSession(id)];
      given.agent_observations.deep.list.push(3);
      given.resources_cookies.jar = 'b';
      replies.push(await agents.closeSession(id), await agents.closeSession(id, { cookie: agentCookie(id) }));
      for (const { json } of replies) expect(json).to.deep.equal(expected);
    });

    const results: Record<string, [unknown, object]> = {
      nothing: [undefined, {}],
      null: [null, {}],
      'no member': [{}, {}],
      'observations alone': [{ agent_observations: { steps: 3 } }, { agent_observations: { steps: 3 } }],
      'cookies alone': [{ resources_cookies: { a: 'b' } }, { resources_cookies: { a: 'b' } }],
      'both as null': [{ agent_observations: null, resources_cookies: null }, {}],
      'what JSON has otherwise': [
        { agent_observations: { at: new Date(0), none: undefined } },
        { agent_observations: { at: '1970-01-01T00:00:00.000Z' } },
      ],
    };
    for (const [what, [returned, told]] of Object.entries(results)) {
      it(`take ${what} from a close hook`, async () => {
        const id = newId();
        agents.hooks.close = () => returned;
        await agents.seedSession(id, held());
        expect((await agents.closeSession(id)).json).to.deep.equal(receiptOf(id, told));
        expect((await agents.closeSession(id)).json).to.deep.equal(receiptOf(id, told));
      });
    }

    const [a, b] = [direct('a'), direct('b')];
    const stdio = { transport: 'stdio', command: 'tool' };
    const mcp = (connection: object): object => ({ kind: 'mcp', name: 'm', required: true, connection });
    const sandbox = (descriptor: unknown, more: object = {}): object => ({
      sandbox_access: { connection: { kind: 'direct', provider_config_ref: 'ref', descriptor }, ...more },
    });
    const equals: Record<string, [object, object]> = {
      'an attempt that is left out and 0': [{ episode_id: { rollout_id: 'r1' } }, {}],
      'an attempt as number and as text': [otherEpisode, { episode_id: { rollout_id: 'r1', attempt: '1' } }],
      'keys in another order': [
        { task_id: { taskset: 'set', task_id: 't1' } },
        { task_id: { task_id: 't1', taskset: 'set' } },
      ],
      'members that are left out and their defaults': [{}, { tool_accesses: [], sandbox_access: null }],
      'a tool without and with its defaults': [
        { tool_accesses: [a] },
        { tool_accesses: [{ ...a, cookies: {}, headers: {} }] },
      ],
      'cookies of a tool in another order': [
        { tool_accesses: [{ ...a, cookies: { x: '1', y: '2' } }] },
        { tool_accesses: [{ ...a, cookies: { y: '2', x: '1' } }] },
      ],
      'a connection without and with its defaults': [
        { tool_accesses: [mcp(stdio)] },
        { tool_accesses: [mcp({ ...stdio, args: [], env: {}, cwd: null })] },
      ],
      'a sandbox with keys in another order': [
        sandbox({ x: [1], y: {} }),
        sandbox({ y: {}, x: [1] }, { workdir: null }),
      ],
    };
    for (const [what, [one, other]] of Object.entries(equals)) {
      it(`take seeds for equal that differ in ${what}`, async () => {
        const id = newId();
        await agents.seedSession(seedOf(id, one), held());
        const again = await agents.seedSession(seedOf(id, other));
        expect([again.status, again.json]).to.deep.equal([200, { agent_session_id: id }]);
        expect(agents.ran()).to.deep.equal([`seed ${id}`, `admit ${id}`]);
      });
    }

    const differences: Record<string, [object, object]> = {
      'the attempt': [{}, otherEpisode],
      'the rollout': [{}, { episode_id: { rollout_id: 'r2' } }],
      'the task': [{}, otherTask],
      'the set of tasks': [{}, { task_id: { taskset: 'other', task_id: 't1' } }],
      'the number of tools': [{ tool_accesses: [a] }, { tool_accesses: [a, b] }],
      'the order of tools': [{ tool_accesses: [a, b] }, { tool_accesses: [b, a] }],
      'a cookie of a tool': [{ tool_accesses: [a] }, { tool_accesses: [{ ...a, cookies: { x: '1' } }] }],
      'whether a tool is required': [{ tool_accesses: [a] }, { tool_accesses: [{ ...a, required: true }] }],
      'an argument of a tool': [
        { tool_accesses: [mcp({ ...stdio, args: ['x'] })] },
        { tool_accesses: [mcp({ ...stdio, args: ['y'] })] },
      ],
      'whether there is a sandbox': [{}, sandbox({})],
      'a list in the sandbox': [sandbox({ x: [1, 2] }), sandbox({ x: [2, 1] })],
      'the type of a value in the sandbox': [sandbox({ x: 1 }), sandbox({ x: '1' })],
      'the folder in the sandbox': [sandbox({}), sandbox({}, { workdir: '/work' })],
    };
    for (const [what, [one, other]] of Object.entries(differences)) {
      it(`refuse a second seed that differs in ${what}`, async () => {
        const id = newId();
        expect((await agents.seedSession(seedOf(id, one), held())).status).to.equal(200);
        expectRefusal(
          await agents.seedSession(seedOf(id, other)),
          'AGENT_SESSION_CONFLICT',
          'agent_session_id is already bound to another seed request',
        );
        expect((await agents.seedSession(seedOf(id, one))).status).to.equal(200);
        expect(agents.ran()).to.deep.equal([`seed ${id}`, `admit ${id}`]);
      });
    }

    it('take any ID that is well-formed, and give it back by the cookie', async () => {
      const strange = [
        'a b',
        'ünï 漢 😀',
        'agent:',
        'agent:x',
        '__proto__',
        'constructor',
        `'";,=%\\`,
        '\0',
        '../x',
        ' ',
      ];
      for (const id of [...strange, 'x'.repeat(4096)]) {
        await agents.seedSession(id, held());
        const seed = await agents.seedSession(id);
        expect(namedIn(seed)).to.equal(`agent:${id}`);
        const cookie = seed.setCookies[0]?.split(';', 1)[0];
        expect((await agents.activate({ cookie })).json).to.deep.equal({ worker: agents.holder, session: id });
        expect((await agents.closeSession(id, { cookie })).json).to.deep.equal(receiptOf(id, result(id)));
      }
      for (const id of ['\ud800', 'x'.repeat(4097)]) {
        const reply = await agents.seedSession(id);
        expect([reply.status, reply.json.code, reply.setCookies]).to.deep.equal([400, 'SESSION_ID_INVALID', []]);
      }
    });

    it('answer on each path of their routes, however it is written', async () => {
      const prefixes = ['', '/ng-rollout/r1', '/ng-rollout/r1/training-token-capture', '/NG-Rollout/r%201'];
      for (const [at, prefix] of prefixes.entries()) {
        const id = newId();
        const slash = at % 2 === 0 ? '' : '/';
        const seed = await agents.post(`/v1/agent_sessions${slash}`, seedOf(id), { ...held(), prefix });
        expect(seed.json).to.deep.equal({ agent_session_id: id });
        const close = await agents.post(`/V1/Agent_Sessions/Close${slash}`, closeOf(id), { prefix });
        expect(close.json).to.deep.equal(receiptOf(id, result(id)));
        expect(agents.calls.at(-1)).to.deep.equal({ hook: 'close', id, worker: agents.holder });
      }
    });

    it('take seeds that are larger than a body parser takes by default, and compressed ones', async () => {
      const id = newId();
      const body = seedOf(id, sandbox({ text: 'x'.repeat(1_000_000) }));
      expect((await agents.seedSession(body, held())).status).to.equal(200);
      const headers = { 'content-encoding': 'gzip', 'content-type': 'application/json' };
      const { url } = agents.all[0] as { url: string };
      const init = { method: 'POST', headers, body: gzipSync(JSON.stringify(body)) };
      expect((await new Client().request(`${url}/v1/agent_sessions`, init)).status).to.equal(200);
      expect(agents.ran()).to.deep.equal([`seed ${id}`, `admit ${id}`]);
    });

    const refused: Record<string, [object, object[]]> = {
      'without a member': [{ episode_id: undefined }, [{ type: 'invalid_type', loc: ['body', 'episode_id'] }]],
      'with an unknown key': [{ more: 1 }, [{ type: 'unrecognized_keys', loc: ['body'] }]],
      'with a number for an ID': [
        { agent_session_id: 7 },
        [{ type: 'invalid_type', loc: ['body', 'agent_session_id'], input: 7 }],
      ],
      'with an empty ID': [
        { agent_session_id: '' },
        [{ type: 'too_small', loc: ['body', 'agent_session_id'], input: '' }],
      ],
      'with two faults': [
        { episode_id: { rollout_id: 'r-a1', attempt: -1 } },
        [
          { type: 'custom', loc: ['body', 'episode_id', 'rollout_id'], input: 'r-a1' },
          { type: 'custom', loc: ['body', 'episode_id', 'attempt'], input: -1 },
        ],
      ],
    };
    for (const [what, [more, issues]] of Object.entries(refused)) {
      it(`say what is wrong with a body ${what}, and keep nothing`, async () => {
        for (const path of ['/v1/agent_sessions', '/v1/agent_sessions/close']) {
          const body = path.endsWith('close') ? closeOf(newId(), more) : seedOf(newId(), more);
          const reply = await agents.post(path, body);
          expect([reply.status, reply.setCookies]).to.deep.equal([422, []]);
          expect(reply.headers.get('content-type')).to.match(/^application\/json/);
          const { detail } = reply.json as { detail: { msg: string }[] };
          expect(detail).to.have.length(issues.length);
          detail.forEach((issue, at) => {
            expect(issue).to.deep.include(issues[at]);
            expect(issue.msg).to.be.a('string').that.is.not.equal('');
          });
        }
        expect([agents.size(), agents.calls]).to.deep.equal([0, []]);
      });
    }

    it('refuse a request without a body', async () => {
      for (const path of ['/v1/agent_sessions', '/v1/agent_sessions/close']) {
        const reply = await new Client().request(`${agents.all[0]?.url}${path}`, { method: 'POST' });
        expect([reply.status, reply.setCookies]).to.deep.equal([422, []]);
        expect(reply.json.detail[0]).to.include({ type: 'invalid_type' });
      }
    });

    const unreadable: Record<string, { body: string; type?: string; issue: string }> = {
      'that is no JSON': { body: '{"agent_session_id":', issue: 'json_invalid' },
      'that is text in JSON': { body: '"s"', issue: 'json_invalid' },
      'that is a list': { body: '[]', issue: 'invalid_type' },
      'of another type': { body: JSON.stringify(seedOf('s')), type: 'text/plain', issue: 'invalid_type' },
    };
    for (const [what, { body, type = 'application/json', issue }] of Object.entries(unreadable)) {
      it(`refuse a body ${what}`, async () => {
        for (const path of ['/v1/agent_sessions', '/v1/agent_sessions/close']) {
          const { url } = agents.all[0] as { url: string };
          const init = { method: 'POST', headers: { 'content-type': type }, body };
          const reply = await new Client().request(url + path, init);
          expect([reply.status, reply.setCookies]).to.deep.equal([422, []]);
          expect(reply.json.detail).to.have.length(1);
          expect(reply.json.detail[0]).to.include({ type: issue }).and.have.property('loc').that.deep.equals(['body']);
        }
        expect([agents.size(), agents.calls, agents.errors]).to.deep.equal([0, [], []]);
      });
    }
  });
}

describe('AgentSessions', () => {
  const hooks = { seed: (): AgentState => ({}) as AgentState, close: () => undefined };

  const options: Record<string, [object, RegExp]> = {
    'no seed hook': [{ close: hooks.close }, /AgentSessions: option "seed"/],
    'no close hook': [{ seed: hooks.seed }, /AgentSessions: option "close"/],
    'a hook that is no function': [{ ...hooks, admit: true }, /AgentSessions: option "admit": must be a function/],
    'a window of nothing': [{ ...hooks, closeRetryWindowSeconds: 0 }, /option "closeRetryWindowSeconds"/],
    'a window without an end': [{ ...hooks, closeRetryWindowSeconds: Infinity }, /option "closeRetryWindowSeconds"/],
    'a clock that is none': [{ ...hooks, clock: 5 }, /option "clock": must be a function/],
    'an unknown option': [{ ...hooks, closeRetryWindow: 5 }, /no option "closeRetryWindow".*closeRetryWindowSeconds/],
  };
  for (const [what, [given, message]] of Object.entries(options)) {
    it(`refuse ${what}`, () => {
      expect(() => new AgentSessions(given as typeof hooks)).to.throw(TypeError, message);
    });
  }

  it('call their hooks as methods of the options', async () => {
    class Tools {
      readonly #ran: string[] = [];
      get ran(): string[] {
        return this.#ran;
      }
      seed(): object {
        this.#ran.push('seed');
        return {};
      }
      admit(): void {
        this.#ran.push('admit');
      }
      close(): void {
        this.#ran.push('close');
      }
    }
    const tools = new Tools();
    const workers = await one(new AgentSessions(tools));
    await new Client().post(`${workers.url}/v1/agent_sessions`, seedOf('s'));
    await new Client().post(`${workers.url}/v1/agent_sessions/close`, closeOf('s'));
    await workers.close();
    expect(tools.ran).to.deep.equal(['seed', 'admit', 'close']);
  });

  it('belong to one routing', () => {
    const sessions = new AgentSessions(hooks);
    const kind = agent({ sessions });
    sessionRouting({ secret, kind });
    expect(() => sessionRouting({ secret, kind })).to.throw(Error, /belong to another session routing/);
  });

  it('say so where they belong to none, or the routing has not seen a request', async () => {
    const sessions = new AgentSessions(hooks);
    const request = { headers: {} } as express.Request;
    expect(() => sessions.current(request)).to.throw(Error, /belong to no session routing/);
    sessionRouting({ secret, kind: agent({ sessions }) });
    expect(() => sessions.current(request)).to.throw(Error, /The session routing has not seen this request/);
  });

  /** One worker with the routes alone, whose error handler tells what went wrong. */
  async function one(
    sessions: AgentSessions<object>,
    mount: (app: express.Express, routing: SessionRouting) => void = (app, routing) =>
      void app.use(routing, routing.session({ resave: false, saveUninitialized: false }), sessions.router()),
  ): Promise<{ url: string; close(): Promise<void> }> {
    const workers = await startWorkers(
      (routing) => {
        const app = express().set('env', 'test');
        mount(app, routing);
        const answerError: express.ErrorRequestHandler = (error, _request, response, _next) => {
          response.status(500).json(error.message);
        };
        app.use(answerError);
        return app;
      },
      { count: 1, shared: false, kind: agent({ sessions }) },
    );
    return { url: workers.all[0]?.url ?? '', close: () => workers.close() };
  }

  it('refuse a seed without express-session, by an error that says what to mount', async () => {
    const sessions = new AgentSessions(hooks);
    const { url, close } = await one(sessions, (app, routing) => void app.use(routing, sessions.router()));
    const reply = await new Client().post(`${url}/v1/agent_sessions`, seedOf('s'));
    await close();
    expect([reply.status, sessions.size]).to.deep.equal([500, 0]);
    expect(reply.json).to.match(/needs its cookie, and none can be set. Mount routing.session\(\) ahead/);
  });

  it('say which basePath is missing, where they are mounted below a path', async () => {
    const sessions = new AgentSessions(hooks);
    const { url, close } = await one(sessions, (app, routing) => {
      const below = express.Router().use(sessions.router());
      app.use(routing, routing.session({ resave: false, saveUninitialized: false }));
      app.use('/api', below);
    });
    const reply = await new Client().post(`${url}/api/v1/agent_sessions`, seedOf('s'));
    await close();
    expect([reply.status, reply.setCookies, sessions.size]).to.deep.equal([500, [], 0]);
    expect(reply.json).to.match(/mounted below a path, give the kind that basePath/);
  });

  it('answer their refusals themselves, where the app has no handler for them', async () => {
    const { url, close } = await one(new AgentSessions(hooks));
    await new Client().post(`${url}/v1/agent_sessions/close`, closeOf('s'));
    const reply = await new Client().post(`${url}/v1/agent_sessions`, seedOf('s'));
    await close();
    expectRefusal(reply, 'AGENT_SESSION_CLOSED', 'Agent session is already closed');
  });

  it('leave what the seed was, whatever the app does to the body later', async () => {
    const bodies: { sandbox_access: { connection: { descriptor: { list: number[] } } } }[] = [];
    const sessions = new AgentSessions(hooks);
    const { url, close } = await one(sessions, (app, routing) => {
      app.use(routing, routing.session({ resave: false, saveUninitialized: false }), express.json());
      app.use((request, _response, next) => next(void bodies.push(request.body)));
      app.use(sessions.router());
    });
    const connection = { kind: 'direct', provider_config_ref: 'ref', descriptor: { list: [1] } };
    const seed = seedOf('s', { sandbox_access: { connection } });
    await new Client().post(`${url}/v1/agent_sessions`, seed);
    bodies[0]?.sandbox_access.connection.descriptor.list.push(2);
    const again = await new Client().post(`${url}/v1/agent_sessions`, seed);
    await close();
    expect(again.status).to.equal(200);
  });

  it('close a session without express-session, and so without a cookie', async () => {
    const sessions = new AgentSessions(hooks);
    const { url, close } = await one(sessions, (app, routing) => void app.use(routing, sessions.router()));
    const reply = await new Client().post(`${url}/v1/agent_sessions/close`, closeOf('s'));
    await close();
    expect([reply.status, reply.json, reply.setCookies]).to.deep.equal([200, receiptOf('s'), []]);
  });

  it('take a body that the app has parsed', async () => {
    const sessions = new AgentSessions(hooks);
    const workers = await startWorkers((routing) => appWith(routing, (app) => void app.use(sessions.router())), {
      count: 1,
      shared: false,
      kind: agent({ sessions }),
    });
    const reply = await new Client().post(`${workers.all[0]?.url}/v1/agent_sessions`, seedOf('s'));
    await workers.close();
    expect(reply.json).to.deep.equal({ agent_session_id: 's' });
  });
});

function result(id: string): object {
  return { agent_observations: { closed: id }, resources_cookies: { jar: id } };
}

function direct(name: string): Record<string, unknown> {
  return { kind: 'direct_http', name, required: false, base_url: 'http://127.0.0.1:1' };
}
