import { expect } from 'chai';
import expressSession, { type Store } from 'express-session';
import { web, resources } from '../lib/session-kinds.ts';
import { SessionStores } from '../lib/session-stores.ts';
import { startBridged, type BridgedWorkers, type BridgeOptions } from './fixtures/bridge-app.ts';
import { StandingClock } from './fixtures/bridge-clock.ts';
import { LaterStore } from './fixtures/bridge-stores.ts';
import { Client, secret, until } from './fixtures/routed.ts';

const cookie = { originalMaxAge: null };

describe('SessionStores', () => {
  let ended: string[];
  let stores: SessionStores;

  beforeEach(() => {
    ended = [];
    stores = new SessionStores((sessionId) => ended.push(sessionId));
  });

  const destroyed = (store: Store, sessionId: string): Promise<unknown> =>
    new Promise((resolve) => void store.destroy(sessionId, resolve));

  for (const makeStore of [() => new LaterStore(), () => new expressSession.MemoryStore()]) {
    const store = makeStore();

    describe(`with a ${store.constructor.name}`, () => {
      it('tells of a session that was destroyed, once', async () => {
        const store = makeStore();
        stores.watch(store);
        stores.watch(store);
        await destroyed(store, 'a');
        expect(ended).to.deep.equal(['a']);
        store.destroy('b');
        await until(() => ended.length === 2, 'the session is destroyed, though nobody asked to be told');
      });

      it('leaves a store as it was', async () => {
        const store = makeStore();
        stores.watch(store);
        stores.close();
        expect(Object.hasOwn(store, 'destroy')).to.equal(false);
        const own = (_sessionId: string, callback?: (error?: unknown) => void) => callback?.();
        store.destroy = own;
        stores.watch(store);
        stores.close();
        expect(store.destroy).to.equal(own);
      });

      it('leaves a store alone that somebody else has wrapped since, and listens no more', async () => {
        const store = makeStore();
        const others = new SessionStores((sessionId) => ended.push(`other ${sessionId}`));
        stores.watch(store);
        others.watch(store);
        stores.close();
        await destroyed(store, 'a');
        others.close();
        await destroyed(store, 'b');
        expect(ended).to.deep.equal(['other a']);
      });
    });
  }

  it('tells of no session that could not be destroyed, and passes the error on', async () => {
    const store = new LaterStore();
    stores.watch(store);
    store.failure = new Error('no store');
    expect(await destroyed(store, 'a')).to.equal(store.failure);
    expect(ended).to.deep.equal([]);
  });

  it('forgets a session in every store that lives in memory, and in no other', async () => {
    /** Another library's store of that name. */
    const OtherStore = { MemoryStore: class MemoryStore extends LaterStore {} }.MemoryStore;
    const inMemory = [new expressSession.MemoryStore(), new OtherStore()];
    const elsewhere = new LaterStore();
    for (const store of [...inMemory, elsewhere]) {
      stores.watch(store);
      await new Promise<void>((resolve) => store.set('a', { cookie } as never, () => resolve()));
    }
    stores.forget('a');
    const read = (store: Store) =>
      new Promise((resolve) => store.get('a', (_error, session) => resolve(session ?? null)));
    for (const store of inMemory) expect(await read(store)).to.equal(null);
    expect(await read(elsewhere)).to.deep.equal({ cookie });
    expect(ended).to.deep.equal([]);
  });
});

describe('the end of a session', () => {
  let workers: BridgedWorkers;
  let clock: StandingClock;

  beforeEach(() => {
    clock = new StandingClock();
  });

  afterEach(() => workers.close());

  async function start(options: BridgeOptions): Promise<void> {
    const routes: Parameters<typeof startBridged>[0] = (app, _worker, routing) => {
      app.post(['/ended', '/reset'], (request, response) => {
        routing.ended(request);
        response.json({});
      });
      app.all(['/unused', '/seed_session', '/close_session'], (_request, response) => void response.json({}));
      app.all('/read', (request, response) => void response.json([request.sessionID, request.session.count ?? null]));
      app.post('/write', (request, response) => {
        request.session.count = 1;
        response.json(request.sessionID);
      });
      app.post('/longer', (request, response) => {
        request.session.cookie.maxAge = 120_000;
        response.json(request.sessionID);
      });
      app.post('/destroy', (request, response) => {
        const { of } = request.query;
        const answer = (error?: unknown) => void response.json(error instanceof Error);
        if (of === undefined) request.session.destroy(answer);
        else request.sessionStore.destroy(String(of), answer);
      });
      app.post('/null', (request, response) => {
        request.session = null as never;
        response.json({});
      });
      app.post('/delete', (request, response) => {
        delete (request as { session?: unknown }).session;
        response.json({});
      });
    };
    workers = await startBridged(routes, { ...options, internals: { clock: clock.read } });
  }

  const url = (worker: number): string => workers.url(worker);

  const advance = (seconds: number): Promise<void> => clock.advance(workers, seconds);
  const isClaimed = (sessionId: string): boolean => workers.claimantOf(sessionId) === 0;

  const mounted: [string, boolean, BridgeOptions][] = [
    ['routing.session() and a MemoryStore', false, {}],
    [
      'an express-session of its own and a store that answers later',
      true,
      { makeSession: ({ genid }, options) => expressSession({ ...options, secret, genid }) as never },
    ],
  ];
  for (const [what, later, mount] of mounted) {
    describe(`of a web app with ${what}`, () => {
      const lifetimes: [string, BridgeOptions, number][] = [
        ['the maxAge of its cookie', { session: { cookie: { maxAge: 60_000 } } }, 60],
        ['idleSeconds', { kind: web({ idleSeconds: 600 }) }, 600],
      ];
      for (const [title, options, seconds] of lifetimes) {
        it(`comes with ${title}, counted from the last reply, and a store in memory forgets the session`, async () => {
          await start({ kind: web(), ...mount, ...options, later });
          const client = new Client();
          const { json: sessionId } = await client.post(`${url(0)}/write`);
          await advance(seconds - 2);
          expect((await client.get(`${url(1)}/read`)).json).to.deep.equal([sessionId, 1]);
          await advance(seconds - 2);
          expect(isClaimed(sessionId)).to.equal(true);
          await advance(2);
          expect(isClaimed(sessionId)).to.equal(false);
          expect(workers.stored()).to.deep.equal(later ? [sessionId] : []);
          // Any worker may have it from here on.
          const [id, count] = (await client.get(`${url(1)}/read`)).json;
          expect([id === sessionId, count]).to.deep.equal(later ? [true, 1] : [false, null]);
          if (later) expect(workers.claimantOf(sessionId)).to.equal(1);
        });
      }

      it('comes at once where its store destroys it under a request of its own', async () => {
        await start({ kind: web(), ...mount, later });
        const client = new Client();
        const { json: sessionId } = await client.post(`${url(0)}/write`);
        await client.post(`${url(1)}/destroy?of=${sessionId}`);
        await advance(2);
        expect(isClaimed(sessionId)).to.equal(false);
      });

      it('comes later where a handler has made it live longer', async () => {
        await start({ kind: web(), ...mount, later, session: { cookie: { maxAge: 60_000 } } });
        const client = new Client();
        const { json: sessionId } = await client.post(`${url(0)}/write`);
        await client.post(`${url(1)}/longer`);
        await advance(118);
        expect(isClaimed(sessionId)).to.equal(true);
        await advance(2);
        expect(isClaimed(sessionId)).to.equal(false);
      });

      it('comes when it is destroyed, by itself or another session of the worker, a second later', async () => {
        await start({ kind: web(), ...mount, later });
        const [one, two] = [new Client(), new Client()];
        const { json: first } = await one.post(`${url(0)}/write`);
        const { json: second } = await two.post(`${url(0)}/write`);
        await one.post(`${url(1)}/destroy?of=${second}`);
        expect([isClaimed(first), isClaimed(second)]).to.deep.equal([true, true]);
        await advance(1);
        expect([isClaimed(first), isClaimed(second)]).to.deep.equal([true, false]);
        await one.post(`${url(1)}/destroy`);
        await advance(1);
        expect(isClaimed(first)).to.equal(false);
        expect(workers.stored()).to.deep.equal([]);
      });

      for (const verb of ['null', 'delete']) {
        it(`comes with req.session ${verb} under unset: destroy, and not under unset: keep`, async () => {
          for (const unset of ['destroy', 'keep'] as const) {
            await start({ kind: web(), ...mount, later, session: { unset } });
            const client = new Client();
            const { json: sessionId } = await client.post(`${url(0)}/write`);
            await client.post(`${url(1)}/${verb}`);
            await advance(1);
            expect(isClaimed(sessionId)).to.equal(unset === 'keep');
            if (unset === 'destroy') await workers.close();
            else expect((await client.get(`${url(1)}/read`)).json).to.deep.equal([sessionId, 1]);
          }
        });
      }
    });
  }

  it('comes when a handler says so by routing.ended(), even one that started the session', async () => {
    await start({ kind: web() });
    const client = new Client();
    const { json: sessionId } = await client.post(`${url(0)}/write`);
    await client.post(`${url(1)}/ended`);
    await advance(1);
    expect(isClaimed(sessionId)).to.equal(false);
    expect(workers.stored()).to.deep.equal([]);
    await workers.close();
    await start({ kind: resources({ starts: ['/reset'], closeRetryWindowSeconds: 20 }) });
    await new Client().post(`${url(0)}/reset`, {}, workers.withCookie('s'));
    await advance(18);
    expect(isClaimed('s')).to.equal(true);
    await advance(2);
    expect(isClaimed('s')).to.equal(false);
  });

  it('does not come where the store could not destroy it', async () => {
    await start({ kind: web(), later: true });
    const client = new Client();
    const { json: sessionId } = await client.post(`${url(0)}/write`);
    (workers.stores[0] as LaterStore).failure = new Error('no store');
    const { json: failed } = await new Client().post(`${url(0)}/destroy?of=${sessionId}`);
    expect(failed).to.equal(true);
    await advance(1);
    expect(isClaimed(sessionId)).to.equal(true);
  });

  describe('of a resources server', () => {
    const typed = { resources_session_id: 's' };
    const open = async (options: BridgeOptions): Promise<void> => {
      await start({ kind: resources({ closeRetryWindowSeconds: 30 }), ...options });
      await new Client().post(`${url(0)}/seed_session`, typed);
      await advance(1000);
      expect(isClaimed('s')).to.equal(true);
    };
    const endings: [string, BridgeOptions, boolean][] = [
      ['/destroy', {}, true],
      ['/null', { session: { unset: 'destroy' } }, true],
      ['/null', { session: { unset: 'keep' } }, false],
      ['/delete', { session: { unset: 'destroy' } }, true],
      ['/write', {}, false],
    ];
    for (const [index, [path, options, ends]] of endings.entries()) {
      const later = index % 2 === 1;
      const { unset = 'keep' } = options.session ?? {};
      const store = later ? 'a store that answers later' : 'a MemoryStore';
      it(`${ends ? 'comes a window after' : 'does not come with'} ${path} under unset: ${unset}, with ${store}`, async () => {
        await open({ ...options, later });
        await new Client().post(url(1) + path, {}, workers.withCookie('s'));
        await advance(28);
        expect(isClaimed('s')).to.equal(true);
        await advance(2);
        expect(isClaimed('s')).to.equal(!ends);
        if (ends) expect(workers.stored()).to.deep.equal([]);
      });
    }

    it('lets a MemoryStore forget the session, and no other store', async () => {
      for (const later of [false, true]) {
        await open({ later });
        await new Client().post(`${url(0)}/write`, {}, workers.withCookie('s'));
        await new Client().post(`${url(1)}/close_session`, typed);
        expect(workers.stored()).to.deep.equal(['s']);
        await advance(30);
        expect(isClaimed('s')).to.equal(false);
        expect(workers.stored()).to.deep.equal(later ? ['s'] : []);
        if (!later) await workers.close();
      }
    });
  });

  it('is watched for until the routing is closed, which leaves the store as it was', async () => {
    await start({ kind: web() });
    const [store] = workers.stores as [Store];
    expect(Object.hasOwn(store, 'destroy')).to.equal(true);
    await workers.close();
    expect(Object.hasOwn(store, 'destroy')).to.equal(false);
    await start({ kind: web() });
  });
});
