import { expect } from 'chai';
import { Judge, Ledger, Session } from './soak/judge.ts';
import { flatness } from './soak/samples.ts';

describe('the ledger of the soak', () => {
  type Execution = Parameters<Ledger['enter']>[0];
  function ledgerOf(executions: readonly Execution[]): Ledger {
    const ledger = new Ledger();
    for (const execution of executions) ledger.enter(execution);
    return ledger;
  }
  const executions: readonly Execution[] = ['once', 'not at all', 'perhaps', 'once'];
  const [first, second, third, fourth] = [1, 4, 16, 64];

  it('gives each increment an amount that tells it from all others', () => {
    const ledger = new Ledger();
    const amounts = Array.from({ length: Ledger.capacity }, () => {
      const amount = ledger.nextAmount;
      ledger.enter('once');
      return amount;
    });
    expect(amounts.slice(0, 4)).to.deep.equal([first, second, third, fourth]);
    expect(amounts.reduce((sum, amount) => sum + 2 * amount)).to.satisfy(Number.isSafeInteger);
  });

  for (const count of [first + fourth, first + third + fourth]) {
    it(`finds nothing wrong with ${count}, which is all that was acknowledged and perhaps what was not`, () => {
      expect(ledgerOf(executions).faultIn(count)).to.equal(undefined);
    });
  }

  const wrong: Record<string, unknown> = {
    'an acknowledged increment twice': 2 * first + fourth,
    'an acknowledged increment not at all': fourth,
    'a refused increment': first + second + fourth,
    'one without an answer twice': first + 2 * third + fourth,
    'what was never sent': first + fourth + 256,
    nothing: 0,
    'no number': null,
  };
  for (const [what, count] of Object.entries(wrong)) {
    it(`sees that a count has ${what}`, () => {
      expect(ledgerOf(executions).faultIn(count)).to.be.a('string');
    });
  }
});

describe('the judge of the soak', () => {
  const times = { begin: 10_000, end: 10_100 };
  const reply = (status: number, worker: number) => ({
    ...times,
    status,
    headers: {},
    body: JSON.stringify({ worker }),
  });
  const ended = (isOwnDoing: boolean) => ({ ...times, status: undefined, reason: 'socket hang up', isOwnDoing });

  function judged(killed: readonly number[], ...outcomes: Parameters<Session['judge']>[1][]): number {
    const judge = new Judge();
    for (const pid of killed) judge.kills.push({ pid, at: times.begin + 50 });
    const session = new Session(judge);
    for (const outcome of outcomes) session.judge('call', outcome, JSON.parse);
    return judge.faultCount;
  }

  it('lets a refusal pass where the worker of the session was killed, and nowhere else', () => {
    for (const status of [410, 502, 503]) {
      expect(judged([1], reply(200, 1), reply(status, 0)), `${status}`).to.equal(0);
      expect(judged([2], reply(200, 1), reply(status, 0)), `${status}`).to.equal(1);
    }
  });

  it('lets a connection end where a worker was killed then, and where the client left', () => {
    expect(judged([2], ended(false))).to.equal(0);
    expect(judged([], ended(true))).to.equal(0);
    expect(judged([], ended(false))).to.equal(1);
  });

  it('sees an answer of another worker, one after the session was gone, and any other status', () => {
    expect(judged([], reply(200, 1), reply(200, 1))).to.equal(0);
    expect(judged([1], reply(200, 1), reply(200, 2))).to.equal(1);
    expect(judged([1], reply(200, 1), reply(410, 0), reply(200, 1))).to.equal(1);
    expect(judged([1], reply(200, 1), reply(409, 1))).to.equal(1);
    expect(judged([1], reply(200, 1), reply(500, 1))).to.equal(1);
  });
});

describe('the flatness of a series', () => {
  const seriesOf = (valueAt: (at: number) => number) =>
    Array.from({ length: 41 }, (_, index) => ({ at: index / 40, value: valueAt(index / 40) }));

  it('takes no notice of what happens before the second quarter, nor of what a measure varies by', () => {
    const warm = seriesOf((at) => (at < 0.25 ? at * 4_000 : 1_000 + 50 * Math.sin(at * 100)));
    expect(flatness('heap', warm, 0)).to.include({ isFlat: true });
  });

  it('sees steady growth beyond the margin', () => {
    expect(
      flatness(
        'heap',
        seriesOf((at) => 1_000 * at),
        200,
      ),
    ).to.include({ isFlat: false });
    expect(
      flatness(
        'heap',
        seriesOf((at) => 1_000 * at),
        500,
      ),
    ).to.include({ isFlat: true });
  });
});
