import { expect } from 'chai';
import express from 'express';
import { AsyncLocalStorage } from 'node:async_hooks';
import { setTimeout as wait } from 'node:timers/promises';
import { runInNewContext } from 'node:vm';
import { AgentSessionSetupError } from '../lib/agent-hooks.ts';
import { SessionRoutingError } from '../lib/errors.ts';
import {
  agentCookie,
  expectRefusal,
  namedIn,
  receiptOf,
  seedOf,
  startAgents,
  type AgentOptions,
  type Agents,
  type AgentState,
  type ProgrammedHooks,
} from './fixtures/agent-workers.ts';
import { Gate, until, type Reply } from './fixtures/routed.ts';
import { warningsOf } from './fixtures/warnings.ts';

let agents: Agents;
const gates: Gate[] = [];

afterEach(async () => {
  for (const gate of gates) gate.open();
  await agents?.close();
});

function newGate(): Gate {
  const gate = new Gate();
  gates.push(gate);
  return gate;
}

/** Makes the next call of a hook wait for a gate; `then` says what it does behind it, if not what it did before. */
function hold<Hook extends keyof ProgrammedHooks>(
  hook: Hook,
  then?: () => unknown,
): { readonly begun: Promise<void>; open(): void } {
  const { [hook]: own } = agents.hooks;
  const [begun, gate] = [newGate(), newGate()];
  const held = async (...args: unknown[]): Promise<unknown> => {
    agents.hooks[hook] = own;
    begun.open();
    await gate.opened;
    return then === undefined ? Reflect.apply(own, agents.hooks, args) : then();
  };
  agents.hooks[hook] = held as ProgrammedHooks[Hook];
  return { begun: begun.opened, open: gate.open };
}

/** Makes the next call of a hook throw, or reject. */
function failOnce(hook: keyof ProgrammedHooks, thrown: unknown, how: 'throws' | 'rejects' = 'rejects'): void {
  const own = { ...agents.hooks };
  agents.hooks[hook] = () => {
    Object.assign(agents.hooks, own);
    if (how === 'throws') throw thrown;
    return Promise.reject(thrown as Error);
  };
}

/** Lets the last worker claim a session of which nothing is kept. */
async function claim(id: string): Promise<void> {
  expect((await agents.seedSession(seedOf(id, { surplus: 1 }), { on: agents.holder })).status).to.equal(422);
}

const given = (id: string): object => ({ agent_observations: { closed: id }, resources_cookies: { jar: id } });
const notOpen = ['AGENT_SESSION_NOT_OPEN', 'Unknown or closing agent_session_id'] as const;
const closing = ['AGENT_SESSION_CLOSING', 'Agent session is closing'] as const;
const closed = ['AGENT_SESSION_CLOSED', 'Agent session is already closed'] as const;

function expectOpened(reply: Reply, id = 's'): void {
  expect([reply.status, reply.json], reply.text).to.deep.equal([200, { agent_session_id: id }]);
  expect(namedIn(reply)).to.equal(`agent:${id}`);
}

function expectFailed(reply: Reply, message: string): void {
  expect([reply.status, reply.json]).to.deep.equal([500, { failed: message }]);
  expect(reply.setCookies).to.deep.equal([]);
}

const setups: Record<string, AgentOptions> = { 'one worker': { count: 1 }, 'two workers': { count: 2 } };

for (const [where, setup] of Object.entries(setups)) {
  describe(`requests for one agent session at once, on ${where}`, () => {
    beforeEach(async () => {
      agents = await startAgents({ now: 1000, ...setup });
      await claim('s');
      agents.counts.arrived = 0;
    });

    it('have equal seeds run the hook once, and answer them alike', async () => {
      const { begun, open } = hold('seed');
      const seeds = Array.from({ length: 10 }, (_, at) => agents.seedSession('s', { on: at % (setup.count ?? 1) }));
      await begun;
      await agents.arrived(10);
      expect(agents.ran()).to.deep.equal(['seed s']);
      open();
      for (const reply of await Promise.all(seeds)) expectOpened(reply);
      expect(agents.ran()).to.deep.equal(['seed s', 'admit s']);
    });

    it('show nothing of a session that is being opened', async () => {
      for (const hook of ['seed', 'admit'] as const) {
        const { begun, open } = hold(hook);
        const seed = agents.seedSession(hook, { on: agents.holder });
        await begun;
        expectRefusal(await agents.activate({ cookie: agentCookie(hook) }), ...notOpen);
        open();
        expectOpened(await seed, hook);
        expect((await agents.activate({ cookie: agentCookie(hook) })).json).to.include({ session: hook });
      }
    });

    it('open the session by the seed that came first', async () => {
      const { begun, open } = hold('seed');
      const first = agents.seedSession('s', { on: agents.holder });
      await begun;
      const second = agents.seedSession(seedOf('s', { task_id: { taskset: 'set', task_id: 't2' } }));
      await agents.arrived(2);
      open();
      expectOpened(await first);
      const text = 'agent_session_id is already bound to another seed request';
      expectRefusal(await second, 'AGENT_SESSION_CONFLICT', text);
      expect(agents.ran()).to.deep.equal(['seed s', 'admit s']);
    });

    it('take their turns in the order in which they came', async () => {
      const { begun, open } = hold('seed');
      const seed = agents.seedSession('s', { on: agents.holder });
      await begun;
      const close = agents.closeSession('s');
      await agents.arrived(2);
      const late = agents.seedSession('s');
      await agents.arrived(3);
      expect(agents.ran()).to.deep.equal(['seed s']);
      open();
      expectOpened(await seed);
      expect((await close).json).to.deep.equal(receiptOf('s', given('s')));
      expect(namedIn(await close)).to.equal('agent:s');
      expectRefusal(await late, ...closed);
      expect(agents.ran()).to.deep.equal(['seed s', 'admit s', 'close s']);
    });

    it('have a second close wait for the first, and get its receipt', async () => {
      await agents.seedSession('s', { on: agents.holder });
      const { begun, open } = hold('close');
      const first = agents.closeSession('s', { on: agents.holder });
      await begun;
      const second = agents.closeSession('s');
      await agents.arrived(3);
      expectRefusal(await agents.activate({ cookie: agentCookie('s') }), ...notOpen);
      open();
      expect((await first).json).to.deep.equal(receiptOf('s', given('s')));
      expect((await second).json).to.deep.equal((await first).json);
      expect([namedIn(await first), namedIn(await second)]).to.deep.equal(['agent:s', undefined]);
      expect(agents.ran()).to.deep.equal(['seed s', 'admit s', 'close s']);
    });

    it('have a close behind one that fails run the hook itself', async () => {
      await agents.seedSession('s', { on: agents.holder });
      const { begun, open } = hold('close', () => Promise.reject(new Error('not now')));
      const first = agents.closeSession('s', { on: agents.holder });
      await begun;
      const second = agents.closeSession('s');
      await agents.arrived(3);
      open();
      expectFailed(await first, 'not now');
      expect((await second).json).to.deep.equal(receiptOf('s', given('s')));
      expect(agents.ran()).to.deep.equal(['seed s', 'admit s', 'close s', 'close s']);
    });

    it('have a seed wait for a close, which may fail', async () => {
      await agents.seedSession('s', { on: agents.holder });
      for (const fails of [true, false]) {
        agents.counts.arrived = 0;
        const { begun, open } = hold('close', fails ? () => Promise.reject(new Error('not now')) : undefined);
        const close = agents.closeSession('s', { on: agents.holder });
        await begun;
        const seed = agents.seedSession('s');
        await agents.arrived(2);
        open();
        expect((await close).status).to.equal(fails ? 500 : 200);
        if (fails) expectRefusal(await seed, ...closing);
        else expectRefusal(await seed, ...closed);
      }
    });

    const failing: Record<
      string,
      { fails(): never; seed(reply: Reply): void; close(reply: Reply): void; ran: string[] }
    > = {
      'leaves nothing behind': {
        fails: () => {
          throw new Error('no');
        },
        seed: expectOpened,
        close: (reply) => void expect(reply.json).to.deep.equal(receiptOf('s')),
        ran: [],
      },
      'leaves something to be closed': {
        fails: () => {
          throw new AgentSessionSetupError({ id: 'part' }, new Error('no'));
        },
        seed: (reply) => void expectRefusal(reply, ...closing),
        close: (reply) => void expect(reply.json).to.deep.equal(receiptOf('s', given('part'))),
        ran: ['close part'],
      },
    };
    for (const [what, { fails, seed, close, ran }] of Object.entries(failing)) {
      it(`have a seed and a close behind a seed that fails and ${what} begin with that`, async () => {
        for (const next of ['seed', 'close'] as const) {
          const before = agents.calls.length;
          agents.counts.arrived = 0;
          const { begun, open } = hold('seed', fails);
          const first = agents.seedSession('s', { on: agents.holder });
          await begun;
          const second = next === 'seed' ? agents.seedSession('s') : agents.closeSession('s');
          await agents.arrived(2);
          open();
          expectFailed(await first, 'no');
          if (next === 'seed') seed(await second);
          else close(await second);
          if (next === 'close') expect(agents.ran().slice(before)).to.deep.equal(['seed s', ...ran]);
          // What is left goes with the window of a receipt, so that the second round begins anew.
          await agents.closeSession('s');
          agents.time.now += 300;
          agents.sessions.forEach((each) => each.expireAgentSessionRecords(agents.time.now));
          expect(agents.size()).to.equal(0);
        }
      });
    }

    it('keep nobody waiting who asks for another session', async () => {
      const { begun, open } = hold('seed');
      const seed = agents.seedSession('s', { on: agents.holder });
      await begun;
      expectOpened(await agents.seedSession('t', { on: agents.holder }), 't');
      expect((await agents.closeSession('t')).json).to.deep.equal(receiptOf('t', given('t')));
      open();
      expectOpened(await seed);
    });

    it('neither cut a seed short whose client leaves, nor let the claim go meanwhile', async () => {
      for (const on of new Set([agents.holder, 0])) {
        const id = `s${on}`;
        await claim(id);
        const left = agents.counts.left + 1;
        const { begun, open } = hold('seed');
        await leaveOnce(begun, (signal) => agents.seedSession(id, { on, signal }));
        await until(() => agents.counts.left === left, 'the client has left');
        agents.time.now += 100;
        await wait(1100); // what lingers has gone by now
        expect(agents.sessions[agents.holder]?.holdsAgentSession(id)).to.equal(true);
        if (agents.holder > 0) expect(agents.claimantOf(id)).to.equal(agents.holder);
        open();
        await until(() => agents.size() === left, 'the session is open');
        const reply = await agents.activate({ cookie: agentCookie(id) });
        expect(reply.json).to.deep.equal({ worker: agents.holder, session: id });
        expectOpened(await agents.seedSession(id), id);
        if (agents.holder > 0) expect(agents.claimantOf(id)).to.equal(agents.holder);
      }
    });

    it('neither cut a close short whose client leaves, nor lose its receipt', async () => {
      for (const on of new Set([agents.holder, 0])) {
        const id = `s${on}`;
        await agents.seedSession(id, { on: agents.holder });
        const left = agents.counts.left + 1;
        const { begun, open } = hold('close');
        await leaveOnce(begun, (signal) => agents.closeSession(id, { on, signal }));
        await until(() => agents.counts.left === left, 'the client has left');
        const again = agents.closeSession(id);
        open();
        expect((await again).json).to.deep.equal(receiptOf(id, given(id)));
        expectRefusal(await agents.seedSession(id), ...closed);
        expect(agents.ran().filter((call) => call === `close ${id}`)).to.have.length(1);
        if (agents.holder > 0) expect(agents.claimantOf(id)).to.equal(agents.holder);
      }
    });

    it('open a session for a client that left while it waited for its turn', async () => {
      const { begun, open } = hold('seed', () => Promise.reject(new Error('no')));
      const first = agents.seedSession('s', { on: agents.holder });
      await begun;
      const arrived = agents.arrived(2);
      await leaveOnce(arrived, (signal) => agents.seedSession('s', { signal }));
      await until(() => agents.counts.left === 1, 'the client has left');
      open();
      expectFailed(await first, 'no');
      await until(() => agents.size() === 1, 'the session is open');
      expect((await agents.activate({ cookie: agentCookie('s') })).json).to.include({ session: 's' });
    });

    it('keep a failed seed whose client has left', async () => {
      const { begun, open } = hold('seed', failing['leaves something to be closed']?.fails);
      await leaveOnce(begun, (signal) => agents.seedSession('s', { on: agents.holder, signal }));
      await until(() => agents.counts.left === 1, 'the client has left');
      open();
      await until(() => agents.size() === 1, 'the failed seed is kept');
      expectRefusal(await agents.seedSession('s'), ...closing);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('part')));
    });
  });

  describe(`a hook of an agent session that throws, on ${where}`, () => {
    beforeEach(async () => {
      agents = await startAgents({ now: 1000, ...setup });
    });

    const boom = new Error('boom');
    const unusual = { message: 'unusual', status: 422 };
    const foreign: unknown = runInNewContext("new Error('foreign')");
    const bare: unknown = Object.assign(Object.create(null), { message: 'bare' });
    const thrown: Record<string, [unknown, { status?: number; message: string }]> = {
      'an error': [boom, boom],
      'an error with a status': [unusual, unusual],
      'an error of another realm': [foreign, { message: 'foreign' }],
      'an object without a prototype': [bare, { message: 'bare' }],
      undefined: [undefined, { message: 'A hook threw undefined' }],
      null: [null, { message: 'A hook threw null' }],
      'what Express takes for a way out of the route': ['route', { message: 'A hook threw route' }],
      'what Express takes for a way out of the router': ['router', { message: 'A hook threw router' }],
      nothing: ['', { message: 'A hook threw ' }],
      false: [false, { message: 'A hook threw false' }],
    };

    /** Checks that a request failed with what a hook has thrown, and that the app's error handler got that. */
    function expectThrown(
      reply: Reply,
      value: unknown,
      { status = 500, message }: { status?: number; message: string },
    ): void {
      expect([reply.status, reply.json]).to.deep.equal([status, { failed: message }]);
      expect(reply.setCookies).to.deep.equal([]);
      if (typeof value === 'object' && value !== null) expect(agents.errors.at(-1)).to.equal(value);
      else expect(agents.errors.at(-1)).to.be.instanceOf(Error);
    }

    for (const [what, [value, told]] of Object.entries(thrown)) {
      for (const how of ['throws', 'rejects'] as const) {
        it(`(${what}, it ${how}) in a seed leaves nothing behind`, async () => {
          failOnce('seed', value, how);
          expectThrown(await agents.seedSession('s', { on: agents.holder }), value, told);
          expect([agents.size(), agents.sessions[agents.holder]?.holdsAgentSession('s')]).to.deep.equal([0, false]);
          expectRefusal(await agents.activate({ cookie: agentCookie('s') }), ...notOpen);
          expectOpened(await agents.seedSession('s'));
          expect(agents.ran()).to.deep.equal(['seed s', 'seed s', 'admit s']);
        });

        it(`(${what}, it ${how}) in an admission has the session closed, and leaves nothing behind`, async () => {
          failOnce('admit', value, how);
          expectThrown(await agents.seedSession('s', { on: agents.holder }), value, told);
          expect(agents.ran()).to.deep.equal(['seed s', 'admit s', 'close s']);
          expect([agents.size(), agents.sessions[agents.holder]?.holdsAgentSession('s')]).to.deep.equal([0, false]);
          expectOpened(await agents.seedSession('s'));
        });

        it(`(${what}, it ${how}) in a close leaves the session closing, until a close succeeds`, async () => {
          await agents.seedSession('s', { on: agents.holder });
          for (let round = 0; round < 2; round++) {
            failOnce('close', value, how);
            expectThrown(await agents.closeSession('s'), value, told);
            expectRefusal(await agents.activate({ cookie: agentCookie('s') }), ...notOpen);
            expectRefusal(await agents.seedSession('s'), ...closing);
          }
          agents.time.now += 10_000; // it never expires
          expect(agents.sessions[agents.holder]?.nextExpiry).to.equal(undefined);
          expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
          expect(agents.ran()).to.deep.equal(['seed s', 'admit s', 'close s', 'close s', 'close s']);
        });
      }
    }

    it('in an admission and in the close behind it leaves a failed seed, and a warning', async () => {
      const states: AgentState[] = [];
      const { close } = agents.hooks;
      agents.hooks.close = (state) => {
        states.push(state);
        agents.hooks.close = close;
        throw new Error('cannot close');
      };
      failOnce('admit', new Error('not admitted'));
      const warnings = await warningsOf(async () => {
        expectFailed(await agents.seedSession('s', { on: agents.holder }), 'not admitted');
      });
      expect(warnings.map(({ code }) => code)).to.deep.equal(['AGENT_SESSION_CLOSE_FAILED']);
      expect(warnings[0]?.detail).to.match(/cannot close/);
      expect(agents.sessions[agents.holder]?.nextExpiry).to.equal(1300);
      expectRefusal(await agents.seedSession('s'), ...closing);
      expectRefusal(await agents.activate({ cookie: agentCookie('s') }), ...notOpen);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      expect(states[0]).to.include({ id: 's' });
    });

    const causes: Record<string, [unknown, string]> = {
      'an error': [boom, 'boom'],
      'no error': [undefined, 'The setup of an agent session failed, and has to be closed'],
      'what Express takes for a way out of the route': ['route', 'A hook threw route'],
    };
    for (const [what, [cause, message]] of Object.entries(causes)) {
      for (const how of ['throws', 'rejects'] as const) {
        it(`a setup error because of ${what} (it ${how}) leaves a failed seed, whose state its close gets`, async () => {
          const partial = { id: 'partial' };
          failOnce('seed', new AgentSessionSetupError(partial, cause), how);
          expectFailed(await agents.seedSession('s', { on: agents.holder }), message);
          if (cause instanceof Error) expect(agents.errors).to.deep.equal([cause]).and.to.have.property('0', cause);
          expectRefusal(await agents.seedSession('s'), ...closing);
          expectRefusal(await agents.activate({ cookie: agentCookie('s') }), ...notOpen);
          let state: unknown;
          const { close } = agents.hooks;
          agents.hooks.close = (given) => close((state = given) as AgentState);
          const reply = await agents.closeSession('s');
          expect(reply.json).to.deep.equal(receiptOf('s', given('partial')));
          expect(namedIn(reply)).to.equal('agent:s');
          expect(state).to.equal(partial);
          expect(agents.ran()).to.deep.equal(['seed s', 'close partial']);
          expectRefusal(await agents.seedSession('s'), ...closed);
        });
      }
    }

    it('a failed seed whose close throws can be closed again', async () => {
      failOnce('seed', new AgentSessionSetupError({ id: 'part' }, new Error('no')));
      await agents.seedSession('s', { on: agents.holder });
      failOnce('close', new Error('not now'));
      expectFailed(await agents.closeSession('s'), 'not now');
      expectRefusal(await agents.seedSession('s'), ...closing);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('part')));
    });

    it('a refusal of the routing is answered as such', async () => {
      failOnce('seed', new SessionRoutingError('CLAIMANT_BUSY', 'No sandbox is free.'));
      const reply = await agents.seedSession('s', { on: agents.holder });
      expect([reply.status, reply.headers.get('retry-after'), reply.setCookies]).to.deep.equal([503, '1', []]);
      expect(reply.json).to.include({ code: 'CLAIMANT_BUSY', detail: 'No sandbox is free.' });
      expect([agents.size(), agents.errors]).to.deep.equal([0, []]);
    });

    for (const junk of [undefined, null, 'state', 7, true]) {
      it(`a seed that returns ${String(junk)} fails, and leaves nothing behind`, async () => {
        const { seed } = agents.hooks;
        agents.hooks.seed = () => junk;
        const reply = await agents.seedSession('s', { on: agents.holder });
        expectFailed(reply, 'The seed hook of AgentSessions must return the state of the session, an object.');
        expect(agents.size()).to.equal(0);
        agents.hooks.seed = seed;
        expectOpened(await agents.seedSession('s'));
      });
    }

    const circle: { circle?: object } = {};
    circle.circle = circle;
    const junk: Record<string, unknown> = {
      text: 'done',
      'a number': 7,
      'a list': [],
      'an unknown member': { observations: {} },
      'observations that are text': { agent_observations: 'done' },
      'cookies that are no text': { resources_cookies: { a: 1 } },
      'another ID': { agent_session_id: 'other' },
      'what is no JSON': { agent_observations: { circle } },
      'a number that is no JSON': { agent_observations: { n: 1n } },
    };
    for (const [what, value] of Object.entries(junk)) {
      it(`a close that returns ${what} fails, and runs again`, async () => {
        await agents.seedSession('s', { on: agents.holder });
        const { close } = agents.hooks;
        agents.hooks.close = () => value;
        const reply = await agents.closeSession('s');
        expect([reply.status, reply.setCookies]).to.deep.equal([500, []]);
        expect(agents.errors[0]).to.be.instanceOf(TypeError);
        expectRefusal(await agents.seedSession('s'), ...closing);
        agents.hooks.close = close;
        expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      });
    }
  });

  describe(`the asynchronous context of a hook, on ${where}`, () => {
    const context = new AsyncLocalStorage<unknown>();
    let seen: string[];

    /** Starts agents whose requests each run in a context named by their header, which the hooks note. */
    async function start(options: AgentOptions): Promise<void> {
      seen = [];
      agents = await startAgents({
        ...setup,
        ...options,
        ahead: (app) => void app.use(({ headers }, _response, next) => context.run(headers['x-name'], next)),
      });
      const note = (hook: string): void => void seen.push(`${hook} in ${String(context.getStore())}`);
      const { seed, close } = agents.hooks;
      agents.hooks.seed = (request) => {
        note('seed');
        return seed(request);
      };
      agents.hooks.admit = () => note('admit');
      agents.hooks.close = (state) => {
        note('close');
        return close(state);
      };
    }

    const named = (name: string): { headers: Record<string, string> } => ({ headers: { 'x-name': name } });

    it('is that of its own request, though it waited for another', async () => {
      await start({ now: 1000 });
      const { begun, open } = hold('seed', () => Promise.reject(new Error('no')));
      const first = agents.seedSession('s', { on: agents.holder, ...named('first') });
      await begun;
      const second = agents.seedSession('s', { on: agents.holder, ...named('second') });
      await agents.arrived(2);
      const third = agents.closeSession('s', { on: agents.holder, ...named('third') });
      await agents.arrived(3);
      open();
      await Promise.all([first, second, third]);
      expect(seen).to.deep.equal(['seed in second', 'admit in second', 'close in third']);
    });

    it('is none where a failed seed is closed in the background, again and again', async () => {
      await start({ closeRetryWindowSeconds: 0.1 });
      const { close } = agents.hooks;
      let left = 2;
      agents.hooks.close = (state) => {
        const result = close(state);
        if (--left > 0) throw new Error('not now');
        return result;
      };
      const warnings = await warningsOf(async () => {
        failOnce('seed', new AgentSessionSetupError({ id: 'part' }, new Error('no')));
        await agents.seedSession('s', { on: agents.holder, ...named('seed') });
        await until(() => agents.size() === 0, 'the failed seed is closed');
      });
      expect(seen).to.deep.equal(['close in undefined', 'close in undefined']);
      expect(warnings.map(({ code }) => code)).to.deep.equal(['AGENT_SESSION_CLOSE_FAILED']);
    });

    it('is none where the background waited for a request', async () => {
      await start({ now: 1000 });
      failOnce('seed', new AgentSessionSetupError({ id: 'part' }, new Error('no')));
      await agents.seedSession('s', { on: agents.holder, ...named('seed') });
      const { begun, open } = hold('close', () => Promise.reject(new Error('not now')));
      const close = agents.closeSession('s', { on: agents.holder, ...named('close') });
      await begun;
      context.run('sweep', () => agents.sessions[agents.holder]?.expireAgentSessionRecords(1300));
      open();
      expectFailed(await close, 'not now');
      await until(() => agents.size() === 0, 'the failed seed is closed');
      expect(seen).to.deep.equal(['close in undefined']);
    });
  });
}

describe('a seed whose client left before it began, on two workers', () => {
  let gate: Gate;

  /** Starts agents whose app keeps the requests that say so until a gate opens, with their bodies read. */
  beforeEach(async () => {
    gate = newGate();
    agents = await startAgents({
      ahead(app) {
        app.use(express.json());
        app.use(({ headers }, _response, next) => {
          if (headers['x-late'] === undefined) next();
          else void gate.opened.then(() => next());
        });
      },
    });
    const { holder } = agents;
    const late = { on: holder, headers: { 'x-late': '1' } };
    await leaveOnce(agents.arrived(1), (signal) => agents.seedSession('s', { ...late, signal }));
    await until(() => agents.claims().length === 0, 'the claim has gone');
  });

  it('claims its session again', async () => {
    gate.open();
    await until(() => agents.size() === 1, 'the session is open');
    expect(agents.claimantOf('s')).to.equal(agents.holder);
    await wait(1300); // what lingers is gone
    expect((await agents.activate({ cookie: agentCookie('s') })).json).to.deep.equal({ worker: 1, session: 's' });
  });

  it('opens nothing that another worker has opened meanwhile', async () => {
    expectOpened(await agents.seedSession('s', { on: 0 }));
    gate.open();
    await wait(100);
    expect(agents.calls.map(({ worker }) => worker)).to.deep.equal([0, 0]);
    expect(agents.sessions.map(({ size }) => size)).to.deep.equal([1, 0]);
    expect(agents.claimantOf('s')).to.equal(0);
  });
});

/** Sends a request whose client leaves once something has happened. */
async function leaveOnce(happened: Promise<void>, send: (signal: AbortSignal) => Promise<Reply>): Promise<void> {
  const leaving = new AbortController();
  const reply = send(leaving.signal).catch((error: Error) => error.name);
  await happened;
  leaving.abort();
  expect(await reply).to.equal('AbortError');
}
