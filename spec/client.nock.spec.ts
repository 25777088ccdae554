// nock patches node:http for the whole process, so this file runs in a mocha process of its own.
import { gzipSync } from 'node:zlib';
import { expect } from 'chai';
import type nock from 'nock';
import { z } from 'zod';
import {
  AgentSession,
  Cleanup,
  ResourcesSession,
  SessionClientError,
  type AgentSessionOptions,
  type CleanupError,
  type ReplyInfo,
  type ResourcesSessionOptions,
} from '../lib/client.ts';
import { cutOff, never, nockServer, refused, reset, stalled, url } from './fixtures/nock-server.ts';
import { warningsOf } from './fixtures/warnings.ts';

const episodeId = { rollout_id: 'rollout', attempt: 2 };
const taskId = { taskset: 'tasks', task_id: 't-1' };
const identity = { resources_session_id: 'r-1', episode_id: episodeId };
const agentIdentity = { agent_session_id: 'a-1', episode_id: episodeId };
const retries = { limit: 2, firstDelaySeconds: 0.001, maximumDelaySeconds: 0.002 };
const cookie = { 'Set-Cookie': 'sid=1; Path=/; HttpOnly' };
const seeded = { resources_session_id: 'r-1', resources_tools: null, sandbox_access: null };

describe('the client', () => {
  const { played, requests } = nockServer();
  let cleanupFailures: CleanupError[];
  beforeEach(() => {
    cleanupFailures = [];
  });
  afterEach(() => expect(cleanupFailures).to.deep.equal([]));

  const onCleanupFailure = (error: CleanupError): void => void cleanupFailures.push(error);

  function open(more: Partial<ResourcesSessionOptions> = {}): Promise<ResourcesSession> {
    const task = { episodeId, taskId, taskData: { initial_count: 3 }, resourcesSessionId: 'r-1' };
    return ResourcesSession.open({ url, ...task, retries, onCleanupFailure, ...more });
  }

  function openAgent(more: Partial<AgentSessionOptions> = {}): Promise<AgentSession> {
    const agentSessionId = 'a-1';
    return AgentSession.open({ url, episodeId, taskId, agentSessionId, retries, onCleanupFailure, ...more });
  }

  function seeds(scope: nock.Scope = played()): nock.Scope {
    return scope.post('/seed_session').reply(200, seeded, cookie);
  }

  function closes(scope: nock.Scope = played()): nock.Scope {
    return scope.post('/close_session').reply(200, { resources_session_id: 'r-1' });
  }

  function seedsAgent(): nock.Scope {
    return played().post('/v1/agent_sessions').reply(200, { agent_session_id: 'a-1' }, cookie);
  }

  function closesAgent(scope: nock.Scope): nock.Scope {
    const receipt = { agent_observations: { turns: 2 }, resources_cookies: { sid: '"2"' } };
    return scope.post('/v1/agent_sessions/close').reply(200, { agent_session_id: 'a-1', ...receipt });
  }

  /** What a promise is rejected with. */
  async function rejection(promise: Promise<unknown>): Promise<unknown> {
    return promise.then(
      () => expect.fail('it was not rejected'),
      (error: unknown) => error,
    );
  }

  async function failure(promise: Promise<unknown>): Promise<SessionClientError> {
    const error = await rejection(promise);
    expect(error).to.be.an.instanceof(SessionClientError);
    return error as SessionClientError;
  }

  const paths = (): string[] => requests.map(({ path }) => path);
  const cookies = (): (string | undefined)[] => requests.map((request) => request.cookie);

  describe('of a resources server', () => {
    it('seeds, calls tools, has the session verified and closes it', async () => {
      const tools = { server_name: 'counter', url_path: '/mcp', transport: 'http', headers: { 'X-Token': 't' } };
      const sandbox = { connection: { kind: 'sandbox_server', sandbox_ref: 's' }, workdir: '/w' };
      played()
        .post('/seed_session')
        .reply(200, { ...seeded, resources_tools: tools, sandbox_access: sandbox, more: 1 }, cookie)
        .post('/add/one')
        .reply(200, { count: 4 })
        .post('/verify')
        .reply(200, { reward: 1, expected_count: 4 })
        .post('/close_session')
        .reply(200, { resources_session_id: 'r-1' });
      const session = await open();
      expect([session.id, session.tools, session.sandbox, session.cookies]).to.deep.equal([
        'r-1',
        tools,
        sandbox,
        { sid: '1' },
      ]);
      expect(await session.callTool('add/one', { count: 1 })).to.deep.equal({ count: 4 });
      expect(await session.verify({ expected_count: 4 })).to.deep.equal({
        reward: 1,
        expected_count: 4,
        mask_sample: false,
        failure_kind: null,
        failure_reason: null,
      });
      expect(await session.close()).to.deep.equal({ resources_session_id: 'r-1' });
      await session[Symbol.asyncDispose]();
      const seed = { ...identity, task_id: taskId, task_data: { initial_count: 3 } };
      expect(
        requests.map(({ path, cookie, closeFollows, body }) => ({ path, cookie, closeFollows, body })),
      ).to.deep.equal([
        { path: '/seed_session', cookie: undefined, closeFollows: undefined, body: seed },
        { path: '/add/one', cookie: 'sid=1', closeFollows: undefined, body: { count: 1 } },
        { path: '/verify', cookie: 'sid=1', closeFollows: '1', body: { expected_count: 4 } },
        { path: '/close_session', cookie: 'sid=1', closeFollows: undefined, body: identity },
      ]);
    });

    it('mints IDs that differ', async () => {
      const ids = await Promise.all(
        [1, 2].map(async () => {
          played()
            .post('/seed_session')
            .reply((_uri, body) => [200, { ...seeded, ...pick(body) }, cookie]);
          return (await open({ resourcesSessionId: undefined })).id;
        }),
      );
      for (const id of ids) expect(id).to.match(/^resources-session-[0-9a-f]{32}$/);
      expect(new Set(ids).size).to.equal(2);
    });

    it('keeps to the path of its URL', async () => {
      seeds(played().post('/ng-rollout/rollout/seed_session').reply(200, seeded, cookie));
      await open({ url: `${url}/ng-rollout/rollout/` });
      await open();
      expect(paths()).to.deep.equal(['/ng-rollout/rollout/seed_session', '/seed_session']);
    });

    it('passes cookies back byte for byte, merged from replies, of which many set none', async () => {
      const values = ['sid="a=b%3D"; Path=/', 'other=1', 'sid="c=d%3D"; HttpOnly', 'gone=; Max-Age=0'];
      played()
        .post('/seed_session')
        .reply(200, seeded, { 'Set-Cookie': values })
        .post('/add')
        .reply(200, {})
        .post('/add')
        .reply(409, {}, { 'Set-Cookie': ['other=; Expires=Thu, 01 Jan 1970 00:00:00 GMT', 'last=2'] })
        .post('/add')
        .reply(200, {});
      const session = await open();
      await session.callTool('add');
      await failure(session.callTool('add'));
      await session.callTool('add');
      expect(cookies()).to.deep.equal([
        undefined,
        'sid="c=d%3D"; other=1',
        'sid="c=d%3D"; other=1',
        'sid="c=d%3D"; last=2',
      ]);
    });

    it('uses the cookies that an agent gave back, and no others', async () => {
      closes(seeds());
      const session = await open();
      session.useCookies({ other: '"2"' });
      expect(() => session.useCookies({ 'a;b': '' })).to.throw(TypeError);
      await session.close();
      expect(cookies()).to.deep.equal([undefined, 'other="2"']);
    });

    it('gives agents access to its tools', async () => {
      seeds();
      const session = await open();
      const access = { kind: 'direct_http', base_url: url, cookies: { sid: '1' }, headers: {} };
      expect(session.directHttpAccess('counter')).to.deep.equal({ ...access, name: 'counter', required: true });
      expect(session.directHttpAccess('c.2', { required: false })).to.deep.equal({
        ...access,
        name: 'c.2',
        required: false,
      });
      expect(() => session.directHttpAccess('a b')).to.throw(/name/);
    });

    for (const name of [
      '',
      'Verify',
      'close_session',
      '../x',
      'a/./b',
      '/a',
      'a/',
      'mcp',
      'mcp/x',
      'ng-rollout/a/verify',
      'NG-Rollout/a/add',
      'a/close_session',
      '\ud800',
    ]) {
      it(`takes ${JSON.stringify(name)} for no tool`, async () => {
        seeds();
        const session = await open();
        expect(await rejection(session.callTool(name))).to.be.an.instanceof(TypeError);
        expect(paths()).to.deep.equal(['/seed_session']);
      });
    }

    it('sends the name of a tool as one path, whatever characters it has', async () => {
      seeds().post('/a%3Fb%23c%20d/%252e%252e').reply(200, []);
      expect(await (await open()).callTool('a?b#c d/%2e%2e')).to.deep.equal([]);
    });

    it('checks the reply of a tool by a schema', async () => {
      seeds().post('/get').reply(200, { count: 3 }).post('/get').reply(200, { count: '3' });
      const session = await open();
      const reply = z.object({ count: z.number() });
      expect((await session.callTool('get', {}, { reply })).count).to.equal(3);
      const { message, isOver, stage } = await failure(session.callTool('get', {}, { reply }));
      expect([message.split(':', 2).join(':'), isOver, stage]).to.deep.equal([
        'POST /get: the reply is refused at count',
        true,
        'tool',
      ]);
    });

    it('tells of each reply when its head has come', async () => {
      played()
        .post('/seed_session')
        .reply(200, cutOff(), { ...cookie, 'X-Served-By': 'a' })
        .post('/seed_session')
        .reply(200, seeded, { ...cookie, 'X-Served-By': 'b' })
        .post('/add')
        .reply(409, {});
      const replies: ReplyInfo[] = [];
      const session = await open({ onReply: (reply) => void replies.push(reply) });
      await failure(session.callTool('add'));
      expect(replies.map(({ headers, ...reply }) => ({ ...reply, by: headers.get('x-served-by') }))).to.deep.equal([
        { server: 'resources', stage: 'seed', status: 200, attempt: 1, by: 'a' },
        { server: 'resources', stage: 'seed', status: 200, attempt: 2, by: 'b' },
        { server: 'resources', stage: 'tool', status: 409, attempt: 1, by: null },
      ]);
    });
  });

  describe('of a resources server that gives sessions no ID', () => {
    it('seeds, calls tools and has the session verified, and says of no close', async () => {
      played()
        .post('/seed_session')
        .reply(200, { mcp: { server_name: 's', url_path: '/mcp', transport: 'http' }, more: 1 }, cookie)
        .post('/add')
        .reply(200, {})
        .post('/verify')
        .reply(200, { reward: 0.5 });
      const session = await ResourcesSession.openUntyped({ url, body: { initial_count: 3 } });
      expect(session.tools).to.include({ server_name: 's', url_path: '/mcp' });
      expect(session.seedReply).to.include({ more: 1 });
      await session.callTool('add');
      expect(await session.verify({})).to.include({ reward: 0.5 });
      expect(requests.map(({ cookie, closeFollows, body }) => [cookie, closeFollows, body])).to.deep.equal([
        [undefined, undefined, { initial_count: 3 }],
        ['sid=1', undefined, {}],
        ['sid=1', undefined, {}],
      ]);
    });

    it('seeds once, whatever happens', async () => {
      played().post('/seed_session').replyWithError(refused);
      const error = await failure(ResourcesSession.openUntyped({ url, body: {}, retries }));
      expect(error).to.include({ stage: 'seed', isOver: false });
      expect(error.message).to.match(/ECONNREFUSED 127.0.0.1:1$/); // and says of no further attempt
      played().post('/seed_session').reply(200, {});
      expect((await failure(ResourcesSession.openUntyped({ url, body: {} }))).message).to.equal(
        'POST /seed_session: the reply sets no cookie',
      );
      expect(paths()).to.deep.equal(['/seed_session', '/seed_session']);
    });
  });

  describe('of an agent server', () => {
    it('opens a session, has the agent respond and gets its receipt', async () => {
      closesAgent(
        seedsAgent().post('/ng-rollout/rollout-a2/v1/responses').reply(200, { id: 'resp' }, { 'Set-Cookie': 'b=2' }),
      );
      const access = { kind: 'direct_http', name: 'r', required: true, base_url: url } as const;
      const sandbox = { connection: { kind: 'sandbox_server', sandbox_ref: 's' }, workdir: null } as const;
      const session = await openAgent({ toolAccesses: [access], sandboxAccess: sandbox });
      expect([session.id, session.cookies]).to.deep.equal(['a-1', { sid: '1' }]);
      expect(await session.respond({ input: 'hello' })).to.deep.equal({ id: 'resp' });
      const receipt = await session.close();
      expect(receipt).to.deep.equal({
        agent_session_id: 'a-1',
        agent_observations: { turns: 2 },
        resources_cookies: { sid: '"2"' },
      });
      expect(await session.close()).to.equal(receipt);
      expect(requests.map(({ path, cookie, body }) => ({ path, cookie, body }))).to.deep.equal([
        {
          path: '/v1/agent_sessions',
          cookie: undefined,
          body: {
            ...agentIdentity,
            task_id: taskId,
            tool_accesses: [{ ...access, cookies: {}, headers: {} }],
            sandbox_access: sandbox,
          },
        },
        { path: '/ng-rollout/rollout-a2/v1/responses', cookie: 'sid=1', body: { input: 'hello' } },
        { path: '/v1/agent_sessions/close', cookie: 'sid=1; b=2', body: agentIdentity },
      ]);
    });

    it('leaves the number of a first attempt out of the path, and mints an ID', async () => {
      played()
        .post('/v1/agent_sessions')
        .reply((_uri, body) => [200, pick(body), cookie])
        .post('/ng-rollout/r/v1/responses')
        .reply(200, {});
      const session = await openAgent({ episodeId: { rollout_id: 'r' }, agentSessionId: undefined });
      expect(session.id).to.match(/^agent-session-[0-9a-f]{32}$/);
      await session.respond({});
      expect(requests[0]?.body.episode_id).to.deep.equal({ rollout_id: 'r', attempt: 0 });
    });
  });

  describe('whose connection fails', () => {
    it('repeats a seed, the same to the byte and without a cookie', async () => {
      seeds(
        played()
          .post('/seed_session')
          .replyWithError(refused)
          .post('/seed_session')
          .reply(200, cutOff(), { 'Set-Cookie': 'cut=1', 'Content-Length': '100' }),
      );
      const taskData = { initial_count: 3 };
      const opening = open({ taskData });
      taskData.initial_count = 4;
      expect((await opening).cookies).to.deep.equal({ sid: '1' });
      expect(cookies()).to.deep.equal([undefined, undefined, undefined]);
      expect(new Set(requests.map(({ text }) => text)).size).to.equal(1);
      expect(requests[0]?.body.task_data).to.deep.equal({ initial_count: 3 });
    });

    it('repeats a seed that gets no reply in time', async () => {
      seeds(played().post('/seed_session').delay(never).reply(200, {}));
      await open({ requestSeconds: 0.05 });
      expect(requests).to.have.length(2);
    });

    it('repeats a seed whose reply stops in its body', async () => {
      seeds(played().post('/seed_session').reply(200, stalled(), { 'Set-Cookie': 'cut=1' }));
      expect((await open({ requestSeconds: 0.05 })).cookies).to.deep.equal({ sid: '1' });
      expect(requests).to.have.length(2);
    });

    it('repeats a close, with the cookies that it has', async () => {
      closes(seeds().post('/close_session').replyWithError(reset).post('/close_session').reply(200, cutOff()));
      await (await open()).close();
      expect(cookies()).to.deep.equal([undefined, 'sid=1', 'sid=1', 'sid=1']);
    });

    it('repeats the seed and the close of an agent session', async () => {
      played().post('/v1/agent_sessions').replyWithError(refused);
      closesAgent(seedsAgent().post('/v1/agent_sessions/close').replyWithError(reset));
      expect((await (await openAgent()).close()).agent_observations).to.deep.equal({ turns: 2 });
      expect(requests).to.have.length(4);
    });

    it('gives up after so many repeats, and closes what may be there', async () => {
      played()
        .post('/seed_session')
        .times(3)
        .replyWithError(refused)
        .post('/close_session')
        .times(3)
        .replyWithError(reset);
      const error = await failure(open());
      expect(error).to.include({ server: 'resources', stage: 'seed', status: undefined, isOver: false });
      expect(error.message).to.match(/^POST \/seed_session: .*ECONNREFUSED.* \(attempt 3\)$/);
      expect((error.cause as { code?: string }).code).to.equal('ECONNREFUSED');
      const [closeFailure, ...others] = cleanupFailures.splice(0);
      expect(others).to.deep.equal([]);
      expect(closeFailure?.message).to.match(/^The close of resources session r-1 failed: .*hang up/);
      expect(closeFailure?.cause).to.include({ stage: 'close', isOver: false });
      expect(new Set(cookies())).to.deep.equal(new Set([undefined]));
    });

    it('repeats nothing where the limit is 0', async () => {
      closes(played().post('/seed_session').replyWithError(refused));
      await failure(open({ retries: { limit: 0 } }));
      expect(paths()).to.deep.equal(['/seed_session', '/close_session']);
    });

    for (const broken of ['refused', 'cut off', 'never answered'] as const) {
      const breaks = (interceptor: nock.Interceptor): nock.Scope => {
        if (broken === 'refused') return interceptor.replyWithError(refused);
        if (broken === 'cut off') return interceptor.reply(200, cutOff(), { 'Set-Cookie': 'cut=1' });
        return interceptor.delay(never).reply(200, {});
      };

      it(`does not repeat a tool call or a verify that is ${broken}, unless its caller says that it may`, async () => {
        const scope = breaks(breaks(seeds().post('/add')).post('/verify'));
        breaks(scope.post('/add')).post('/add').reply(200, { count: 1 });
        breaks(scope.post('/verify')).post('/verify').reply(200, { reward: 1 });
        const session = await open();
        const requestSeconds = 0.05;
        const mayRepeat = { mayRepeat: true, requestSeconds };
        const tool = await failure(session.callTool('add', {}, { requestSeconds }));
        expect(tool).to.include({ server: 'resources', stage: 'tool', status: undefined, isOver: false });
        const verify = await failure(session.verify({}, { requestSeconds }));
        expect(verify).to.include({ server: 'resources', stage: 'verify', status: undefined, isOver: false });
        expect(await session.callTool('add', {}, mayRepeat)).to.deep.equal({ count: 1 });
        expect(await session.verify({}, mayRepeat)).to.include({ reward: 1 });
        expect(requests).to.have.length(7);
        expect(session.cookies).to.deep.equal({ sid: '1' });
        if (broken === 'never answered') expect(tool.message).to.equal('POST /add: no complete reply in 0.05 s');
      });

      it(`does not repeat what an agent is asked that is ${broken}, unless its caller says that it may`, async () => {
        const path = '/ng-rollout/rollout-a2/v1/responses';
        breaks(breaks(seedsAgent().post(path)).post(path))
          .post(path)
          .reply(200, { id: 'resp' });
        const session = await openAgent();
        const error = await failure(session.respond({}, { requestSeconds: 0.05 }));
        expect(error).to.include({ server: 'agent', stage: 'respond', status: undefined, isOver: false });
        expect(await session.respond({}, { requestSeconds: 0.05, mayRepeat: true })).to.deep.equal({ id: 'resp' });
        expect(requests).to.have.length(4);
      });
    }
  });

  describe('that is answered with a failure', () => {
    const problem = { type: 'urn:x', title: 'Gone', status: 410, detail: 'The worker is gone', code: 'SESSION_GONE' };
    const issues = [{ type: 'missing', loc: ['body', 'count'], msg: 'Field required', input: {} }];
    for (const [status, isOver, body, more] of [
      [302, true, '', {}],
      [400, true, '<html>', { detail: '<html>' }],
      [404, true, { detail: 'Not Found' }, { detail: 'Not Found' }],
      [409, true, { detail: 'Resources session is closed' }, { detail: 'Resources session is closed' }],
      [410, true, problem, { detail: 'The worker is gone', code: 'SESSION_GONE' }],
      [422, true, { detail: issues }, { detail: issues }],
      [408, false, '', {}],
      [425, false, '', {}],
      [429, false, { detail: 'Slow down', code: 7 }, { detail: 'Slow down' }],
      [500, false, JSON.stringify("ValueError('x')"), { detail: "ValueError('x')" }],
      [502, false, 'Bad Gateway', { detail: 'Bad Gateway' }],
      [503, false, { other: 1 }, { detail: { other: 1 } }],
    ] as const) {
      it(`says of a ${status} that the episode ${isOver ? 'is over' : 'may be tried again'}, and repeats nothing`, async () => {
        const headers = { Location: `${url}/elsewhere` };
        seeds().post('/add').reply(status, body, headers);
        const error = await failure((await open()).callTool('add', {}, { mayRepeat: true }));
        const { server, stage, code, detail } = error;
        expect({ server, stage, status: error.status, code, detail, isOver: error.isOver }).to.deep.equal({
          server: 'resources',
          stage: 'tool',
          status,
          isOver,
          code: undefined,
          detail: undefined,
          ...more,
        });
        expect(error.message).to.match(new RegExp(`^POST /add: status ${status}`));
        expect(requests).to.have.length(2);
      });
    }

    it('closes a session whose seed was a 500 without a cookie, by its ID', async () => {
      closes(played().post('/seed_session').reply(500, '"ValueError()"'));
      const error = await failure(open());
      expect(error).to.include({ server: 'resources', stage: 'seed', status: 500, isOver: false });
      expect(requests.map(({ path, cookie, body }) => [path, cookie, body.resources_session_id])).to.deep.equal([
        ['/seed_session', undefined, 'r-1'],
        ['/close_session', undefined, 'r-1'],
      ]);
    });

    it('closes a session whose seed was refused with a cookie, without it', async () => {
      closes(played().post('/seed_session').reply(422, { detail: issues }, cookie));
      expect(await failure(open())).to.include({ status: 422, isOver: true });
      expect(cookies()).to.deep.equal([undefined, undefined]);
    });

    for (const [what, body, headers, message] of [
      ['is malformed JSON', '{"resources_session', cookie, /the reply is not JSON$/],
      ['is empty', '', cookie, /the reply is not JSON$/],
      ['names no session', {}, cookie, /the reply is refused at resources_session_id: /],
      ['names another session', { ...seeded, resources_session_id: 'r-2' }, cookie, /at resources_session_id: .*r-1/],
      ['sets no cookie', seeded, {}, /the reply sets no cookie$/],
      ['only removes a cookie', seeded, { 'Set-Cookie': 'sid=; Max-Age=0' }, /the reply sets no cookie$/],
      ['is no object', '[]', cookie, /the reply is refused: /],
    ] as const) {
      it(`closes a session without a cookie where the reply to its seed ${what}`, async () => {
        closes(
          played()
            .post('/seed_session')
            .reply(200, body, headers as Record<string, string>),
        );
        const error = await failure(open());
        expect(error).to.include({ stage: 'seed', status: 200, isOver: true });
        expect(error.message).to.match(message);
        expect(cookies()).to.deep.equal([undefined, undefined]);
      });
    }

    it('does the same for an agent session', async () => {
      closesAgent(played().post('/v1/agent_sessions').reply(200, { agent_session_id: 'a-2' }, cookie));
      expect(await failure(openAgent())).to.include({ server: 'agent', stage: 'seed', isOver: true });
      expect(requests.map(({ path, cookie }) => [path, cookie])).to.deep.equal([
        ['/v1/agent_sessions', undefined],
        ['/v1/agent_sessions/close', undefined],
      ]);
    });

    it('throws the failure of the seed, and reports that of the close', async () => {
      played().post('/seed_session').reply(500, '"first"').post('/close_session').reply(503, { detail: 'second' });
      expect((await failure(open())).detail).to.equal('first');
      expect(cleanupFailures.splice(0).map(({ cause }) => (cause as SessionClientError).detail)).to.deep.equal([
        'second',
      ]);
    });

    it('makes a warning of a clean-up that fails, unless somebody is told', async () => {
      played().post('/seed_session').reply(500, '"first"').post('/close_session').reply(503, { detail: 'second' });
      const warnings = await warningsOf(async () => void (await failure(open({ onCleanupFailure: undefined }))));
      expect(warnings.map(({ code, message }) => [code, message])).to.deep.equal([
        [
          'SESSION_CLEANUP_FAILED',
          'The close of resources session r-1 failed: POST /close_session: status 503, second',
        ],
      ]);
    });

    it('gives up a close that is not answered, after its deadline', async () => {
      played().post('/seed_session').reply(500).post('/close_session').twice().delay(never).reply(200, {});
      expect(await failure(open({ cleanupSeconds: 0.4 }))).to.include({ stage: 'seed', status: 500 });
      const [closeFailure, ...others] = cleanupFailures.splice(0);
      expect(others).to.deep.equal([]);
      expect(closeFailure?.message).to.match(
        /^The close of resources session r-1 failed: it was not done in 0\.\d+ s$/,
      );
    });
  });

  it('asks for plain replies, and refuses one that is encoded all the same', async () => {
    const encodings: unknown[] = [];
    const note = function (this: nock.ReplyFnContext): nock.ReplyFnResult {
      encodings.push(this.req.headers['accept-encoding']);
      return [200, gzipSync('{}'), { 'Content-Encoding': 'gzip' }];
    };
    closes(seeds().post('/add').reply(note));
    await using session = await open();
    const { isOver, message } = await failure(session.callTool('add'));
    expect([String(encodings), isOver]).to.deep.equal(['identity', true]);
    expect(message).to.match(/encoded \(gzip\)/);
  });

  it('judges a failure by its status, though its reply is encoded', async () => {
    closes(seeds().post('/add').reply(503, gzipSync('busy'), { 'Content-Encoding': 'gzip' }));
    await using session = await open();
    const { status, isOver } = await failure(session.callTool('add'));
    expect([status, isOver]).to.deep.equal([503, false]);
  });

  it('shows a problem that is nested too deep to be written anew', async () => {
    const deep = `{"detail":${'['.repeat(20_000)}${']'.repeat(20_000)}}`;
    closes(seeds().post('/add').reply(500, deep));
    await using session = await open();
    const error = await failure(session.callTool('add'));
    expect([error.status, error.isOver]).to.deep.equal([500, false]);
  });

  it('tries another close where one that is under way gets no answer', async () => {
    const scope = seeds().post('/close_session').delay(never).reply(200);
    closes(scope);
    const session = await open({ cleanupSeconds: 0.2 });
    const first = rejection(session.close());
    await session[Symbol.asyncDispose]();
    expect((await first) as Error).to.have.property(
      'message',
      'The close got no answer, and the clean-up sends another.',
    );
    expect(paths()).to.deep.equal(['/seed_session', '/close_session', '/close_session']);
  });

  it('sends no other close where the one that is under way is refused for good', async () => {
    seeds().post('/close_session').reply(409, { detail: 'no' });
    const session = await open();
    const closing = failure(session.close());
    await session[Symbol.asyncDispose]();
    expect((await closing).isOver).to.equal(true);
    expect(paths()).to.deep.equal(['/seed_session', '/close_session']);
  });

  describe('with a session in `await using`', () => {
    it('closes it at the end of the block', async () => {
      closes(seeds().post('/add').reply(200, {}));
      {
        await using session = await open();
        await session.callTool('add');
      }
      expect(paths()).to.deep.equal(['/seed_session', '/add', '/close_session']);
      expect(cookies().at(-1)).to.equal('sid=1');
    });

    it('does not close it again where it is closed', async () => {
      closes(seeds());
      {
        await using session = await open();
        await session.close();
      }
      expect(paths()).to.deep.equal(['/seed_session', '/close_session']);
    });

    it('leaves the error of the block as it is where the close fails, and reports that', async () => {
      seeds().post('/close_session').reply(500);
      const thrown = new Error('of the block');
      const error = await rejection(
        (async () => {
          await using _session = await open();
          throw thrown;
        })(),
      );
      expect(error).to.equal(thrown);
      expect(cleanupFailures.splice(0).map(({ cause }) => (cause as SessionClientError).status)).to.deep.equal([500]);
    });

    it('tries a close again that failed, unless the episode is over', async () => {
      for (const [status, requestsMade] of [
        [503, 3],
        [410, 2],
      ] as const) {
        requests.splice(0);
        const scope = seeds().post('/close_session').reply(status);
        if (requestsMade === 3) closes(scope);
        {
          await using session = await open();
          expect(await failure(session.close())).to.include({ stage: 'close', status });
        }
        expect(requests).to.have.length(requestsMade);
      }
    });

    it('waits for a close that is under way', async () => {
      seeds().post('/close_session').delay(50).reply(200, { resources_session_id: 'r-1' });
      let isClosed = false;
      {
        await using session = await open();
        void session.close().then(() => (isClosed = true));
      }
      expect(isClosed).to.equal(true);
      expect(requests).to.have.length(2);
    });

    it('closes it where a close under way is cancelled', async () => {
      const controller = new AbortController();
      const scope = seeds().post('/close_session').delay(never).reply(200, {});
      scope.on('request', () => setImmediate(() => paths().length === 2 && controller.abort()));
      closes(scope);
      let closing: Promise<unknown>;
      {
        await using session = await open();
        closing = rejection(session.close({ signal: controller.signal }));
      }
      expect(await closing).to.equal(controller.signal.reason);
      expect(paths()).to.deep.equal(['/seed_session', '/close_session', '/close_session']);
    });

    it('closes an agent session', async () => {
      closesAgent(seedsAgent());
      {
        await using _session = await openAgent();
      }
      expect(paths()).to.deep.equal(['/v1/agent_sessions', '/v1/agent_sessions/close']);
    });
  });

  describe('that is cancelled', () => {
    const reason = new Error('cancelled');

    /** Aborts a signal once a request has been made on a path. */
    function abortedAt(path: string, scope: nock.Scope): AbortSignal {
      const controller = new AbortController();
      scope.on('request', (request) => {
        if (request.path === path) setImmediate(() => controller.abort(reason));
      });
      return controller.signal;
    }

    it('before a seed, sends nothing', async () => {
      expect(await rejection(open({ signal: AbortSignal.abort(reason) }))).to.equal(reason);
      expect(await rejection(openAgent({ signal: AbortSignal.abort(reason) }))).to.equal(reason);
      const untyped = ResourcesSession.openUntyped({ url, body: {}, signal: AbortSignal.abort(reason) });
      expect(await rejection(untyped)).to.equal(reason);
      expect(requests).to.deep.equal([]);
    });

    it('in a seed, closes the session without a cookie, and rejects with the reason', async () => {
      const scope = played().post('/seed_session').delay(never).reply(200, seeded, cookie);
      const signal = abortedAt('/seed_session', scope);
      closes(scope);
      expect(await rejection(open({ signal }))).to.equal(reason);
      expect(requests.map(({ path, cookie }) => [path, cookie])).to.deep.equal([
        ['/seed_session', undefined],
        ['/close_session', undefined],
      ]);
    });

    it('in the body of the reply to a seed, does the same', async () => {
      closes(played().post('/seed_session').reply(200, stalled(), cookie));
      const controller = new AbortController();
      const onReply = ({ stage }: ReplyInfo): void => {
        if (stage === 'seed') setImmediate(() => controller.abort(reason));
      };
      expect(await rejection(open({ signal: controller.signal, onReply }))).to.equal(reason);
      expect(cookies()).to.deep.equal([undefined, undefined]);
    });

    it('in the delay before a repeat, does the same', async () => {
      const scope = played().post('/seed_session').replyWithError(refused);
      const signal = abortedAt('/seed_session', scope);
      closes(scope);
      expect(await rejection(open({ signal, retries: { firstDelaySeconds: 600, maximumDelaySeconds: 600 } }))).to.equal(
        reason,
      );
      expect(paths()).to.deep.equal(['/seed_session', '/close_session']);
    });

    it('in the seed of an agent session, does the same', async () => {
      const scope = played().post('/v1/agent_sessions').delay(never).reply(200, {});
      const signal = abortedAt('/v1/agent_sessions', scope);
      closesAgent(scope);
      expect(await rejection(openAgent({ signal }))).to.equal(reason);
      expect(cookies()).to.deep.equal([undefined, undefined]);
    });

    for (const [stage, path, call] of [
      [
        'a tool call',
        '/add',
        (session: ResourcesSession, options: object) => session.callTool('add', {}, { ...options, mayRepeat: true }),
      ],
      [
        'a verify',
        '/verify',
        (session: ResourcesSession, options: object) => session.verify({}, { ...options, mayRepeat: true }),
      ],
      ['a close', '/close_session', (session: ResourcesSession, options: object) => session.close(options)],
    ] as const) {
      for (const whose of ['session', 'call'] as const) {
        it(`in ${stage}, by the signal of the ${whose}, rejects with the reason and closes the session`, async () => {
          const scope = seeds().post(path).delay(never).reply(200, {});
          const signal = abortedAt(path, scope);
          closes(scope);
          {
            await using session = await open(whose === 'session' ? { signal } : {});
            expect(await rejection(call(session, whose === 'call' ? { signal } : {}))).to.equal(reason);
          }
          expect(paths()).to.deep.equal(['/seed_session', path, '/close_session']);
          expect(cookies().at(-1)).to.equal('sid=1');
        });
      }
    }

    it('in a response, rejects with the reason and closes the session', async () => {
      const path = '/ng-rollout/rollout-a2/v1/responses';
      const scope = seedsAgent().post(path).delay(never).reply(200, {});
      const signal = abortedAt(path, scope);
      closesAgent(scope);
      {
        await using session = await openAgent({ signal });
        expect(await rejection(session.respond({}))).to.equal(reason);
        expect(await rejection(session.close())).to.equal(reason);
      }
      expect(paths()).to.deep.equal(['/v1/agent_sessions', path, '/v1/agent_sessions/close']);
    });

    it('during the clean-up, goes on with it', async () => {
      const scope = played().post('/seed_session').reply(500).post('/close_session').replyWithError(reset);
      const signal = abortedAt('/close_session', scope);
      closes(scope);
      expect(await failure(open({ signal }))).to.include({ status: 500 });
      expect(signal.aborted).to.equal(true);
      expect(requests).to.have.length(3);
    });
  });

  describe('with a clean-up that several sessions share', () => {
    it('closes what is open when that is run, the last that was opened first', async () => {
      const cleanup = new Cleanup();
      closes(closesAgent(seedsAgent()));
      seeds();
      await open({ cleanup });
      await openAgent({ cleanup });
      cleanup.add('What is not a session', () => void requests.push({ path: 'own' } as never));
      expect(await cleanup.run()).to.deep.equal([]);
      expect(paths().slice(2)).to.deep.equal(['own', '/v1/agent_sessions/close', '/close_session']);
    });

    it('leaves a session to it whose seed failed', async () => {
      const cleanup = new Cleanup();
      played().post('/seed_session').reply(500);
      await failure(open({ cleanup }));
      expect(paths()).to.deep.equal(['/seed_session']);
      closes();
      await cleanup.run();
      expect(cookies()).to.deep.equal([undefined, undefined]);
    });

    it('gives a server that does not answer only its share of the time', async () => {
      const failures: CleanupError[] = [];
      const cleanup = new Cleanup({ seconds: 0.8, onFailure: (error) => void failures.push(error) });
      seeds();
      seedsAgent().post('/v1/agent_sessions/close').twice().delay(never).reply(200, {});
      await open({ cleanup });
      await openAgent({ cleanup });
      closes();
      expect(await cleanup.run()).to.deep.equal(failures);
      expect(failures).to.have.length(1);
      expect(failures[0]?.message).to.match(/^The close of agent session a-1 failed: it was not done in 0\.\d+ s$/);
      expect(paths().slice(2)).to.deep.equal([
        '/v1/agent_sessions/close',
        '/v1/agent_sessions/close',
        '/close_session',
      ]);
    });

    it('leaves the time to others where a session is closed already', async () => {
      const cleanup = new Cleanup({ seconds: 9, clock: () => 0 });
      let share = 0;
      closes(seeds());
      await (await open({ cleanup })).close();
      cleanup.add('It', (_signal, seconds) => void (share = seconds));
      await cleanup.run();
      expect(share).to.equal(9);
    });

    it('opens nothing once it has been run', async () => {
      const cleanup = new Cleanup();
      await cleanup.run();
      expect(await rejection(open({ cleanup }))).to.match(/The clean-up is over/);
      expect(requests).to.deep.equal([]);
    });
  });

  describe('whose options', () => {
    for (const [what, options, message] of [
      ['have no good URL', { url: 'localhost' }, /ResourcesSession.open\(\): option "url": must be an http/],
      ['have a URL with a query', { url: `${url}?a` }, /"url": must have no credentials, query or fragment/],
      ['have a URL with credentials', { url: 'http://a:b@c' }, /"url": must have no credentials/],
      ['name an unknown key', { retry: {} }, /has no option "retry"; did you mean "retries"/],
      ['have a bad rollout', { episodeId: { rollout_id: 'r-a1' } }, /"episodeId.rollout_id"/],
      ['have an empty ID', { resourcesSessionId: '' }, /"resourcesSessionId"/],
      ['have no time', { requestSeconds: 0 }, /"requestSeconds"/],
      ['have more time than timers count', { requestSeconds: 1e7 }, /"requestSeconds"/],
      ['have a limit below 0', { retries: { limit: -1 } }, /"retries.limit"/],
      ['have no function', { onReply: true }, /"onReply": must be a function/],
    ] as const) {
      it(`${what} are refused with a TypeError`, async () => {
        const error = await rejection(open(options as object));
        expect(error).to.be.an.instanceof(TypeError);
        expect((error as Error).message).to.match(message);
        expect(requests).to.deep.equal([]);
      });
    }

    it('that cannot be sent as JSON are refused, too', async () => {
      const circular: Record<string, unknown> = {};
      circular['self'] = circular;
      // Nothing was sent, so there is nothing to be closed.
      expect(await rejection(open({ taskData: circular }))).to.be.an.instanceof(TypeError);
      expect(await rejection(ResourcesSession.openUntyped({ url, body: circular }))).to.be.an.instanceof(TypeError);
      expect(requests).to.deep.equal([]);
    });

    it('of a call are refused, too', async () => {
      closes(seeds());
      await using session = await open();
      for (const call of [
        () => session.callTool('add', {}, { mayRepaet: true } as object),
        async () => session.verify({}, { closeFollow: true } as object),
        async () => session.close({ requestSeconds: -1 }),
      ]) {
        expect(await rejection(call())).to.be.an.instanceof(TypeError);
      }
    });
  });
});

/** The ID of a session in a body. */
function pick(body: unknown): Record<string, string> {
  const entries = Object.entries(body as Record<string, string>);
  return Object.fromEntries(entries.filter(([name]) => name.endsWith('_session_id')));
}
