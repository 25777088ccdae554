import { expect } from 'chai';
import { Cleanup, CleanupError } from '../lib/client-cleanup.ts';
import { delaySeconds } from '../lib/client-retries.ts';
import { warningsOf } from './fixtures/warnings.ts';

describe('Cleanup', () => {
  const quiet = { onFailure: () => undefined };

  it('runs its steps one after another, the last that was added first', async () => {
    const cleanup = new Cleanup();
    const events: string[] = [];
    for (const name of ['a', 'b', 'c']) {
      cleanup.add(name, async () => {
        events.push(`${name} begins`);
        await null;
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
    for (const cleanup of [new Cleanup(), told]) {
      cleanup.add('It', () => Promise.reject(new Error('no')));
      const warnings = await warningsOf(async () => void (await cleanup.run()));
      expect(warnings.map(({ message, code }) => [message, code])).to.deep.equal([
        ['It failed: no', 'SESSION_CLEANUP_FAILED'],
      ]);
    }
  });

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

  it('has one deadline, of which each step gets its share, and aborts the signals of those that are late', async () => {
    const cleanup = new Cleanup({ seconds: 0.3, ...quiet });
    const shares: number[] = [];
    const reasons: string[] = [];
    for (const name of ['third', 'second', 'first']) {
      cleanup.add(name, (signal, seconds) => {
        shares.push(seconds);
        signal.addEventListener('abort', () => reasons.push(signal.reason.message));
        return name === 'second' ? null : new Promise(() => undefined);
      });
    }
    const failures = await cleanup.run();
    expect(failures.map(({ message }) => message.split(' ', 2).join(' '))).to.deep.equal([
      'first failed:',
      'third failed:',
    ]);
    expect(reasons).to.have.length(2);
    const [first = 0, second = 0, third = 0] = shares;
    expect(first).to.be.within(0.09, 0.1);
    expect(second).to.be.within(0.05, 0.1);
    // What the second did not need.
    expect(third).to.be.above(second);
    expect(first + third).to.be.at.most(0.3);
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
