import { expect } from 'chai';
import { setImmediate as turn } from 'node:timers/promises';
import { Cleanup, CleanupError } from '../lib/client-cleanup.ts';
import { delaySeconds } from '../lib/client-retries.ts';
import { warningsOf } from './fixtures/warnings.ts';

describe('Cleanup', () => {
  it('runs its steps one after another, the last that was added first', async () => {
    const cleanup = new Cleanup();
    const events: string[] = [];
    for (const name of ['a', 'b', 'c']) {
      cleanup.add(name, async () => {
        events.push(`${name} begins`);
        await turn();
        events.push(`${name} ends`);
      });
    }
    expect(await cleanup.run()).to.deep.equal([]);
    expect(events).to.deep.equal(['c begins', 'c ends', 'b begins', 'b ends', 'a begins', 'a ends']);
  });

  it('goes on where a step fails, and gives and reports each failure', async () => {
    const reported: CleanupError[] = [];
    const cleanup = new Cleanup({ onFailure: (error) => void reported.push(error) });
    const cause = new Error('the cause');
    let ran = false;
    cleanup.add('The first', () => void (ran = true));
    cleanup.add('The second', () => Promise.reject(cause));
    cleanup.add('The third', () => {
      throw 'a string';
    });
    const failures = await cleanup.run();
    expect(failures).to.deep.equal(reported);
    expect(failures.map((error) => [error instanceof CleanupError, error.message, error.cause])).to.deep.equal([
      [true, 'The third failed: a string', 'a string'],
      [true, 'The second failed: the cause', cause],
    ]);
    expect(ran).to.equal(true);
  });

  it('makes a warning of a failure, also where whoever is to be told throws', async () => {
    const told = new Cleanup({
      onFailure: () => {
        throw new Error('not me');
      },
    });
    const toldLater = new Cleanup({
      onFailure: async () => {
        throw new Error('nor me');
      },
    });
    for (const cleanup of [new Cleanup(), told, toldLater]) {
      cleanup.add('It', () => Promise.reject(new Error('no')));
      const warnings = await warningsOf(async () => void (await cleanup.run()));
      expect(warnings.map(({ message, code }) => [message, code])).to.deep.equal([
        ['It failed: no', 'SESSION_CLEANUP_FAILED'],
      ]);
    }
  });

  for (const options of [{ seconds: Infinity }, { seconds: 1e8 }, { seconds: NaN }, { second: 1 }, { onFailure: 1 }]) {
    it(`refuses ${JSON.stringify(options)} with a TypeError`, () => {
      expect(() => new Cleanup(options as object)).to.throw(TypeError, 'Cleanup');
    });
  }

  it('runs once, however often it is asked to', async () => {
    const cleanup = new Cleanup();
    let runs = 0;
    cleanup.add('It', () => void runs++);
    const [one, other] = await Promise.all([cleanup.run(), cleanup.run()]);
    expect(one).to.equal(other);
    await cleanup.run();
    expect(runs).to.equal(1);
  });

  it('does not run what was removed, and what ran alone not again', async () => {
    const cleanup = new Cleanup();
    const runs: string[] = [];
    const removed = cleanup.add('removed', () => void runs.push('removed'));
    const alone = cleanup.add('alone', () => void runs.push('alone'));
    removed.remove();
    await removed.run();
    await Promise.all([alone.run(), alone.run()]);
    await alone.run();
    await cleanup.run();
    expect(runs).to.deep.equal(['alone']);
  });

  it('waits for a step that runs alone', async () => {
    const cleanup = new Cleanup();
    let end = (): void => undefined;
    const ended: string[] = [];
    const step = cleanup.add('It', () => new Promise<void>((resolve) => (end = resolve)));
    const alone = step.run().then(() => ended.push('step'));
    const all = cleanup.run().then(() => ended.push('all'));
    end();
    await Promise.all([alone, all]);
    expect(ended).to.deep.equal(['step', 'all']);
  });

  it('runs what is added meanwhile, and takes nothing more after that', async () => {
    const cleanup = new Cleanup();
    let ran = false;
    cleanup.add('first', () => void cleanup.add('second', () => void (ran = true)));
    await cleanup.run();
    expect(ran).to.equal(true);
    expect(() => cleanup.add('third', () => undefined)).to.throw(/over.*third/);
  });

  it('has one deadline: each step gets an equal share of the time that is left', async () => {
    let now = 100;
    const cleanup = new Cleanup({ seconds: 30, clock: () => now, onFailure: () => undefined });
    const shares: number[] = [];
    for (const takes of [1, 40, 5, 2]) {
      cleanup.add(`Takes ${takes}`, (_signal, seconds) => {
        shares.push(seconds);
        now += takes;
      });
    }
    await cleanup.run();
    // 30 for four, 28 for three, 23 for two; and then it is too late.
    expect(shares).to.deep.equal([30 / 4, 28 / 3, 23 / 2, 0]);
  });

  it('aborts the signal of a step that is late, and goes on', async () => {
    const cleanup = new Cleanup({ seconds: 0.1, onFailure: () => undefined });
    let reason: unknown;
    let ran = false;
    cleanup.add('The first', () => void (ran = true));
    cleanup.add('The second', (signal) => {
      signal.addEventListener('abort', () => (reason = signal.reason));
      return new Promise(() => undefined);
    });
    const [failure, ...others] = await cleanup.run();
    expect(failure?.message).to.match(/^The second failed: it was not done in 0\.0[45]\d* s$/);
    expect([failure?.cause, others, ran]).to.deep.equal([reason, [], true]);
  });
});

describe('delaySeconds()', () => {
  const retries = { limit: 9, firstDelaySeconds: 0.1, maximumDelaySeconds: 1 };
  const delays = (random: number): number[] =>
    [0, 1, 2, 3, 4, 50].map((number) => delaySeconds(retries, number, random));

  it('doubles from the first delay to the maximum', () => {
    expect(delays(0)).to.deep.equal([0.1, 0.2, 0.4, 0.8, 1, 1]);
  });

  it('takes up to half of it off by chance', () => {
    expect(delays(0.5)).to.deep.equal([0, 1, 2, 3, 4, 5].map((n) => Math.min(1, 0.1 * 2 ** n) * 0.75));
    for (let n = 0; n < 100; n++) expect(delaySeconds(retries, 0)).to.be.within(0.05, 0.1);
  });
});
