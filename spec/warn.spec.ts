import { expect } from 'chai';
import { inspect } from 'node:util';
import { warn } from '../lib/warn.ts';
import { warningsOf } from './fixtures/warnings.ts';

describe('warn()', () => {
  async function warningOf(cause: unknown): Promise<{ message: string; detail?: string; code?: string; name: string }> {
    const [warning] = await warningsOf(() => warn('It failed.', cause, 'IT_FAILED'));
    return warning as never;
  }

  it('makes a warning of the process, with the code and the stack of what was thrown', async () => {
    const warning = await warningOf(new Error('why'));
    expect(warning).to.include({ name: 'SessionRoutingWarning', message: 'It failed.', code: 'IT_FAILED' });
    expect(warning.detail).to.match(/^Error: why\n +at /);
  });

  const unseen = Object.assign(new Error(), {
    [inspect.custom]() {
      throw new Error('cannot be shown');
    },
  });
  for (const [what, thrown, shown] of [
    ['undefined', undefined, 'undefined'],
    ['a string', 'why', "'why'"],
    ['an object without a prototype', Object.create(null), '[Object: null prototype] {}'],
    ['an error that cannot be shown', unseen, 'an error that cannot be shown'],
  ] as const) {
    it(`does so of ${what}`, async () => {
      expect((await warningOf(thrown)).detail).to.equal(shown);
    });
  }
});
