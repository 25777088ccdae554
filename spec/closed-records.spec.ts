import { setTimeout as wait } from 'node:timers/promises';
import { expect } from 'chai';
import { ClosedResourcesSessionRecords } from '../lib/closed-records.ts';

describe('ClosedResourcesSessionRecords', () => {
  let now: number;
  const clock = (): number => now;
  beforeEach(() => {
    now = 1000;
  });

  it('remembers a close for the window', () => {
    const records = new ClosedResourcesSessionRecords<string>({ clock });
    expect(records.get('s')).to.equal(undefined);
    expect(records.close('s', 'receipt')).to.equal('receipt');
    expect(records.get('s')).to.equal('receipt');
    expect(records.get('another')).to.equal(undefined);
    now = 1299.999;
    expect(records.get('s')).to.equal('receipt');
    now = 1300;
    expect(records.get('s')).to.equal(undefined);
  });

  it('lets the first close count: a repeated one changes neither the record nor its time', () => {
    const records = new ClosedResourcesSessionRecords<string>({ clock, closeRetryWindowSeconds: 10 });
    records.close('s', 'first');
    now = 1009;
    expect(records.close('s', 'second')).to.equal('first');
    expect(records.get('s')).to.equal('first');
    now = 1010;
    expect(records.get('s')).to.equal(undefined);
  });

  it('takes a close after the window for the first, swept or not', () => {
    const records = new ClosedResourcesSessionRecords<string>({ clock, closeRetryWindowSeconds: 10 });
    records.close('s', 'first');
    now = 1010;
    expect(records.close('s', 'second')).to.equal('second');
    now = 1019;
    expect(records.get('s')).to.equal('second');
    records.sweep(1020);
    expect(records.size).to.equal(0);
  });

  it('remembers a record that is undefined or false like any other', () => {
    const records = new ClosedResourcesSessionRecords<boolean | undefined>({ clock });
    expect(records.close('s', undefined)).to.equal(undefined);
    expect(records.close('s', true)).to.equal(undefined);
    expect(records.close('t', false)).to.equal(false);
    expect(records.close('t', true)).to.equal(false);
  });

  it('drops what has expired, and nothing else, when it is swept', () => {
    const records = new ClosedResourcesSessionRecords<number>({ clock });
    records.close('a', 1);
    now = 1001;
    records.close('b', 2);
    records.sweep(1299.999);
    expect(records.size).to.equal(2);
    records.sweep(1300);
    expect(records.size).to.equal(1);
    expect(records.get('b')).to.equal(2);
  });

  it('leaves nothing after the window, with no further call', async () => {
    const records = new ClosedResourcesSessionRecords<number>({ closeRetryWindowSeconds: 0.01 });
    for (const closed of [2000, 1]) {
      for (let session = 0; session < closed; session++) records.close(`s${session}`, session);
      expect(records.size).to.equal(closed);
      for (let waits = 0; records.size > 0 && waits < 2000; waits++) await wait(5);
      expect(records.size).to.equal(0);
    }
  });

  it('refuses a window that is no duration, and names it', () => {
    for (const closeRetryWindowSeconds of [0, -1, Number.NaN, Infinity]) {
      expect(() => new ClosedResourcesSessionRecords({ closeRetryWindowSeconds })).to.throw(
        RangeError,
        'closeRetryWindowSeconds',
      );
    }
    const notANumber = { closeRetryWindowSeconds: '300' as unknown as number };
    expect(() => new ClosedResourcesSessionRecords(notANumber)).to.throw(TypeError, 'closeRetryWindowSeconds');
  });
});
