import { expect } from 'chai';
import {
  ResourcesSessionLifetimes,
  WebSessionLifetimes,
  type ResourcesSessionLifetimesOptions,
  type SessionLifetimes,
  type SessionRequest,
} from '../lib/lifetimes.ts';

const WINDOW = 300;

let now: number;
const clock = (): number => now;

function request(path: string, rest: Partial<SessionRequest> = {}): SessionRequest {
  return { method: 'POST', path, headers: {}, ...rest };
}

/** Sweeps just before and just at the time that a session is expected to expire at, and expects it to. */
function expectExpiry(lifetimes: SessionLifetimes, sessionId: string, at: number): void {
  expect(lifetimes.nextExpiry).to.equal(at);
  expect(lifetimes.sweep(at - 0.001)).to.deep.equal([]);
  expect(lifetimes.holds(sessionId)).to.equal(true);
  expect(lifetimes.sweep(at)).to.deep.equal([sessionId]);
  expect(lifetimes.holds(sessionId)).to.equal(false);
  expect(lifetimes.size).to.equal(0);
}

function expectOpen(lifetimes: SessionLifetimes, sessionId: string): void {
  expect(lifetimes.nextExpiry).to.equal(undefined);
  expect(lifetimes.sweep(Infinity)).to.deep.equal([]);
  expect(lifetimes.holds(sessionId)).to.equal(true);
}

describe('ResourcesSessionLifetimes', () => {
  beforeEach(() => {
    now = 1000;
  });

  function create(options: ResourcesSessionLifetimesOptions = {}): ResourcesSessionLifetimes {
    return new ResourcesSessionLifetimes({ clock, ...options });
  }

  /** Lifetimes with one session, `s`, that a seed opened at 1000. It is 1010 now. */
  function withOpenSession(options: ResourcesSessionLifetimesOptions = {}): ResourcesSessionLifetimes {
    const lifetimes = create(options);
    lifetimes.served('s', request('/seed_session'), 200);
    now = 1010;
    return lifetimes;
  }

  it('holds nothing of a session that it has not heard of', () => {
    const lifetimes = create();
    expect([lifetimes.holds('s'), lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([false, 0, undefined]);
  });

  describe('holds a session without limit', () => {
    const declared = { starts: ['/reset', 'PUT /games/new'] };

    const opening: Record<string, SessionRequest> = {
      'a seed': request('/seed_session'),
      'a seed in another spelling': request('/Seed_Session/'),
      'a seed under a rollout': request('/ng-rollout/r1/seed_session'),
      'a declared start': request('/reset'),
      'a declared start of another method': request('/games/new', { method: 'PUT' }),
    };
    for (const [what, start] of Object.entries(opening)) {
      it(`after ${what}`, () => {
        const lifetimes = create(declared);
        expect(lifetimes.starts(start)).to.equal(true);
        lifetimes.served('s', start, 201);
        expectOpen(lifetimes, 's');
        expect(lifetimes.size).to.equal(1);
      });
    }

    const leavingOpen: Record<string, [SessionRequest, number | undefined]> = {
      'another request': [request('/increment_counter'), 200],
      'a request that fails': [request('/increment_counter'), 500],
      'another seed': [request('/seed_session'), 200],
      'a seed that fails': [request('/seed_session'), 500],
      'a seed that is refused': [request('/seed_session'), 409],
      'a seed without a reply': [request('/seed_session'), undefined],
      'a close that fails': [request('/close_session'), 500],
      'a close that is redirected': [request('/close_session'), 303],
      'a close without a reply': [request('/close_session'), undefined],
      'a verify that fails': [request('/verify'), 500],
      'a verify without a reply': [request('/verify'), undefined],
      'a verify that says that a close follows': [
        request('/verify', { headers: { 'x-ng-checkpoint-close-follows': 'true' } }),
        200,
      ],
      'a GET of the close route': [request('/close_session', { method: 'GET' }), 200],
      'a request below the close route': [request('/close_session/x'), 200],
    };
    for (const [what, [following, status]] of Object.entries(leavingOpen)) {
      it(`while it is open, after ${what}`, () => {
        const lifetimes = withOpenSession();
        lifetimes.served('s', following, status);
        expectOpen(lifetimes, 's');
      });
    }
  });

  describe('holds a session for the window after its last request', () => {
    const closeFollows = { 'x-ng-checkpoint-close-follows': 'true' };

    const ending: Record<string, SessionRequest> = {
      'a close': request('/close_session'),
      'a close under a rollout': request('/ng-rollout/r1/x/close_session/'),
      'a close that says that a close follows': request('/close_session', { headers: closeFollows }),
      'a verify': request('/verify'),
    };
    for (const [what, end] of Object.entries(ending)) {
      it(`once ${what} has ended it`, () => {
        const lifetimes = withOpenSession();
        lifetimes.served('s', end, 200);
        expect(lifetimes.size).to.equal(1);
        expectExpiry(lifetimes, 's', 1010 + WINDOW);
      });
    }

    it('once a terminal route has ended it', () => {
      const lifetimes = withOpenSession();
      lifetimes.ended('s');
      now = 1011;
      lifetimes.served('s', request('/finish'), 200);
      expectExpiry(lifetimes, 's', 1011 + WINDOW);
    });

    it('once a terminal route has ended it and nothing was served', () => {
      const lifetimes = withOpenSession();
      lifetimes.ended('s');
      expectExpiry(lifetimes, 's', 1010 + WINDOW);
    });

    const neverOpen: Record<string, [SessionRequest, number | undefined]> = {
      'a seed that failed': [request('/seed_session'), 500],
      'a seed that was refused': [request('/seed_session'), 422],
      'a seed without a reply': [request('/seed_session'), undefined],
      'a request without a seed': [request('/increment_counter'), 200],
      'a verify without a seed': [request('/verify'), 200],
      'a close without a seed': [request('/close_session'), 200],
    };
    for (const [what, [only, status]] of Object.entries(neverOpen)) {
      it(`if ${what} was all there was`, () => {
        const lifetimes = create();
        lifetimes.served('s', only, status);
        expectExpiry(lifetimes, 's', 1000 + WINDOW);
      });
    }

    const later: Record<string, [SessionRequest, number | undefined]> = {
      'any other request': [request('/increment_counter'), 200],
      'a failed request': [request('/increment_counter'), 500],
      'a repeated close': [request('/close_session'), 200],
      'a cleanup close that fails': [request('/close_session'), 500],
      'a refused seed': [request('/seed_session'), 409],
      'a request without a reply': [request('/increment_counter'), undefined],
    };
    for (const [what, [following, status]] of Object.entries(later)) {
      it(`which ${what} restarts`, () => {
        const lifetimes = withOpenSession();
        lifetimes.served('s', request('/close_session'), 200);
        now = 1200;
        lifetimes.served('s', following, status);
        expectExpiry(lifetimes, 's', 1200 + WINDOW);
      });
    }

    it('and for as long again as it is asked to', () => {
      const lifetimes = create({ closeRetryWindowSeconds: 0.25 });
      lifetimes.served('s', request('/increment_counter'), 200);
      expectExpiry(lifetimes, 's', 1000.25);
    });
  });

  it('opens a session again whose seed succeeds at last', () => {
    const lifetimes = create();
    lifetimes.served('s', request('/seed_session'), 500);
    now = 1001;
    lifetimes.served('s', request('/seed_session'), 200);
    expectOpen(lifetimes, 's');
    expect(lifetimes.size).to.equal(1);
  });

  it('goes by the paths and the header field that it is given', () => {
    const lifetimes = withOpenSession({
      seedPath: '/open',
      closePath: '/shut',
      ends: ['/score'],
      closeFollowsHeader: 'X-More',
    });
    expect(lifetimes.starts(request('/seed_session'))).to.equal(false);
    lifetimes.served('t', request('/open'), 200);
    lifetimes.served('t', request('/verify'), 200);
    lifetimes.served('t', request('/close_session'), 200);
    lifetimes.served('t', request('/score', { headers: { 'x-more': '' } }), 200);
    expect(lifetimes.sweep(Infinity)).to.deep.equal(['s']);
    expect(lifetimes.holds('t')).to.equal(true);
    lifetimes.served('t', request('/score'), 200);
    expectExpiry(lifetimes, 't', 1010 + WINDOW);
  });

  it('sweeps the soonest first, and no more at once than it is asked to', () => {
    const lifetimes = create();
    for (const sessionId of ['a', 'b', 'c']) {
      lifetimes.served(sessionId, request('/increment_counter'), 200);
      now++;
    }
    expect(lifetimes.sweep(2000, 2)).to.deep.equal(['a', 'b']);
    expect(lifetimes.size).to.equal(1);
    expect(lifetimes.sweep(2000, 2)).to.deep.equal(['c']);
  });

  it('runs by a clock of its own if it is given none', () => {
    const lifetimes = new ResourcesSessionLifetimes();
    const before = performance.now() / 1000;
    lifetimes.served('s', request('/increment_counter'), 200);
    expect(lifetimes.nextExpiry).to.be.within(before + WINDOW, performance.now() / 1000 + WINDOW);
  });
});

describe('WebSessionLifetimes', () => {
  beforeEach(() => {
    now = 1000;
  });

  function serve(lifetimes: WebSessionLifetimes, session: SessionRequest['session']): void {
    lifetimes.served('s', request('/', { session }));
  }

  const DAY = 86_400;

  const held: Record<string, [session: SessionRequest['session'], seconds: number]> = {
    'its cookie lives': [{ cookie: { maxAge: 60_000 } }, 60],
    'its cookie lives, in whole seconds': [{ cookie: { maxAge: 59_001 } }, 60],
    'its cookie lives, however short': [{ cookie: { maxAge: 1 } }, 1],
    'its cookie lives, however long': [{ cookie: { maxAge: 30 * DAY * 1000 } }, 30 * DAY],
    'a day, with a cookie of the browser session': [{ cookie: { maxAge: null } }, DAY],
    'a day, with a cookie that says nothing': [{ cookie: { maxAge: undefined } }, DAY],
    'a day, with a cookie that says false': [{ cookie: { maxAge: false as unknown as null } }, DAY],
    'a day, with a cookie whose date is invalid': [{ cookie: { maxAge: Number.NaN } }, DAY],
    'a day, without a cookie': [{}, DAY],
  };
  for (const [what, [session, seconds]] of Object.entries(held)) {
    it(`holds a session for as long as ${what}`, () => {
      const lifetimes = new WebSessionLifetimes({ clock });
      serve(lifetimes, session);
      expect(lifetimes.size).to.equal(1);
      expectExpiry(lifetimes, 's', 1000 + seconds);
    });
  }

  it('goes by the idle time that it is given where the cookie has no lifetime', () => {
    const lifetimes = new WebSessionLifetimes({ clock, idleSeconds: 20 });
    serve(lifetimes, { cookie: { maxAge: null } });
    expectExpiry(lifetimes, 's', 1020);
  });

  it('counts from the last reply, be it for longer or for less long', () => {
    const lifetimes = new WebSessionLifetimes({ clock });
    serve(lifetimes, { cookie: { maxAge: 60_000 } });
    now = 1030;
    serve(lifetimes, { cookie: { maxAge: 60_000 } });
    expect(lifetimes.nextExpiry).to.equal(1090);
    serve(lifetimes, { cookie: { maxAge: 10_000 } });
    expectExpiry(lifetimes, 's', 1040);
  });

  it('lets a session go whose cookie has expired', () => {
    for (const maxAge of [0, -1, -60_000]) {
      const lifetimes = new WebSessionLifetimes({ clock });
      serve(lifetimes, { cookie: { maxAge: 60_000 } });
      serve(lifetimes, { cookie: { maxAge } });
      expect([lifetimes.holds('s'), lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([false, 0, undefined]);
    }
  });

  it('is not moved by a request that leaves no session', () => {
    const lifetimes = new WebSessionLifetimes({ clock });
    for (const none of [undefined, null]) {
      serve(lifetimes, none);
      expect(lifetimes.holds('s')).to.equal(false);
    }
    serve(lifetimes, { cookie: { maxAge: 60_000 } });
    now = 1030;
    for (const none of [undefined, null]) serve(lifetimes, none);
    expectExpiry(lifetimes, 's', 1060);
  });

  it('lets a session go that has ended', () => {
    const lifetimes = new WebSessionLifetimes({ clock });
    serve(lifetimes, { cookie: {} });
    lifetimes.ended('s');
    expect([lifetimes.holds('s'), lifetimes.size, lifetimes.nextExpiry]).to.deep.equal([false, 0, undefined]);
  });

  it('has no session starts', () => {
    expect(new WebSessionLifetimes().starts()).to.equal(false);
  });
});

describe('Lifetimes that are given a bad duration', () => {
  const kinds: Record<string, (seconds: number) => unknown> = {
    closeRetryWindowSeconds: (closeRetryWindowSeconds) => new ResourcesSessionLifetimes({ closeRetryWindowSeconds }),
    idleSeconds: (idleSeconds) => new WebSessionLifetimes({ idleSeconds }),
  };
  for (const [key, create] of Object.entries(kinds)) {
    it(`refuse ${key}, and name it`, () => {
      for (const bad of [0, -1, Number.NaN, Infinity]) expect(() => create(bad)).to.throw(RangeError, key);
      for (const bad of ['300', null, 5n]) expect(() => create(bad as unknown as number)).to.throw(TypeError, key);
    });
  }
});
