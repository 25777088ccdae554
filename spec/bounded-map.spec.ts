import { expect } from 'chai';
import { BoundedMap } from '../lib/bounded-map.ts';

describe('a bounded map', () => {
  it('forgets the oldest entry for another, and none for one that is set again', () => {
    const map = new BoundedMap<string | undefined, number>(2);
    map.set(undefined, 1).set('b', 2).set('b', 3);
    expect([...map]).to.deep.equal([
      [undefined, 1],
      ['b', 3],
    ]);
    map.set('c', 4);
    expect([...map]).to.deep.equal([
      ['b', 3],
      ['c', 4],
    ]);
  });
});
