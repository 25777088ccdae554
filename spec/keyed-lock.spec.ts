import { expect } from 'chai';
import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate as turn } from 'node:timers/promises';
import { KeyedLock } from '../lib/keyed-lock.ts';
import { Gate } from './fixtures/routed.ts';

describe('KeyedLock', () => {
  let lock: KeyedLock;
  let steps: string[];

  beforeEach(() => {
    lock = new KeyedLock();
    steps = [];
  });

  /** A task that notes when it begins and ends, and ends when its gate opens. */
  function task(name: string, gate?: Gate): () => Promise<string> {
    return async () => {
      steps.push(`${name} begins`);
      await gate?.opened;
      steps.push(`${name} ends`);
      return name;
    };
  }

  it('gives what a task gives, whether that is a value or an error', async () => {
    expect(await lock.run('a', () => Promise.resolve(7))).to.equal(7);
    const error = new Error('no');
    expect(await lock.run('a', () => Promise.reject(error)).catch((caught: unknown) => caught)).to.equal(error);
    const thrown = lock.run('a', () => {
      throw error;
    });
    expect(await thrown.catch((caught: unknown) => caught)).to.equal(error);
    expect(await lock.run('a', () => Promise.reject(undefined as unknown as Error)).catch(() => 'none')).to.equal(
      'none',
    );
    expect(lock.isTaken('a')).to.equal(false);
  });

  it('lets one task at a time have a key, in the order in which they asked', async () => {
    const gate = new Gate();
    const all = [lock.run('a', task('1', gate)), lock.run('a', task('2')), lock.run('a', task('3'))];
    await turn();
    expect(steps).to.deep.equal(['1 begins']);
    gate.open();
    expect(await Promise.all(all)).to.deep.equal(['1', '2', '3']);
    expect(steps).to.deep.equal(['1 begins', '1 ends', '2 begins', '2 ends', '3 begins', '3 ends']);
  });

  it('keeps the order also for a task that asks as soon as another has ended', async () => {
    const gate = new Gate();
    const first = lock.run('a', task('1', gate)).then(() => lock.run('a', task('4')));
    const others = [lock.run('a', task('2')), lock.run('a', task('3'))];
    gate.open();
    await Promise.all([first, ...others]);
    expect(steps.filter((step) => step.endsWith('begins'))).to.deep.equal(
      ['1', '2', '3', '4'].map((name) => `${name} begins`),
    );
  });

  it('goes on behind a task that fails', async () => {
    const gate = new Gate();
    const failing = lock.run('a', () => gate.opened.then(() => Promise.reject(new Error('no'))));
    const next = lock.run('a', task('2'));
    gate.open();
    expect(await failing.catch((error: Error) => error.message)).to.equal('no');
    expect(await next).to.equal('2');
  });

  it('keeps no task waiting for one with another key', async () => {
    const gate = new Gate();
    const held = lock.run('a', task('held', gate));
    expect(await lock.run('b', task('other'))).to.equal('other');
    expect([lock.isTaken('a'), lock.isTaken('b')]).to.deep.equal([true, false]);
    gate.open();
    await held;
  });

  it('says that a key is taken, from when a task asks for it until the last has ended', async () => {
    const [one, two] = [new Gate(), new Gate()];
    expect(lock.isTaken('a')).to.equal(false);
    const first = lock.run('a', task('1', one));
    expect(lock.isTaken('a')).to.equal(true);
    const second = lock.run('a', task('2', two));
    one.open();
    await first;
    expect(lock.isTaken('a')).to.equal(true);
    two.open();
    await second;
    expect(lock.isTaken('a')).to.equal(false);
  });

  it('lets a task go on in the asynchronous context in which it was asked for', async () => {
    const context = new AsyncLocalStorage<string>();
    const gate = new Gate();
    const seen: unknown[] = [];
    const note = (): Promise<void> => Promise.resolve(void seen.push(context.getStore()));
    const all = [
      context.run('first', () => lock.run('a', () => gate.opened.then(note))),
      context.run('second', () => lock.run('a', note)),
      lock.run('a', note),
    ];
    context.run('third', () => gate.open());
    await Promise.all(all);
    expect(seen).to.deep.equal(['first', 'second', undefined]);
  });
});
