import { expect } from 'chai';
import type { SessionRequest } from '../lib/lifetimes.ts';
import { NamedSessionLifetimes, type NamedSessionLifetimesOptions } from '../lib/named-lifetimes.ts';
import { warningsOf } from './fixtures/warnings.ts';

let now: number;
const clock = (): number => now;

function create(options: NamedSessionLifetimesOptions = {}): NamedSessionLifetimes {
  return new NamedSessionLifetimes({
    clock,
    isStart: ({ path }) => path === '/start',
    isEnd: ({ path }, status) => path === '/end' && status < 300,
    ...options,
  });
}

function at(path: string): SessionRequest {
  return { method: 'POST', path, headers: {} };
}

const nothing = { size: 0, next: undefined, holds: false };

function seen(lifetimes: NamedSessionLifetimes, sessionId = 's'): object {
  return { size: lifetimes.size, next: lifetimes.nextExpiry, holds: lifetimes.holds(sessionId) };
}

describe('NamedSessionLifetimes', () => {
  beforeEach(() => {
    now = 1000;
  });

  it('holds nothing of a session that it has not heard of', () => {
    expect(seen(create())).to.deep.equal(nothing);
  });

  it('tells what starts a session', () => {
    expect([create().starts(at('/start')), create().starts(at('/end'))]).to.deep.equal([true, false]);
    expect(new NamedSessionLifetimes().starts(at('/start'))).to.equal(false);
  });

  describe('holds a session without limit', () => {
    const opening: Record<string, (lifetimes: NamedSessionLifetimes) => void> = {
      'that the app has opened': (lifetimes) => lifetimes.opened('s'),
      'that a start has opened': (lifetimes) => lifetimes.served('s', at('/start'), 201),
      'that is opened while it is idle': (lifetimes) => {
        lifetimes.served('s', at('/use'), 200);
        lifetimes.opened('s');
      },
      'that is opened twice': (lifetimes) => {
        lifetimes.opened('s');
        lifetimes.served('s', at('/start'), 200);
      },
      'that is used': (lifetimes) => {
        lifetimes.opened('s');
        lifetimes.served('s', at('/use'), 200);
      },
      'whose end fails': (lifetimes) => {
        lifetimes.opened('s');
        lifetimes.served('s', at('/end'), 500);
        lifetimes.served('s', at('/end'), undefined);
      },
      'whose second start fails': (lifetimes) => {
        lifetimes.opened('s');
        for (const status of [400, 409, 500, 302, undefined]) lifetimes.served('s', at('/start'), status);
      },
      'that has ended and is opened again': (lifetimes) => {
        lifetimes.opened('s');
        lifetimes.ended('s');
        lifetimes.opened('s');
      },
    };
    for (const [which, open] of Object.entries(opening)) {
      it(which, () => {
        const lifetimes = create();
        open(lifetimes);
        expect(seen(lifetimes)).to.deep.equal({ size: 1, next: undefined, holds: true });
        expect(lifetimes.sweep(Infinity)).to.deep.equal([]);
        expect(lifetimes.holds('s')).to.equal(true);
      });
    }
  });

  describe('holds a session for idleSeconds', () => {
    for (const status of [200, 204, 302, 500, 503, undefined]) {
      it(`after a request that nothing opened, and whose status is ${status}`, () => {
        const lifetimes = create({ idleSeconds: 60 });
        lifetimes.served('s', at('/use'), status);
        expect(seen(lifetimes)).to.deep.equal({ size: 1, next: 1060, holds: true });
        expect(lifetimes.sweep(1059.9)).to.deep.equal([]);
        expect(lifetimes.sweep(1060)).to.deep.equal(['s']);
        expect(seen(lifetimes)).to.deep.equal(nothing);
      });
    }

    for (const status of [302, 500, undefined]) {
      it(`after a start whose status is ${status}`, () => {
        const lifetimes = create({ idleSeconds: 60 });
        lifetimes.served('s', at('/start'), status);
        expect(lifetimes.nextExpiry).to.equal(1060);
      });
    }

    it('of five minutes by default', () => {
      const lifetimes = new NamedSessionLifetimes({ clock });
      lifetimes.served('s', at('/start'), 200);
      expect(lifetimes.nextExpiry).to.equal(1300);
    });

    it('counted from its last request', () => {
      const lifetimes = create({ idleSeconds: 60 });
      lifetimes.served('s', at('/use'), 200);
      now = 1030;
      lifetimes.served('s', at('/use'), 200);
      lifetimes.served('other', at('/use'), 200);
      expect(lifetimes.sweep(1089)).to.deep.equal([]);
      expect(lifetimes.sweep(1090, 1)).to.have.length(1);
      expect(lifetimes.sweep(1090, 1)).to.have.length(1);
      expect(lifetimes.size).to.equal(0);
    });

    it('that a refused request does not make longer', () => {
      const lifetimes = create({ idleSeconds: 60 });
      lifetimes.served('s', at('/use'), 200);
      now = 1030;
      lifetimes.served('s', at('/use'), 404);
      expect(lifetimes.nextExpiry).to.equal(1060);
    });
  });

  describe('holds nothing of a session', () => {
    for (const status of [400, 401, 404, 409, 410, 499]) {
      it(`that all it heard of was refused with ${status}`, () => {
        const lifetimes = create();
        lifetimes.served('s', at('/use'), status);
        lifetimes.served('s', at('/start'), status);
        expect(seen(lifetimes)).to.deep.equal(nothing);
      });
    }

    it('with idleSeconds: 0, unless it is opened', () => {
      const lifetimes = create({ idleSeconds: 0 });
      for (const status of [200, 500, undefined]) lifetimes.served('s', at('/use'), status);
      expect(seen(lifetimes)).to.deep.equal(nothing);
      lifetimes.served('s', at('/start'), 200);
      expect(lifetimes.holds('s')).to.equal(true);
    });

    it('that has ended, open or idle or unknown', () => {
      const lifetimes = create();
      lifetimes.opened('open');
      lifetimes.served('idle', at('/use'), 200);
      for (const sessionId of ['open', 'idle', 'unknown']) lifetimes.ended(sessionId);
      expect(lifetimes.size).to.equal(0);
      expect(lifetimes.nextExpiry).to.equal(undefined);
    });

    it('that a request has ended, open or idle', () => {
      const lifetimes = create();
      lifetimes.opened('open');
      lifetimes.served('idle', at('/use'), 200);
      for (const sessionId of ['open', 'idle']) lifetimes.served(sessionId, at('/end'), 200);
      expect([lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([0, undefined]);
    });
  });

  describe('where the app says which sessions are open', () => {
    let open: Set<string>;
    let asked: string[];
    beforeEach(() => {
      open = new Set();
      asked = [];
    });
    const isOpen = (sessionId: string): boolean => {
      asked.push(sessionId);
      return open.has(sessionId);
    };

    it('asks it after each request, whatever that was, and goes by nothing else', () => {
      const lifetimes = create({ isOpen });
      for (const path of ['/start', '/use', '/end']) {
        for (const status of [200, 404, 500, undefined]) {
          open.clear();
          lifetimes.served('s', at(path), status);
          expect(seen(lifetimes), `${path} ${status}`).to.deep.equal(nothing);
          open.add('s');
          lifetimes.served('s', at(path), status);
          expect(seen(lifetimes), `${path} ${status}`).to.deep.equal({ size: 1, next: 1030, holds: true });
        }
      }
      expect(asked).to.have.length(24);
    });

    it('asks every 30 seconds of a session that no request comes for, and lets it go', () => {
      const lifetimes = create({ isOpen });
      open.add('s');
      lifetimes.served('s', at('/use'), 200);
      expect(lifetimes.sweep(1029)).to.deep.equal([]);
      expect(asked).to.have.length(1);
      expect(lifetimes.sweep(1030)).to.deep.equal([]);
      expect(lifetimes.nextExpiry).to.equal(1060);
      open.clear();
      expect(lifetimes.sweep(1060)).to.deep.equal(['s']);
      expect(seen(lifetimes)).to.deep.equal(nothing);
    });

    it('asks of one that was claimed, too, but not at once', () => {
      const lifetimes = create({ isOpen });
      lifetimes.opened('s');
      expect([asked, lifetimes.holds('s')]).to.deep.equal([[], true]);
      expect(lifetimes.sweep(1030)).to.deep.equal(['s']);
    });

    it('asks no more of one that has ended', () => {
      const lifetimes = create({ isOpen });
      lifetimes.opened('s');
      lifetimes.ended('s');
      expect(lifetimes.sweep(Infinity)).to.deep.equal([]);
      expect(asked).to.deep.equal([]);
    });

    it('keeps a session that it cannot tell of, and warns', async () => {
      let fails = true;
      const lifetimes = create({
        isOpen(sessionId) {
          if (fails) throw new Error('no database');
          return isOpen(sessionId);
        },
      });
      const warnings = await warningsOf(() => {
        lifetimes.served('s', at('/use'), 200);
        expect(lifetimes.sweep(1030)).to.deep.equal([]);
        expect(lifetimes.holds('s')).to.equal(true);
      });
      expect(warnings.map(({ message }) => message)).to.deep.equal(
        Array.from({ length: 2 }, () => 'The function isOpen of a kind of session failed.'),
      );
      fails = false;
      expect(lifetimes.sweep(1060)).to.deep.equal(['s']);
    });

    it('asks of 10,000 in parts, and holds none once all are over', () => {
      const lifetimes = create({ isOpen });
      const ids = Array.from({ length: 10_000 }, (_, index) => `s${index}`);
      for (const id of ids) {
        open.add(id);
        lifetimes.served(id, at('/use'), 200);
      }
      expect([lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([10_000, 1030]);
      open.clear();
      asked = [];
      const gone: string[] = [];
      while ((lifetimes.nextExpiry ?? Infinity) <= 1030) {
        const before = asked.length;
        gone.push(...lifetimes.sweep(1030, 100));
        expect(asked.length - before).to.be.within(1, 1000);
      }
      expect(new Set(gone)).to.deep.equal(new Set(ids));
      expect(gone).to.have.length(10_000);
      expect(seen(lifetimes, 's0')).to.deep.equal(nothing);
    });
  });

  it('holds none of 10,000 once they have ended, or expired', () => {
    const lifetimes = create({ idleSeconds: 60 });
    for (let index = 0; index < 10_000; index++) {
      if (index % 2 === 0) lifetimes.served(`s${index}`, at('/use'), 200);
      else lifetimes.opened(`s${index}`);
    }
    expect(lifetimes.size).to.equal(10_000);
    const gone: string[] = [];
    while ((lifetimes.nextExpiry ?? Infinity) <= 1060) gone.push(...lifetimes.sweep(1060, 100));
    expect([gone.length, lifetimes.size]).to.deep.equal([5_000, 5_000]);
    for (let index = 1; index < 10_000; index += 2) lifetimes.ended(`s${index}`);
    expect([lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([0, undefined]);
  });
});
