// nock patches node:http for the whole process, so this file runs in a mocha process of its own.
import { Agent } from 'node:http';
import { Readable } from 'node:stream';
import { expect } from 'chai';
import nock from 'nock';
import { runEpisode } from '../examples/main-job/episode.ts';

const url = 'http://127.0.0.1:1';

describe('an episode of the main job, with a server that', () => {
  before(() => nock.disableNetConnect());
  after(() => nock.restore());
  afterEach(() => {
    const pending = nock.pendingMocks();
    nock.abortPendingRequests();
    nock.cleanAll();
    expect(pending, 'requests that were not made').to.deep.equal([]);
  });

  function run(more: { signal?: AbortSignal; requestSeconds?: number } = {}) {
    return runEpisode({ url, initialCount: 4, agent: new Agent({ keepAlive: false }), ...more });
  }

  /** Seeds, and adds 1. */
  function beginsWell(): nock.Scope {
    return nock(url)
      .post('/seed_session', { initial_count: 4 })
      .reply(200, {}, { 'Set-Cookie': 'sid=1; Path=/; HttpOnly', 'X-Served-By': 'worker 1' })
      .post('/increment_counter', { count: 1 })
      .reply(200, { success: true }, { 'X-Served-By': 'worker 1, forwarded' });
  }

  function goesOnWell(scope: nock.Scope): nock.Scope {
    return scope
      .post('/increment_counter', { count: 2 })
      .reply(200, { success: true }, { 'X-Served-By': 'worker 1' })
      .post('/get_counter_value')
      .reply(200, { count: 7 }, { 'X-Served-By': 'worker 1, forwarded' });
  }

  it('answers as it should, scores what the verdict says and counts who served its requests', async () => {
    for (const reward of [1, 0] as const) {
      goesOnWell(beginsWell())
        .post('/verify', { expected_count: 7 })
        .reply(200, { reward }, { 'X-Served-By': 'worker 1' });
      expect(await run()).to.deep.equal({ reward, local: 2, forwarded: 2 });
    }
  });

  it('refuses the connection, scores 0', async () => {
    nock(url)
      .post('/seed_session')
      .replyWithError(Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:1'), { code: 'ECONNREFUSED' }));
    const { reward, problem, ...served } = await run();
    expect([reward, served]).to.deep.equal([0, { local: 0, forwarded: 0 }]);
    expect(problem).to.match(/^POST \/seed_session: .*ECONNREFUSED/);
  });

  it('cuts a reply off after its head, scores 0', async () => {
    const cutOff = Readable.from(
      (async function* () {
        yield '{"rew';
        throw new Error('the connection broke');
      })(),
    );
    goesOnWell(beginsWell()).post('/verify').reply(200, cutOff, { 'X-Served-By': 'worker 1', 'Content-Length': '14' });
    const { reward, problem, ...served } = await run();
    // The head was read: the last request is counted.
    expect([reward, served]).to.deep.equal([0, { local: 2, forwarded: 2 }]);
    expect(problem).to.match(/^POST \/verify: ./);
  });

  it('answers with malformed JSON, scores 0', async () => {
    beginsWell().post('/increment_counter').reply(200, '{"success": tr');
    const { reward, problem } = await run();
    expect(reward).to.equal(0);
    expect(problem).to.match(/^POST \/increment_counter: .*JSON/);
  });

  for (const verdict of [{}, [], null, 1, { reward: '1.0' }, { reward: null }]) {
    it(`gives ${JSON.stringify(verdict)} as its verdict, scores 0`, async () => {
      goesOnWell(beginsWell()).post('/verify').reply(200, JSON.stringify(verdict));
      const { reward, problem } = await run();
      expect(reward).to.equal(0);
      expect(problem).to.match(/^POST \/verify: the reply is refused/);
    });
  }

  it('answers 410 to a tool call, gets no further request and scores 0', async () => {
    beginsWell().post('/increment_counter', { count: 2 }).reply(410, { code: 'SESSION_GONE' });
    const { reward, problem, ...served } = await run();
    expect([reward, served]).to.deep.equal([0, { local: 0, forwarded: 1 }]);
    expect(problem).to.equal('POST /increment_counter: status 410, {"code":"SESSION_GONE"}');
  });

  it('sets a cookie twice and others beside it, gets the last of each with every later request', async () => {
    const cookies: string[] = [];
    const note = function (this: nock.ReplyFnContext) {
      cookies.push(String(this.req.headers['cookie'] ?? ''));
      return [200, { success: true, reward: 1 }] as nock.ReplyFnResult;
    };
    nock(url)
      .post('/seed_session')
      .reply(200, {}, { 'Set-Cookie': ['sid=old; Path=/', 'other=a%3D=b; HttpOnly', 'sid=new; Path=/'] })
      .post('/increment_counter')
      .reply(note)
      .post('/increment_counter')
      .reply(200, {}, { 'Set-Cookie': 'sid=newer' })
      .post('/get_counter_value')
      .reply(note)
      .post('/verify')
      .reply(note);
    expect(await run()).to.include({ reward: 1 });
    const [first = '', ...later] = cookies.map(String);
    expect(first).to.equal('sid=new; other=a%3D=b');
    expect(later).to.deep.equal(['sid=newer; other=a%3D=b', 'sid=newer; other=a%3D=b']);
  });

  it('never answers, is given up on', async () => {
    beginsWell().post('/increment_counter').delay(600_000).reply(200, {});
    expect(await run({ requestSeconds: 0.05 })).to.deep.equal({
      reward: 0,
      local: 0,
      forwarded: 1,
      problem: 'POST /increment_counter: no complete reply in 0.05 s',
    });
  });

  it('never answers, is left alone once the episode is interrupted', async () => {
    const interruption = new AbortController();
    const scope = beginsWell().post('/increment_counter', { count: 2 }).delay(600_000).reply(200, {});
    scope.on('request', (_request, _interceptor, body: string) => {
      if (body === '{"count":2}') setImmediate(() => interruption.abort());
    });
    const { reward, problem } = await run({ signal: interruption.signal });
    expect(reward).to.equal(0);
    expect(problem).to.equal(interruption.signal.reason.message);
  });
});
