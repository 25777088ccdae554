import { expect } from 'chai';
import { HeldClaims } from '../lib/held-claims.ts';

describe('HeldClaims', () => {
  it('knows what is held', () => {
    const held = new HeldClaims('a', () => undefined);
    expect(['a', 'b'].map((id) => held.has(id))).to.deep.equal([true, false]);
    held.add('b', () => undefined);
    expect(['a', 'b', 'c'].map((id) => held.has(id))).to.deep.equal([true, true, false]);
  });

  it('tells each claim, and lets it go, in the order in which they were made', () => {
    const events: string[] = [];
    const ends = (id: string) => () => void events.push(`end ${id}`);
    const held = new HeldClaims('a', ends('a'));
    held.add('b', ends('b'));
    held.add('c', ends('c'));
    held.end((id) => events.push(`tell ${id}`));
    expect(events).to.deep.equal(['tell a', 'end a', 'tell b', 'end b', 'tell c', 'end c']);
  });
});
