import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { expect } from 'chai';
import { Client, type Reply } from './fixtures/example-client.ts';
import { startExample, until, type ExampleServer } from './fixtures/example-server.ts';

/** Starts an example before the tests of a `describe` and stops it after them. */
function example(...args: Parameters<typeof startExample>): {
  client(...cookies: [string, string][]): Client;
  server(): ExampleServer;
} {
  let server: ExampleServer;
  before(async function () {
    this.timeout(60_000);
    server = await startExample(...args);
  });
  after(() => server?.stop());
  return { client: (...cookies) => new Client(server.url, cookies), server: () => server };
}

function typedSeed(changes: object = {}) {
  return {
    resources_session_id: randomUUID(),
    episode_id: { rollout_id: 'rollout' },
    task_id: { taskset: 'counting', task_id: '1' },
    task_data: { initial_count: 3 },
    ...changes,
  };
}

function closeOf({ resources_session_id, episode_id }: ReturnType<typeof typedSeed>) {
  return { resources_session_id, episode_id };
}

function expectConflict(reply: Reply, detail: string): void {
  expect([reply.status, reply.json]).to.deep.equal([409, { detail }]);
}

const closed = 'Resources session is closed';
const conflict = 'Resources session has different task data or identity';
const otherEpisode = 'Resources session belongs to another episode';

for (const [name, file, workers] of [
  ['alone', 'counter/app.ts', 1],
  ['on 4 workers', 'counter/server.ts', 4],
] as const) {
  describe(`examples/counter ${name}`, () => {
    const { client } = example(file, { WORKERS: String(workers) });

    async function count(of: Client): Promise<number> {
      const { status, json } = await of.post('/get_counter_value');
      expect(status).to.equal(200);
      return json.count;
    }

    async function add(to: Client, count: unknown): Promise<void> {
      const { status, json } = await to.post('/increment_counter', { count });
      expect([status, json]).to.deep.equal([200, { success: true }]);
    }

    /** A client with a session that was seeded, and what seeded it. */
    async function seeded(changes?: object) {
      const seed = typedSeed(changes);
      const owner = client();
      const reply = await owner.post('/seed_session', seed);
      expect(reply.status).to.equal(200);
      return { seed, owner, reply };
    }

    describe('a typed seed', () => {
      it('opens a session, echoes its ID and sets a cookie', async () => {
        const { seed, owner, reply } = await seeded();
        expect(reply.json).to.deep.equal({
          resources_session_id: seed.resources_session_id,
          resources_tools: null,
          sandbox_access: null,
        });
        expect([...owner.cookies.keys()]).to.deep.equal(['resources.sid']);
        expect(await count(owner)).to.equal(3);
      });

      it('that comes again, with or without the cookie, gets the same reply and leaves the count alone', async () => {
        const { seed, owner, reply } = await seeded();
        await add(owner, 1);
        await add(owner, 2);
        const stranger = client();
        const again = [await stranger.post('/seed_session', seed), await owner.post('/seed_session', seed)];
        for (const { status, json, setCookies } of again) {
          expect([status, json]).to.deep.equal([200, reply.json]);
          expect(setCookies).to.have.length(1);
        }
        expect(await count(stranger)).to.equal(6);
      });

      it('is the same seed with a default spelled out and keys in another order', async () => {
        const { seed } = await seeded();
        const same = { ...seed, episode_id: { attempt: '0', rollout_id: 'rollout' } };
        expect(
          (await client().post('/seed_session', Object.fromEntries(Object.entries(same).reverse()))).status,
        ).to.equal(200);
      });

      for (const changes of [
        { episode_id: { rollout_id: 'other' } },
        { episode_id: { rollout_id: 'rollout', attempt: 1 } },
        { task_id: { taskset: 'counting', task_id: '2' } },
        { task_data: { initial_count: 4 } },
        { task_data: { initial_count: 3, more: true } },
      ]) {
        it(`of an open session with ${JSON.stringify(changes)} is a conflict`, async () => {
          const { seed, owner } = await seeded();
          expectConflict(await client().post('/seed_session', { ...seed, ...changes }), conflict);
          expect(await count(owner)).to.equal(3);
        });
      }

      it('with bad task data fails with 500 and no cookie, and keeps nothing', async () => {
        const bad = typedSeed({ task_data: { initial_count: 'many' } });
        const { status, setCookies } = await client().post('/seed_session', bad);
        expect([status, setCookies]).to.deep.equal([500, []]);
        const owner = client();
        const good = { ...bad, task_data: { initial_count: 5 } };
        expect((await owner.post('/seed_session', good)).status).to.equal(200);
        expect(await count(owner)).to.equal(5);
      });

      it('after the cleanup close of a failed one is refused', async () => {
        const bad = typedSeed({ task_data: {} });
        expect((await client().post('/seed_session', bad)).status).to.equal(500);
        expect((await client().post('/close_session', closeOf(bad))).status).to.equal(200);
        expectConflict(await client().post('/seed_session', { ...bad, task_data: { initial_count: 1 } }), closed);
      });

      it('whose cookie names another session never reaches the counter', async () => {
        const { owner } = await seeded();
        const { status, json } = await owner.post('/seed_session', typedSeed());
        expect([status, json.code]).to.deep.equal([409, 'SESSION_MISMATCH']);
      });

      it('of 9 MiB opens a session', async () => {
        const { owner } = await seeded({ task_data: { initial_count: 1, text: 'x'.repeat(9 * 1024 * 1024) } });
        expect(await count(owner)).to.equal(1);
      });
    });

    describe('an untyped seed', () => {
      it('sets the count of a new session, and ignores other keys', async () => {
        const owner = client();
        const { json, setCookies } = await owner.post('/seed_session', { initial_count: 7, expected_count: 10 });
        expect(json).to.deep.equal({});
        expect(setCookies).to.have.length(1);
        expect(await count(owner)).to.equal(7);
      });

      it('leaves a count that is there alone', async () => {
        const { owner } = await seeded();
        expect((await owner.post('/seed_session', { initial_count: 9 })).json).to.deep.equal({});
        expect(await count(owner)).to.equal(3);
      });

      it('is what a typed one with another key becomes, if it has the count; it opens the session that it names', async () => {
        const seed = typedSeed();
        const owner = client();
        const { status, json } = await owner.post('/seed_session', { ...seed, initial_count: 8 });
        expect([status, json]).to.deep.equal([200, {}]);
        await add(owner, 1);
        expect((await client().post('/seed_session', seed)).status).to.equal(200);
        expect(await count(owner)).to.equal(9);
      });

      it('does not look whether the session is closed', async () => {
        const { seed, owner } = await seeded();
        await owner.post('/close_session', closeOf(seed));
        expect((await owner.post('/seed_session', { initial_count: 1 })).status).to.equal(200);
        expectConflict(await owner.post('/get_counter_value'), closed);
      });
    });

    describe('a close', () => {
      it('of an open session takes its count away, so that its tools are refused and its verify scores 0', async () => {
        const { seed, owner } = await seeded();
        const { status, json } = await owner.post('/close_session', closeOf(seed));
        expect([status, json]).to.deep.equal([200, { resources_session_id: seed.resources_session_id }]);
        expectConflict(await owner.post('/increment_counter', { count: 1 }), closed);
        expectConflict(await owner.post('/get_counter_value'), closed);
        const verdict = await owner.post('/verify', { expected_count: 3 });
        expect([verdict.status, verdict.json.reward]).to.deep.equal([200, 0]);
      });

      it('that comes again, with or without the cookie, gets the same reply', async () => {
        const { seed, owner } = await seeded();
        const replies = [];
        for (const from of [client(), owner, client(), owner]) {
          replies.push(await from.post('/close_session', closeOf(seed)));
        }
        expect(replies.map(({ status, text }) => [status, text])).to.deep.equal(
          replies.map(() => [200, JSON.stringify({ resources_session_id: seed.resources_session_id })]),
        );
      });

      it('for another episode is a conflict and leaves the session open', async () => {
        const { seed, owner } = await seeded();
        const other = { ...closeOf(seed), episode_id: { rollout_id: 'other' } };
        expectConflict(await client().post('/close_session', other), otherEpisode);
        expect(await count(owner)).to.equal(3);
      });

      it('of a closed session for another episode is a conflict', async () => {
        const { seed } = await seeded();
        await client().post('/close_session', closeOf(seed));
        const other = { ...closeOf(seed), episode_id: { rollout_id: 'other' } };
        expectConflict(await client().post('/close_session', other), otherEpisode);
      });

      it('of an unknown session succeeds, and a seed that comes later is refused', async () => {
        const seed = typedSeed();
        const { status, json, setCookies } = await client().post('/close_session', closeOf(seed));
        expect([status, json]).to.deep.equal([200, { resources_session_id: seed.resources_session_id }]);
        expect(setCookies).to.deep.equal([]);
        for (let attempt = 0; attempt < 4; attempt++) {
          expectConflict(await client().post('/seed_session', seed), closed);
        }
      });

      it('is followed by refusals of the same seed and of any other', async () => {
        const { seed, owner } = await seeded();
        await owner.post('/close_session', closeOf(seed));
        expectConflict(await client().post('/seed_session', seed), closed);
        expectConflict(await owner.post('/seed_session', { ...seed, task_data: { initial_count: 4 } }), closed);
      });
    });

    describe('the tools', () => {
      it('count from 0 in a session that was not seeded, and start it', async () => {
        const owner = client();
        expect(await count(owner)).to.equal(0);
        await add(owner, 2);
        await add(owner, -5);
        expect(await count(owner)).to.equal(-3);
        const other = client();
        await add(other, 4);
        expect(await count(other)).to.equal(4);
      });

      it('read the count whatever the body is', async () => {
        const { owner } = await seeded();
        expect((await owner.post('/get_counter_value', '[1]')).json).to.deep.equal({ count: 3 });
        expect((await owner.post('/get_counter_value', 'x', 'text/plain')).json).to.deep.equal({ count: 3 });
      });

      it('and every other route are there below a rollout prefix too', async () => {
        const seed = typedSeed();
        const owner = client();
        expect((await owner.post('/ng-rollout/r1/seed_session', seed)).status).to.equal(200);
        expect((await owner.post('/ng-rollout/r1/increment_counter', { count: 2 })).status).to.equal(200);
        expect((await owner.post('/ng-rollout/r2/verify', { expected_count: 5 })).json.reward).to.equal(1);
        expect((await owner.post('/ng-rollout/r1/close_session', closeOf(seed))).status).to.equal(200);
        expectConflict(await client().post('/seed_session', seed), closed);
      });
    });

    describe('a verify', () => {
      it('scores 1 if and only if the count is what was expected, and changes nothing', async () => {
        const { owner } = await seeded();
        for (const [expected_count, reward] of [
          [3, 1],
          [4, 0],
          ['3', 1],
        ] as const) {
          const params = { input: 'add' };
          const { json } = await owner.post('/verify', {
            expected_count,
            responses_create_params: params,
            response: {},
            other: 1,
          });
          expect(json).to.deep.equal({
            responses_create_params: params,
            response: {},
            reward,
            mask_sample: false,
            failure_kind: null,
            failure_reason: null,
          });
        }
        expect(await count(owner)).to.equal(3);
      });

      it('scores 0 in a session without a count, and does not give it one', async () => {
        const owner = client();
        for (let attempt = 0; attempt < 4; attempt++) {
          expect((await owner.post('/verify', { expected_count: 0 })).json.reward).to.equal(0);
        }
        expect(await count(owner)).to.equal(0);
        expect((await owner.post('/verify', { expected_count: 0 })).json.reward).to.equal(1);
      });
    });

    describe('a body', () => {
      for (const [written, value] of [
        ['"3"', 3],
        ['"-2"', -2],
        ['3.0', 3],
        ['true', 1],
        ['false', 0],
      ] as const) {
        it(`may have ${written} as an integer`, async () => {
          const owner = client();
          expect((await owner.post('/seed_session', `{"initial_count":${written}}`)).status).to.equal(200);
          expect(await count(owner)).to.equal(value);
        });
      }

      for (const written of ['3.5', '"3.0"', 'null', '""', '"x"', '[]', '{}', '1e400']) {
        it(`may not have ${written} as an integer`, async () => {
          const { owner } = await seeded();
          for (const [path, key] of [
            ['/increment_counter', 'count'],
            ['/verify', 'expected_count'],
          ] as const) {
            const { status, json } = await owner.post(path, `{"${key}":${written}}`);
            expect(status).to.equal(422);
            expect(json.detail[0]).to.include.keys('type', 'loc', 'msg', 'input');
            expect(json.detail[0].loc).to.deep.equal(['body', key]);
          }
          expect(await count(owner)).to.equal(3);
        });
      }

      for (const [what, body] of [
        ['no episode', { ...typedSeed(), episode_id: undefined }],
        ['an ID that is no string', typedSeed({ resources_session_id: 3 })],
        ['a key too many', typedSeed({ more: 1 })],
        ['a key too many in its episode', typedSeed({ episode_id: { rollout_id: 'r', more: 1 } })],
        ['a rollout ID that ends in an attempt', typedSeed({ episode_id: { rollout_id: 'r-a1' } })],
        ['a negative attempt', typedSeed({ episode_id: { rollout_id: 'r', attempt: -1 } })],
        ['an empty task ID', typedSeed({ task_id: { taskset: 't', task_id: '' } })],
        ['a list as task data', typedSeed({ task_data: [] })],
      ] as const) {
        it(`of a seed with ${what} is refused with what both kinds of seed lack`, async () => {
          const { status, json } = await client().post('/seed_session', body);
          expect(status).to.equal(422);
          const [first] = json.detail;
          expect(first.loc[0]).to.equal('body');
          expect(json.detail.map(({ loc }: { loc: string[] }) => loc.join('.'))).to.include('body.initial_count');
          expect(json.detail).to.have.length.above(1);
        });
      }

      it('of a close with a key too many, or no episode, is refused', async () => {
        const { seed, owner } = await seeded();
        for (const body of [{ ...closeOf(seed), more: 1 }, { resources_session_id: seed.resources_session_id }]) {
          expect((await client().post('/close_session', body)).status).to.equal(422);
        }
        expect(await count(owner)).to.equal(3);
      });

      it('that is no JSON object, or none at all, is refused', async () => {
        for (const path of ['/seed_session', '/close_session', '/increment_counter', '/verify']) {
          for (const body of ['{"count":', '[]', '"text"', '']) {
            const { status, json } = await client().post(path, body);
            expect([path, body, status]).to.deep.equal([path, body, 422]);
            expect(json.detail).to.be.an('array').with.length.above(0);
          }
        }
      });
    });

    it('answers health checks, without a cookie', async () => {
      for (const path of ['/', '/health', '/healthz', '/livez', '/readyz']) {
        const { status, json, setCookies } = await client().get(path);
        expect([status, json, setCookies]).to.deep.equal([200, { status: 'ok' }, []]);
      }
    });

    it('answers 404 to what it does not know', async () => {
      const { status, json } = await client().post('/nothing');
      expect([status, json]).to.deep.equal([404, { detail: 'Not Found' }]);
    });

    it(workers === 1 ? 'forwards nothing' : 'forwards what reaches another worker', async () => {
      const { owner } = await seeded();
      const replies = [];
      for (let call = 0; call < 12; call++) replies.push(await owner.post('/increment_counter', { count: 1 }));
      expect(await count(owner)).to.equal(15);
      expect(replies.some(({ isForwarded }) => isForwarded)).to.equal(workers > 1);
    });
  });
}

describe('examples/counter in its strict form, with a short window', () => {
  const { client, server } = example('counter/server.ts', { WORKERS: '2', STRICT: '1', WINDOW_SECONDS: '1' });

  it('refuses tools in a session that was not seeded, and scores it 0', async () => {
    const { status, setCookies, json } = await client().post('/get_counter_value');
    expect([status, json]).to.deep.equal([409, { detail: 'Resources session is not open' }]);
    expect(setCookies).to.have.length(1);
    expectConflict(await client().post('/increment_counter', { count: 1 }), 'Resources session is not open');
    expect((await client().post('/verify', { expected_count: 0 })).json.reward).to.equal(0);
  });

  it('counts in a session that was seeded', async () => {
    const owner = client();
    await owner.post('/seed_session', { initial_count: 1 });
    for (let call = 0; call < 4; call++) await owner.post('/increment_counter', { count: 1 });
    expect((await owner.post('/get_counter_value')).json).to.deep.equal({ count: 5 });
  });

  it('knows nothing of a closed session once its window is over', async () => {
    const seed = typedSeed();
    const owner = client();
    await owner.post('/seed_session', seed);
    await owner.post('/close_session', closeOf(seed));
    expectConflict(await client().post('/seed_session', seed), closed);
    await until(
      async () => (await client().post('/seed_session', { ...seed, task_data: { initial_count: 8 } })).status === 200,
    );
    expect((await owner.post('/get_counter_value')).json).to.deep.equal({ count: 8 });
    expect((await owner.post('/close_session', closeOf(seed))).status).to.equal(200);
  });

  it('leaves no claim of sessions that ended', async () => {
    const owners = Array.from({ length: 10 }, () => client());
    for (const owner of owners) await owner.post('/seed_session', { initial_count: 0 });
    expect(server().claims()).to.be.at.least(10);
    for (const owner of owners) await owner.post('/verify', { expected_count: 0 });
    // What is left is open: the session of the test that counts.
    await until(() => server().claims() === 1);
  });
});

describe('examples/repl on 4 workers', () => {
  const { client, server } = example('repl/server.ts', { WORKERS: '4', WINDOW_SECONDS: '1' });

  async function evaluate(of: Client, code: string): Promise<unknown> {
    const { status, json } = await of.post('/eval', { code });
    expect(status).to.equal(200);
    return json;
  }

  it('keeps the variables of a session, whichever worker a call reaches', async () => {
    const owner = client();
    expect(await evaluate(owner, 'x = 41')).to.deep.equal({ result: '41' });
    for (let call = 0; call < 8; call++) expect(await evaluate(owner, 'x + 1')).to.deep.equal({ result: '42' });
    expect(await evaluate(owner, 'const twice = (y) => ({ y: 2 * y })')).to.deep.equal({ result: 'undefined' });
    expect(await evaluate(owner, 'twice(x)')).to.deep.equal({ result: '{ y: 82 }' });
  });

  it('gives each session variables of its own', async () => {
    const [one, two] = [client(), client()];
    await evaluate(one, 'x = 1');
    await evaluate(two, 'x = 2');
    expect([await evaluate(one, 'x'), await evaluate(two, 'x')]).to.deep.equal([{ result: '1' }, { result: '2' }]);
  });

  it('answers with the errors of the code, and goes on', async () => {
    const owner = client();
    await evaluate(owner, 'x = 1');
    for (const [code, error] of [
      ['y', 'ReferenceError: y is not defined'],
      ['throw 3', '3'],
      ['throw { toString: null }', '{ toString: null }'],
    ] as const) {
      expect(await evaluate(owner, code)).to.deep.equal({ error });
    }
    expect(await evaluate(owner, '='))
      .to.have.property('error')
      .that.match(/^SyntaxError: /);
    expect(await evaluate(owner, 'for (;;);'))
      .to.have.property('error')
      .that.match(/timed out/);
    expect(await evaluate(owner, 'x')).to.deep.equal({ result: '1' });
  });

  it('refuses a body without code', async () => {
    for (const body of [{}, { code: 1 }, []]) {
      expect((await client().post('/eval', body)).status).to.equal(422);
    }
  });

  it('drops the REPL of a session that is closed', async () => {
    const owner = client();
    await evaluate(owner, 'x = 1');
    expect((await owner.post('/close_session')).status).to.equal(200);
    for (let call = 0; call < 4; call++)
      expect(await evaluate(owner, 'typeof x')).to.deep.equal({ result: "'undefined'" });
  });

  it('drops the REPL of a session whose window is over: no REPL outlives its claim', async () => {
    const owner = client();
    await evaluate(owner, 'x = 1');
    await until(() => server().claims() === 0);
    const replsOf = new Map<number, number>();
    await until(async () => {
      const { worker, repls } = (await client().get('/health')).json;
      replsOf.set(worker, repls);
      return replsOf.size === 4;
    });
    expect([...replsOf.values()]).to.deep.equal([0, 0, 0, 0]);
    expect(await evaluate(owner, 'typeof x')).to.deep.equal({ result: "'undefined'" });
  });
});

describe('examples/login on 4 workers', () => {
  const { client } = example('login/server.ts', { WORKERS: '4', LOGIN_PASSWORD: 'open sesame' });
  const form = 'application/x-www-form-urlencoded';

  function logIn(as: Client, name: string, password = 'open sesame'): Promise<Reply> {
    return as.post('/login', String(new URLSearchParams({ name, password })), form);
  }

  function shown(reply: Reply, id: string): string | undefined {
    return new RegExp(`id="${id}">([^<]*)<`).exec(reply.text)?.[1];
  }

  async function expectLoggedOut(who: Client): Promise<void> {
    for (let call = 0; call < 12; call++) {
      const { status, location } = await who.get('/');
      expect([status, location]).to.deep.equal([303, '/login']);
    }
  }

  it('keeps somebody logged in on all of 40 requests, each on a new connection', async () => {
    const visitor = client();
    const reply = await logIn(visitor, 'Ada');
    expect([reply.status, reply.location]).to.deep.equal([303, '/']);
    const workers = new Set<string | undefined>();
    for (let visit = 1; visit <= 40; visit++) {
      const page = await visitor.get('/');
      expect([page.status, shown(page, 'user'), shown(page, 'visits')]).to.deep.equal([200, 'Ada', `${visit}`]);
      workers.add(shown(page, 'worker'));
    }
    expect(workers.size).to.equal(1);
  });

  it('shows the form to anybody else, from any worker, without a cookie', async () => {
    const workers = new Set<string | undefined>();
    await until(async () => {
      const { status, text, setCookies } = await client().get('/login');
      expect([status, setCookies]).to.deep.equal([200, []]);
      expect(text).to.contain('<form');
      workers.add(/id="worker">(\d+)</.exec(text)?.[1]);
      return workers.size === 4;
    });
    await expectLoggedOut(client());
  });

  it('keeps many logged in at the same time, each under their own name', async () => {
    await Promise.all(
      Array.from({ length: 20 }, async (_, number) => {
        const visitor = client();
        await logIn(visitor, `visitor ${number}`);
        for (let visit = 1; visit <= 5; visit++) {
          const page = await visitor.get('/');
          expect([shown(page, 'user'), shown(page, 'visits')]).to.deep.equal([`visitor ${number}`, `${visit}`]);
        }
      }),
    );
  });

  it('refuses a wrong password, an empty name and a form that was tampered with', async () => {
    const visitor = client();
    for (const reply of [
      await logIn(visitor, 'Ada', 'sesame'),
      await logIn(visitor, ' '),
      await visitor.post('/login', 'name=a&name=b&password=open+sesame', form),
      await visitor.post('/login', '', form),
    ]) {
      expect(reply.status).to.equal(401);
      expect(reply.text).to.contain('role="alert"');
    }
    await expectLoggedOut(visitor);
  });

  it('logs out everywhere, also for whoever kept the cookie', async () => {
    const visitor = client();
    await logIn(visitor, 'Ada');
    const thief = client(...visitor.cookies);
    expect(shown(await thief.get('/'), 'user')).to.equal('Ada');
    const { status, location } = await visitor.post('/logout', '', form);
    expect([status, location]).to.deep.equal([303, '/login']);
    expect(visitor.cookies.size).to.equal(0);
    await expectLoggedOut(visitor);
    await expectLoggedOut(thief);
  });

  it('gives a login a new session ID, so that a planted one is worth nothing', async () => {
    const attacker = client();
    await logIn(attacker, 'Mallory');
    const victim = client(...attacker.cookies);
    await logIn(victim, 'Ada');
    expect([...victim.cookies.values()]).to.not.deep.equal([...attacker.cookies.values()]);
    for (let visit = 1; visit <= 8; visit++) expect(shown(await victim.get('/'), 'user')).to.equal('Ada');
    await expectLoggedOut(attacker);
  });

  it('marks its cookie as HttpOnly and SameSite=Lax', async () => {
    const { setCookies } = await logIn(client(), 'Ada');
    expect(setCookies).to.have.length(1);
    expect(setCookies[0]).to.match(/^connect\.sid=s%3A.*; Path=\/; HttpOnly; SameSite=Lax$/);
  });

  it('escapes what visitors call themselves', async () => {
    const visitor = client();
    await logIn(visitor, `<img src=x onerror="alert('1')"> & co`);
    const { text } = await visitor.get('/');
    expect(text).to.not.contain('<img');
    expect(text).to.contain('&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt; &amp; co');
  });
});

describe('examples/quick-start', () => {
  let port: number;
  let server: ExampleServer;

  before(async function () {
    this.timeout(60_000);
    // It listens on a port that it is told, so it is told one that was free a moment ago.
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    ({ port } = probe.address() as AddressInfo);
    await new Promise((closed) => probe.close(closed));
    server = await startExample('quick-start/server.ts', { PORT: String(port) }, / listens$/);
    await until(() => server.lines.length === 4);
  });
  after(() => server.stop());

  it('keeps what a session holds in the memory of the worker that it began on', async () => {
    const sessions = Array.from({ length: 6 }, () => new Client(server.url));
    const workers = new Set<number>();
    for (const session of sessions) {
      const { worker } = (await session.post('/seed_session')).json;
      workers.add(worker);
      for (const text of ['a', 'b', 'c', 'd'])
        expect((await session.post('/add_note', { text })).json.worker).to.equal(worker);
      expect((await session.post('/add_note', { text: 'e' })).json).to.deep.equal({
        worker,
        notes: ['a', 'b', 'c', 'd', 'e'],
      });
      expect((await session.post('/close_session')).json).to.deep.equal({ worker, wasOpen: true });
    }
    expect(workers.size).to.be.above(1);
  });
});
