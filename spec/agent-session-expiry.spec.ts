import { expect } from 'chai';
import expressSession from 'express-session';
import { Agent, request as httpRequest } from 'node:http';
import { setTimeout as wait } from 'node:timers/promises';
import { AgentSessionSetupError } from '../lib/agent-hooks.ts';
import type { AgentSessions } from '../lib/agent-sessions.ts';
import {
  agentCookie,
  closeOf,
  expectRefusal,
  receiptOf,
  seedOf,
  startAgents,
  type AgentOptions,
  type Agents,
  type AgentState,
} from './fixtures/agent-workers.ts';
import { Gate, until, type Reply, type Worker } from './fixtures/routed.ts';
import { warningsOf, type Warning } from './fixtures/warnings.ts';

const windowSeconds = 300;

let agents: Agents;

afterEach(() => agents?.close());

/** The sessions of the worker that holds them. */
function held(): AgentSessions<AgentState> {
  return agents.sessions[agents.holder] as AgentSessions<AgentState>;
}

const onHolder = (): { on: number } => ({ on: agents.holder });
const given = (id: string): object => ({ agent_observations: { closed: id }, resources_cookies: { jar: id } });

/** Opens a session and closes it. */
async function closeNew(id = 's'): Promise<void> {
  expect((await agents.seedSession(id, onHolder())).status).to.equal(200);
  expect((await agents.closeSession(id, onHolder())).status).to.equal(200);
}

/** Fails to open a session, so that something of it has to be closed. */
async function failNew(id = 's'): Promise<void> {
  const { seed } = agents.hooks;
  agents.hooks.seed = (request) => {
    throw new AgentSessionSetupError({ id, request }, new Error('half done'));
  };
  expect((await agents.seedSession(id, onHolder())).status).to.equal(500);
  agents.hooks.seed = seed;
}

/** Drops what has expired now, as the sweep does. */
function sweep(): string[] {
  return held().expireAgentSessionRecords(agents.time.now);
}

function expectForgotten(): void {
  expect([held().size, held().nextExpiry, held().holdsAgentSession('s')]).to.deep.equal([0, undefined, false]);
}

const setups: Record<string, AgentOptions> = { 'one worker': { count: 1 }, 'two workers': { count: 2 } };

for (const [where, setup] of Object.entries(setups)) {
  describe(`the receipt of an agent session, on ${where}`, () => {
    beforeEach(async () => {
      agents = await startAgents({ now: 1000, closeRetryWindowSeconds: windowSeconds, ...setup });
    });

    it('is there for a window from the end of the close hook, and then it is not', async () => {
      const { close } = agents.hooks;
      agents.hooks.close = (state) => {
        agents.time.now += 7;
        return close(state);
      };
      await closeNew();
      expect(held().nextExpiry).to.equal(1307);
      agents.time.now = 1306.999;
      expect(sweep()).to.deep.equal([]);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      agents.time.now = 1307;
      expect(sweep()).to.deep.equal(['s']);
      expectForgotten();
      expect(agents.ran()).to.deep.equal(['seed s', 'admit s', 'close s']);
    });

    it('is not there for longer because of what is asked for it', async () => {
      await closeNew();
      agents.time.now = 1200;
      const cookie = agentCookie('s');
      await agents.closeSession('s');
      await agents.closeSession('s', { cookie });
      await agents.closeSession(closeOf('s', { episode_id: { rollout_id: 'r2' } }));
      await agents.seedSession('s');
      await agents.activate({ cookie });
      expect(held().nextExpiry).to.equal(1300);
      agents.time.now = 1300;
      expect(sweep()).to.deep.equal(['s']);
      expectForgotten();
    });

    for (const how of ['whether or not a sweep has come by', 'after a sweep'] as const) {
      const requests: Record<string, [() => Promise<Reply>, (reply: Reply) => void]> = {
        'a seed with its cookie': [
          () => agents.seedSession('s', { cookie: agentCookie('s') }),
          (reply) => expectRefusal(reply, 'AGENT_SESSION_EXPIRED', 'Agent session cookie has expired'),
        ],
        'a close with its cookie': [
          () => agents.closeSession('s', { cookie: agentCookie('s') }),
          (reply) => expectRefusal(reply, 'AGENT_SESSION_EXPIRED', 'Agent close receipt has expired'),
        ],
        'an activation with its cookie': [
          () => agents.activate({ cookie: agentCookie('s') }),
          (reply) => expectRefusal(reply, 'AGENT_SESSION_NOT_OPEN', 'Unknown or closing agent_session_id'),
        ],
        'a seed without a cookie, which opens it anew': [
          () => agents.seedSession(seedOf('s', { task_id: { taskset: 'set', task_id: 't2' } })),
          (reply) => void expect([reply.status, reply.json]).to.deep.equal([200, { agent_session_id: 's' }]),
        ],
        'a close without a cookie, of whatever episode': [
          () => agents.closeSession(closeOf('s', { episode_id: { rollout_id: 'r2' } })),
          (reply) => void expect(reply.json).to.deep.equal(receiptOf('s')),
        ],
      };
      for (const [what, [send, check]] of Object.entries(requests)) {
        it(`counts for nothing at the end of its window, ${how}, for ${what}`, async () => {
          await closeNew();
          agents.time.now = 1300;
          if (how === 'after a sweep') expect(sweep()).to.deep.equal(['s']);
          check(await send());
        });
      }
    }

    it('takes nothing along that the session has become since', async () => {
      await closeNew();
      agents.time.now = 1300;
      expect((await agents.seedSession('s')).status).to.equal(200);
      expect(held().nextExpiry).to.equal(undefined);
      expect(sweep()).to.deep.equal([]);
      expect((await agents.activate({ cookie: agentCookie('s') })).json).to.include({ session: 's' });
      agents.time.now = 1400;
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      expect(held().nextExpiry).to.equal(1700);
    });

    it('goes as well where no session was, and lets a seed open one then', async () => {
      expect((await agents.closeSession('s', onHolder())).json).to.deep.equal(receiptOf('s'));
      agents.time.now = 1299;
      expect((await agents.seedSession('s')).json).to.include({ code: 'AGENT_SESSION_CLOSED' });
      agents.time.now = 1300;
      expect(sweep()).to.deep.equal(['s']);
      expect((await agents.seedSession('s')).status).to.equal(200);
    });

    it('goes with others, the soonest first, and no more of them than the sweep asks for', async () => {
      for (const id of ['a', 'b', 'c']) {
        await closeNew(id);
        agents.time.now += 1;
      }
      expect(held().expireAgentSessionRecords(1301.5, 1)).to.deep.equal(['a']);
      expect([held().size, held().nextExpiry]).to.deep.equal([2, 1301]);
      expect(held().expireAgentSessionRecords(1301.5)).to.deep.equal(['b']);
      expect(held().expireAgentSessionRecords(9999)).to.deep.equal(['c']);
      expectForgotten();
    });
  });

  describe(`an open agent session, on ${where}`, () => {
    it('never expires', async () => {
      agents = await startAgents({ now: 1000, closeRetryWindowSeconds: windowSeconds, ...setup });
      await agents.seedSession('s', onHolder());
      agents.time.now += 1e9;
      expect([sweep(), held().nextExpiry, held().size]).to.deep.equal([[], undefined, 1]);
      expect((await agents.activate({ cookie: agentCookie('s') })).json).to.include({ session: 's' });
      expect((await agents.seedSession('s', { cookie: agentCookie('s') })).status).to.equal(200);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
    });
  });

  describe(`an agent session that failed to open, on ${where}`, () => {
    let warnings: Warning[];

    beforeEach(async () => {
      agents = await startAgents({ now: 1000, closeRetryWindowSeconds: windowSeconds, ...setup });
      await failNew();
      agents.calls.length = 0;
    });

    /** Makes the close hook wait for a gate, and then fail or not. */
    function holdClose(fails = false): { gate: Gate; begun: Promise<void> } {
      const { close } = agents.hooks;
      const [gate, begun] = [new Gate(), new Gate()];
      agents.hooks.close = async (state) => {
        agents.hooks.close = close;
        begun.open();
        await gate.opened;
        if (fails) throw new Error('not now');
        return close(state);
      };
      return { gate, begun: begun.opened };
    }

    it('is closed at the end of its window, once, and forgotten', async () => {
      expect(held().nextExpiry).to.equal(1300);
      agents.time.now = 1299.999;
      expect([sweep(), agents.ran()]).to.deep.equal([[], []]);
      agents.time.now = 1300;
      const { gate, begun } = holdClose();
      expect(sweep()).to.deep.equal(['s']);
      await begun;
      agents.time.now = 9000;
      expect([sweep(), held().size, held().holdsAgentSession('s')]).to.deep.equal([[], 1, true]);
      gate.open();
      await until(() => held().size === 0, 'the session is forgotten');
      expectForgotten();
      expect(agents.ran()).to.deep.equal(['close s']);
      expect((await agents.seedSession('s')).status).to.equal(200);
    });

    it('is closing for everybody until a sweep comes by', async () => {
      agents.time.now = 5000;
      expectRefusal(await agents.seedSession('s'), 'AGENT_SESSION_CLOSING', 'Agent session is closing');
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      expect([agents.ran(), held().nextExpiry, sweep()]).to.deep.equal([['close s'], 5300, []]);
    });

    const waiting: Record<string, [() => Promise<Reply>, (reply: Reply) => void]> = {
      'a close, which finds nothing': [
        () => agents.closeSession('s'),
        (reply) => void expect(reply.json).to.deep.equal(receiptOf('s')),
      ],
      'a close with its cookie, which finds nothing': [
        () => agents.closeSession('s', { cookie: agentCookie('s') }),
        (reply) => expectRefusal(reply, 'AGENT_SESSION_EXPIRED', 'Agent close receipt has expired'),
      ],
      'a seed, which opens it': [
        () => agents.seedSession('s'),
        (reply) => void expect([reply.status, reply.json]).to.deep.equal([200, { agent_session_id: 's' }]),
      ],
    };
    for (const [what, [send, check]] of Object.entries(waiting)) {
      it(`is closed ahead of ${what}`, async () => {
        agents.time.now = 1300;
        const { gate, begun } = holdClose();
        sweep();
        await begun;
        const reply = send();
        await agents.arrived(2);
        expect(agents.ran()).to.deep.equal(['close s']);
        gate.open();
        check(await reply);
        expect(agents.ran().filter((call) => call === 'close s')).to.have.length(1);
      });
    }

    it('is closed by a close that waits for one in the background that fails', async () => {
      agents.time.now = 1300;
      const { gate, begun } = holdClose(true);
      warnings = await warningsOf(async () => {
        sweep();
        await begun;
        const reply = agents.closeSession('s');
        await agents.arrived(2);
        gate.open();
        expect((await reply).json).to.deep.equal(receiptOf('s', given('s')));
      });
      expect(agents.ran()).to.deep.equal(['close s', 'close s']);
      expect(warnings.map(({ code }) => code)).to.deep.equal(['AGENT_SESSION_CLOSE_FAILED']);
      agents.time.now = 1600;
      expect(sweep()).to.deep.equal(['s']);
      expectForgotten();
    });

    it('is left alone by the background once a close that ran meanwhile has succeeded', async () => {
      const { gate, begun } = holdClose();
      const reply = agents.closeSession('s');
      await begun;
      agents.time.now = 1300;
      expect(sweep()).to.deep.equal(['s']);
      agents.time.now = 1310;
      gate.open();
      expect((await reply).json).to.deep.equal(receiptOf('s', given('s')));
      await wait(10);
      expect([agents.ran(), held().size, held().nextExpiry]).to.deep.equal([['close s'], 1, 1610]);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
    });

    it('is closed by the background once a close that ran meanwhile has failed', async () => {
      const { gate, begun } = holdClose(true);
      const reply = agents.closeSession('s');
      await begun;
      agents.time.now = 1300;
      sweep();
      gate.open();
      expect((await reply).status).to.equal(500);
      await until(() => held().size === 0, 'the session is forgotten');
      expect(agents.ran()).to.deep.equal(['close s', 'close s']);
      expectForgotten();
    });

    const failures: Record<string, () => unknown> = {
      rejects: () => Promise.reject(new Error('not now')),
      throws: () => {
        throw new Error('not now');
      },
      'rejects with an object without a prototype': () => Promise.reject(Object.create(null) as Error),
      'rejects with nothing': () => Promise.reject(undefined as unknown as Error),
    };
    for (const [what, fails] of Object.entries(failures)) {
      it(`is closed again, a window after a close that ${what}, until one succeeds`, async () => {
        const { close } = agents.hooks;
        agents.hooks.close = () => {
          agents.time.now += 5;
          return fails();
        };
        warnings = await warningsOf(async () => {
          for (const [due, next] of [[1300, 1605] as const, [1605, 1910] as const]) {
            agents.time.now = due - 0.001;
            expect(sweep()).to.deep.equal([]);
            agents.time.now = due;
            expect(sweep()).to.deep.equal(['s']);
            await until(() => held().nextExpiry === next, 'the next close is planned');
            expectRefusal(await agents.seedSession('s'), 'AGENT_SESSION_CLOSING', 'Agent session is closing');
          }
        });
        expect(warnings.map(({ code }) => code)).to.deep.equal(Array(2).fill('AGENT_SESSION_CLOSE_FAILED'));
        agents.hooks.close = close;
        agents.time.now = 1910;
        sweep();
        await until(() => held().size === 0, 'the session is forgotten');
        expectForgotten();
        expect(agents.ran()).to.deep.equal(['close s', 'close s', 'close s']);
      });
    }

    it('counts its window from its close once that has succeeded', async () => {
      agents.time.now = 1200;
      await agents.closeSession('s');
      expect(held().nextExpiry).to.equal(1500);
      agents.time.now = 1499;
      expect(sweep()).to.deep.equal([]);
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      agents.time.now = 1500;
      expect(sweep()).to.deep.equal(['s']);
      expectForgotten();
      expect(agents.ran()).to.deep.equal(['close s']);
    });
  });

  describe(`with no further request, on ${where}`, () => {
    const seconds = 0.4;

    beforeEach(async () => {
      agents = await startAgents({ closeRetryWindowSeconds: seconds, ...setup });
    });

    /** Waits until nothing of any session is left, not even a claim. */
    async function expectNothingLeft(): Promise<void> {
      await until(() => agents.size() === 0 && agents.claims().length === 0, 'nothing is left');
      expect(agents.sessions.map(({ nextExpiry }) => nextExpiry)).to.deep.equal(agents.sessions.map(() => undefined));
    }

    /** Where one of several workers claims the session; with one worker nobody needs to. */
    function expectClaimed(id = 's'): void {
      expect(agents.claimantOf(id)).to.equal(agents.holder === 0 ? undefined : agents.holder);
    }

    it('a close is forgotten, a window later, by every worker', async () => {
      const startedAt = performance.now();
      await closeNew();
      expectClaimed();
      await expectNothingLeft();
      expect(performance.now() - startedAt).to.be.at.least(seconds * 1000);
      const cookie = agentCookie('s');
      for (const on of new Set([0, agents.holder])) {
        expect((await agents.seedSession('s', { on, cookie })).json).to.include({ code: 'AGENT_SESSION_EXPIRED' });
        expect((await agents.closeSession('s', { on, cookie })).json).to.include({ code: 'AGENT_SESSION_EXPIRED' });
      }
      await expectNothingLeft();
      expect((await agents.seedSession('s', { on: 0 })).status).to.equal(200);
      if (agents.holder > 0) expect(agents.claimantOf('s')).to.equal(0);
    });

    it('a close of nothing is forgotten', async () => {
      await agents.closeSession('s', onHolder());
      expectClaimed();
      await expectNothingLeft();
      expect(agents.calls).to.deep.equal([]);
    });

    it('a failed seed is closed once, and forgotten', async () => {
      await failNew();
      expectClaimed();
      await expectNothingLeft();
      expect(agents.ran()).to.deep.equal(['seed s', 'close s']);
    });

    it('a failed seed whose close fails is closed again, and its claim stays until then', async () => {
      const { close } = agents.hooks;
      let failures = 0;
      agents.hooks.close = () => {
        if (++failures === 3) agents.hooks.close = close;
        throw new Error('not now');
      };
      const warnings = await warningsOf(async () => {
        await failNew();
        await until(() => failures === 3, 'its close has failed three times');
        expectClaimed();
        await expectNothingLeft();
      });
      expect(warnings).to.have.length(3);
      expect(agents.ran()).to.deep.equal(['seed s', ...Array<string>(4).fill('close s')]);
    });

    it('a seed that leaves nothing behind is forgotten', async () => {
      const { seed, admit } = agents.hooks;
      agents.hooks.seed = () => Promise.reject(new Error('no'));
      expect((await agents.seedSession('a', onHolder())).status).to.equal(500);
      agents.hooks.seed = seed;
      agents.hooks.admit = () => Promise.reject(new Error('no'));
      expect((await agents.seedSession('b', onHolder())).status).to.equal(500);
      agents.hooks.admit = admit;
      expect((await agents.seedSession(seedOf('c', { surplus: 1 }), onHolder())).status).to.equal(422);
      expect((await agents.closeSession(closeOf('d', { surplus: 1 }), onHolder())).status).to.equal(422);
      await expectNothingLeft();
    });

    it('a seed that leaves nothing behind is forgotten, though its client left long before it ended', async () => {
      const [begun, gate] = [new Gate(), new Gate()];
      agents.hooks.seed = async () => {
        begun.open();
        await gate.opened;
        throw new Error('no');
      };
      const leaving = new AbortController();
      const seed = agents.seedSession('s', { ...onHolder(), signal: leaving.signal }).catch(() => undefined);
      await begun.opened;
      leaving.abort();
      await seed;
      await wait(1300); // what lingers has gone by now
      expectClaimed();
      gate.open();
      await expectNothingLeft();
    });

    it('an open session stays, and so does one whose close has failed', async () => {
      await agents.seedSession('open', onHolder());
      await agents.seedSession('s', onHolder());
      const { close } = agents.hooks;
      agents.hooks.close = () => Promise.reject(new Error('not now'));
      expect((await agents.closeSession('s')).status).to.equal(500);
      agents.hooks.close = close;
      await wait(1500);
      expectClaimed('open');
      expectClaimed('s');
      expect((await agents.activate({ cookie: agentCookie('open') })).json).to.include({ session: 'open' });
      expect((await agents.closeSession('s')).json).to.deep.equal(receiptOf('s', given('s')));
      await agents.closeSession('open');
      await expectNothingLeft();
    });
  });
}

for (const [where, count, sessionCount] of [['one worker', 1, 2_000] as const, ['two workers', 2, 10_000] as const]) {
  it(`${sessionCount} agent sessions that were opened and closed leave nothing behind, on ${where}`, async () => {
    const stores = [new expressSession.MemoryStore(), new expressSession.MemoryStore()];
    agents = await startAgents({
      count,
      closeRetryWindowSeconds: 0.5,
      session: (worker) => ({ saveUninitialized: true, store: stores[worker] as expressSession.MemoryStore }),
    });
    const connections = new Agent({ keepAlive: true });
    const statuses: Record<number, number> = {};
    let next = 0;

    async function openAndCloseSome(): Promise<void> {
      for (let at = next++; at < sessionCount; at = next++) {
        const [one, other] = [agents.all[at % count], agents.all[(at + 1) % count]] as [Worker, Worker];
        for (const [{ url }, path, body] of [
          [one, '', seedOf(`s${at}`)] as const,
          [other, '/close', closeOf(`s${at}`)] as const,
        ]) {
          const status = await post(`${url}/v1/agent_sessions${path}`, body, connections);
          statuses[status] = (statuses[status] ?? 0) + 1;
        }
      }
    }

    await Promise.all(Array.from({ length: 16 }, openAndCloseSome));
    expect(statuses).to.deep.equal({ 200: 2 * sessionCount });
    expect(agents.calls).to.have.length(3 * sessionCount);
    await until(() => agents.size() === 0 && agents.claims().length === 0, 'nothing is left');
    for (const sessions of agents.sessions) expect([sessions.size, sessions.nextExpiry]).to.deep.equal([0, undefined]);
    for (const store of stores)
      expect(Object.keys((store as unknown as { sessions: object }).sessions)).to.deep.equal([]);
    connections.destroy();
  }).timeout(180_000);
}

/** Posts JSON over a connection that is used again. Returns the status of the reply. */
function post(url: string, json: object, agent: Agent): Promise<number> {
  return new Promise((resolve, reject) => {
    const headers = { 'Content-Type': 'application/json' };
    const request = httpRequest(url, { method: 'POST', agent, headers }, (response) => {
      response.resume().once('end', () => resolve(response.statusCode ?? 0));
    });
    request.once('error', reject).end(JSON.stringify(json));
  });
}
