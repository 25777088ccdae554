import { expect } from 'chai';
import type { SessionLifetimes } from '../lib/lifetimes.ts';
import { AgentSessionLifetimes, type AgentSessionHolder } from '../lib/agent-lifetimes.ts';

describe('AgentSessionLifetimes', () => {
  const request = { method: 'POST', path: '/v1/agent_sessions', headers: {} };

  /** Records of two sessions, of which one expires. */
  function newHolder(): AgentSessionHolder & { asked: unknown[] } {
    const records = new Set(['open', 'closed']);
    const asked: unknown[] = [];
    return {
      asked,
      holdsAgentSession: (id) => records.has(id),
      expireAgentSessionRecords(now, limit) {
        asked.push([now, limit]);
        return now >= 5 && records.delete('closed') ? ['closed'] : [];
      },
      useAgentSessionClaims: (claims) => void asked.push(claims),
      get nextExpiry() {
        return records.has('closed') ? 5 : undefined;
      },
      get size() {
        return records.size;
      },
    };
  }

  it('hold what the records of the agent hold, and change nothing by themselves', () => {
    const holder = newHolder();
    const lifetimes: SessionLifetimes = new AgentSessionLifetimes(holder);
    lifetimes.served('other', request, 200);
    lifetimes.ended('open');
    expect(lifetimes.starts(request)).to.equal(false);
    expect(['open', 'closed', 'other'].map((id) => lifetimes.holds(id))).to.deep.equal([true, true, false]);
    expect([lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([2, 5]);
    expect(holder.asked).to.deep.equal([]);
  });

  it('sweep what the records let go, at the time and up to the number that are asked for', () => {
    const holder = newHolder();
    const lifetimes: SessionLifetimes = new AgentSessionLifetimes(holder);
    expect(lifetimes.sweep(4, 100)).to.deep.equal([]);
    expect(lifetimes.sweep(5)).to.deep.equal(['closed']);
    expect(holder.asked).to.deep.equal([
      [4, 100],
      [5, undefined],
    ]);
    expect([lifetimes.holds('closed'), lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([false, 1, undefined]);
  });
});
