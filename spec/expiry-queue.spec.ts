import { randomInt } from 'node:crypto';
import { expect } from 'chai';
import { ExpiryQueue } from '../lib/expiry-queue.ts';

describe('ExpiryQueue', () => {
  it('is empty at first', () => {
    const queue = new ExpiryQueue();
    expect(queue.size).to.equal(0);
    expect(queue.next).to.equal(undefined);
    expect(queue.take(Infinity)).to.deep.equal([]);
    expect(queue.has('a')).to.equal(false);
    expect(queue.get('a')).to.equal(undefined);
    expect(queue.delete('a')).to.equal(false);
  });

  it('gives what has expired, soonest first, and removes it', () => {
    const queue = new ExpiryQueue();
    for (const [id, at] of Object.entries({ c: 3, a: 1, d: 4, b: 2 })) queue.set(id, at);
    expect(queue.next).to.equal(1);
    expect(queue.take(0.999)).to.deep.equal([]);
    expect(queue.take(3)).to.deep.equal(['a', 'b', 'c']);
    expect(queue.size).to.equal(1);
    expect(queue.next).to.equal(4);
    expect(queue.take(3)).to.deep.equal([]);
  });

  it('gives no more than it is asked for', () => {
    const queue = new ExpiryQueue();
    for (const [id, at] of Object.entries({ a: 1, b: 2, c: 3 })) queue.set(id, at);
    expect(queue.take(9, 0)).to.deep.equal([]);
    expect(queue.take(9, 2)).to.deep.equal(['a', 'b']);
    expect(queue.take(9, 2)).to.deep.equal(['c']);
  });

  it('goes by the last time that was set, be it later or sooner', () => {
    const queue = new ExpiryQueue();
    queue.set('a', 1);
    queue.set('b', 2);
    queue.set('a', 5);
    expect(queue.next).to.equal(2);
    expect(queue.take(4)).to.deep.equal(['b']);
    queue.set('a', 3);
    expect(queue.next).to.equal(3);
    expect(queue.get('a')).to.equal(3);
    expect(queue.take(4)).to.deep.equal(['a']);
    expect(queue.take(9)).to.deep.equal([]);
  });

  it('forgets what is deleted, and takes it again as new', () => {
    const queue = new ExpiryQueue();
    queue.set('a', 1);
    queue.set('b', 2);
    expect(queue.delete('a')).to.equal(true);
    expect(queue.next).to.equal(2);
    queue.set('a', 3);
    expect(queue.take(1)).to.deep.equal([]);
    expect(queue.take(3)).to.deep.equal(['b', 'a']);
  });

  it('forgets everything when it is cleared', () => {
    const queue = new ExpiryQueue();
    queue.set('a', 1);
    queue.clear();
    expect([queue.size, queue.next, queue.has('a')]).to.deep.equal([0, undefined, false]);
    queue.set('b', 2);
    expect(queue.take(2)).to.deep.equal(['b']);
  });

  it('keeps what never expires', () => {
    const queue = new ExpiryQueue();
    queue.set('a', Infinity);
    expect(queue.take(Number.MAX_VALUE)).to.deep.equal([]);
    expect(queue.next).to.equal(Infinity);
  });

  it('agrees with a sorted list, whatever is done to both', () => {
    const queue = new ExpiryQueue();
    const times = new Map<string, number>();
    const expired = (now: number): [string, number][] =>
      [...times].filter(([, at]) => at <= now).toSorted(([, one], [, other]) => one - other);
    let now = 0;
    for (let step = 0; step < 20_000; step++) {
      const id = `id ${randomInt(300)}`;
      const action = randomInt(10);
      if (action < 7) {
        const at = now + randomInt(1000);
        queue.set(id, at);
        times.set(id, at);
      } else if (action < 9) {
        expect(queue.delete(id)).to.equal(times.delete(id));
      } else {
        now += randomInt(30);
        const limit = randomInt(20);
        const due = expired(now);
        const taken = queue.take(now, limit);
        expect(taken).to.have.length(Math.min(limit, due.length));
        // IDs that expire at the same time may come in either order.
        expect(taken.map((one) => times.get(one))).to.deep.equal(due.slice(0, limit).map(([, at]) => at));
        for (const one of taken) times.delete(one);
      }
      expect(queue.size).to.equal(times.size);
      expect(queue.get(id)).to.equal(times.get(id));
      if (step % 50 === 0) expect(queue.next).to.equal(expired(Infinity)[0]?.[1]);
    }
  });
});
