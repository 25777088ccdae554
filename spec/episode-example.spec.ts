import { expect } from 'chai';
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { json } from 'node:stream/consumers';
import type { ModelResponse } from '../examples/agent/bodies.ts';
import { respond } from '../examples/agent/simple-agent.ts';
import { CallFailed, Caller, newConnections } from '../examples/caller/caller.ts';
import { startEpisodeServers, type EpisodeServers } from '../examples/episode/servers.ts';
import { runTypedEpisode, type EpisodeReply } from '../examples/episode/typed-episode.ts';
import { episodeOf } from '../examples/main-job/typed-episode.ts';
import { startServer } from '../examples/processes/server-process.ts';
import { Client, listening, urlOf, until } from './fixtures/routed.ts';

const params = { input: 'Add 1, then add 2.' };
const rowOf = (count: number): object => ({
  responses_create_params: params,
  initial_count: count,
  expected_count: count + 3,
});

describe('examples/episode', function () {
  this.timeout(60_000);

  const ending = new AbortController();
  let servers: EpisodeServers;
  before(async () => {
    servers = await startEpisodeServers(4, (file, env) =>
      startServer({ file, env: { WINDOW_SECONDS: '1', ...env }, signal: ending.signal }),
    );
  });
  after(async () => {
    ending.abort();
    await Promise.all(servers.all.map((server) => server.ended));
  });

  async function nothingIsClaimed(): Promise<void> {
    for (const server of [servers.resources, servers.agent]) {
      await until(async () => (await server.claims()) === 0, 'nothing is claimed');
    }
  }

  for (const [kind, bodyOf, verdictOf] of [
    ['typed', episodeOf, (reply: { result: { reward: number } }) => reply.result?.reward],
    ['flat', rowOf, (reply: { reward: number }) => reply.reward],
  ] as const) {
    it(`scores 1.0 in 200 ${kind} episodes at once, on 4 workers each, and leaves nothing claimed`, async () => {
      const options = { agent: newConnections() };
      const rewards = await Promise.all(
        Array.from({ length: 200 }, async (_, count) => {
          const reply = await new Caller(servers.environment.url, options).post('/run', bodyOf(count));
          return verdictOf(reply as never);
        }),
      );
      expect(rewards).to.deep.equal(Array(200).fill(1));
      await nothingIsClaimed();
    });
  }

  it('tells the verdict of a typed episode with what it is about', async () => {
    const { status, json } = await new Client().post(`${servers.environment.url}/run`, episodeOf(3));
    expect(status).to.equal(200);
    expect(json.episode_id).to.deep.equal({ rollout_id: 'rollout-3', attempt: 0 });
    expect(json.task_id).to.deep.equal({ taskset: 'counting', task_id: '3' });
    expect(json.result.response.output.map(({ type }: { type: string }) => type)).to.deep.equal([
      'function_call',
      'function_call_output',
      'function_call',
      'function_call_output',
      'message',
    ]);
  });

  it('gives an episode that does not count to what was expected no reward', async () => {
    const { json } = await new Client().post(`${servers.environment.url}/run`, { ...rowOf(3), expected_count: 7 });
    expect(json.reward).to.equal(0);
  });

  for (const [what, body] of Object.entries({
    'an episode with a key too many': { ...episodeOf(1), surplus: 1 },
    'an episode without a task': { episode_id: { rollout_id: 'r' } },
    'an episode whose rollout ends in the number of an attempt': {
      ...episodeOf(1),
      episode_id: { rollout_id: 'r-a1' },
    },
    'a flat row without what to respond to': { initial_count: 1 },
    'no row at all': [1],
  })) {
    it(`refuses ${what} with 422`, async () => {
      const { status, json } = await new Client().post(`${servers.environment.url}/run`, body);
      expect(status).to.equal(422);
      expect(json.detail[0]).to.include.keys('type', 'loc', 'msg');
    });
  }

  it('says at which stage an episode failed, for good, and closes what it had opened', async () => {
    const episode = episodeOf(1) as { task: { task_input: { task_data: object } } };
    episode.task.task_input.task_data = { expected_count: 4 }; // no initial count, which the counter takes for a fault
    const { status, json } = await new Client().post(`${servers.environment.url}/run`, episode);
    expect(status).to.equal(200);
    expect(json).to.have.all.keys('episode_id', 'task_id', 'failure');
    expect([json.failure.stage, json.failure.terminal]).to.deep.equal(['seed', false]);
    expect(json.failure.failure_reason).to.match(/^POST \/seed_session: status 500/);
    await nothingIsClaimed();
  });
});

describe('a typed episode', () => {
  /** What a server got: the path, and the names of its cookies. */
  type Call = [path: string, cookies: string];

  const typed = {
    episode_id: { rollout_id: 'r', attempt: 1 },
    task: {
      task_id: { taskset: 't', task_id: '1' },
      task_input: { responses_create_params: params, task_data: { n: 1 } },
    },
  };
  let calls: Call[];
  /** How the servers answer instead, by path; a number is a status, null breaks off. */
  let answers: Record<string, number | null>;
  let failures: string[];
  beforeEach(() => {
    calls = [];
    answers = {};
    failures = [];
  });

  /** Both servers in one: it answers as they do when all goes well. */
  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { url = '', headers } = request;
    const body = (await json(request)) as object;
    calls.push([url, headers.cookie ?? '']);
    const given = answers[url];
    if (given === null) return void response.destroy();
    if (given !== undefined) return void response.writeHead(given).end('{}');
    const replies: Record<string, [object, string?]> = {
      '/seed_session': [body, 'resources.sid=1'],
      '/close_session': [body],
      '/v1/agent_sessions': [body, 'agent.sid=1'],
      '/v1/agent_sessions/close': [{ ...body, resources_cookies: { 'resources.sid': '2' } }],
      '/verify': [{ reward: headers['x-ng-checkpoint-close-follows'] === undefined ? 0 : 1 }],
    };
    const [reply, cookie] = replies[url] ?? [{ output: [] }];
    if (cookie !== undefined) response.setHeader('Set-Cookie', `${cookie}; Path=/`);
    response.end(JSON.stringify(reply));
  }

  async function run(): Promise<EpisodeReply> {
    const server = await listening(createServer((request, response) => void answer(request, response)));
    const connections = newConnections();
    const onCleanupFailure = ({ message }: Error): void => void failures.push(message);
    const url = urlOf(server);
    try {
      return await runTypedEpisode(typed, { resourcesUrl: url, agentUrl: url, connections, onCleanupFailure });
    } finally {
      server.close();
    }
  }

  const respond = '/ng-rollout/r-a1/v1/responses';
  const closing = '/v1/agent_sessions/close';

  it('makes its calls in order, each with the cookies of its server', async () => {
    expect(await run()).to.have.nested.property('result.reward', 1);
    expect(calls).to.deep.equal([
      ['/seed_session', ''],
      ['/v1/agent_sessions', ''],
      [respond, 'agent.sid=1'],
      [closing, 'agent.sid=1'],
      ['/verify', 'resources.sid=2'],
      ['/close_session', 'resources.sid=2'],
    ]);
    expect(failures).to.deep.equal([]);
  });

  for (const [path, given, stage, terminal, after] of [
    ['/seed_session', 409, 'seed', true, ['/close_session']],
    ['/seed_session', 500, 'seed', false, ['/close_session']],
    ['/seed_session', null, 'seed', false, ['/close_session']],
    ['/v1/agent_sessions', 422, 'agent_seed', true, [closing, '/close_session']],
    ['/v1/agent_sessions', null, 'agent_seed', false, [closing, '/close_session']],
    [respond, 410, 'respond', true, [closing, '/close_session']],
    [respond, 503, 'respond', false, [closing, '/close_session']],
    ['/verify', 404, 'verify', true, ['/close_session']],
  ] as const) {
    it(`that gets ${given ?? 'no reply'} from ${path} ends at the stage ${stage}, and is cleaned up, the last first`, async () => {
      answers[path] = given;
      const reply = (await run()) as { failure: { stage: string; terminal: boolean } };
      expect(reply.failure).to.include({ stage, terminal });
      // Where there is no reply at all, what may be repeated is.
      const at = calls.findLastIndex(([called]) => called === path);
      expect(at - calls.findIndex(([called]) => called === path)).to.equal(given === null ? 5 : 0);
      expect(calls.slice(at + 1).map(([called]) => called)).to.deep.equal(after);
      // What a reply would have set is not sent, where there was none.
      if (path === '/seed_session') expect(calls.at(-1)).to.deep.equal(['/close_session', '']);
      if (path === '/v1/agent_sessions') expect(calls.at(-2)).to.deep.equal([closing, '']);
    });
  }

  it('whose agent session cannot be closed has no verdict, and the close is tried once more at the end', async () => {
    answers[closing] = 500;
    const reply = (await run()) as { failure: { stage: string; terminal: boolean } };
    expect(reply.failure).to.include({ stage: 'cleanup', terminal: false });
    expect(calls.slice(3).map(([called]) => called)).to.deep.equal([closing, closing, '/close_session']);
    expect(failures).to.have.length(1);
    expect(failures[0]).to.match(/^The close of agent session .* failed/);
  });

  it('keeps its verdict where the last close fails', async () => {
    answers['/close_session'] = 500;
    expect(await run()).to.have.nested.property('result.reward', 1);
    expect(failures).to.have.length(1);
    expect(failures[0]).to.match(/^The close of resources session .* failed/);
  });
});

describe('the response of the agent', () => {
  /** Lets a model answer with outputs, one after the other and then the last, and returns what came of it. */
  async function respondWith(
    ...outputs: object[][]
  ): Promise<{ response?: ModelResponse; error?: Error; asked: number }> {
    let asked = 0;
    const model = await listening(
      createServer((_request, response) => {
        response.end(JSON.stringify({ id: `${asked}`, output: outputs[Math.min(asked++, outputs.length - 1)] }));
      }),
    );
    try {
      const tools = { caller: new Caller('http://127.0.0.1:1'), headers: {} };
      return { response: await respond({ input: 'go' }, tools, new Caller(urlOf(model))), asked };
    } catch (error) {
      return { error: error as Error, asked };
    } finally {
      model.close();
    }
  }

  const call = (args: string): object => ({ type: 'function_call', call_id: 'c', name: 'tool', arguments: args });
  const message = { type: 'message' };

  it('tells the model of arguments that are no JSON, and calls nothing', async () => {
    const { response } = await respondWith([call('{"count": 1')], [message]);
    const [, told] = response?.output ?? [];
    expect(told).to.include({ type: 'function_call_output', call_id: 'c' });
    expect(JSON.parse(String(told?.['output'])).error).to.match(/^Invalid tool call arguments: ./);
    expect(response).to.include({ id: '1' });
  });

  it('fails where the tools cannot be reached', async () => {
    const { error } = await respondWith([call('{}')]);
    expect(error).to.be.instanceOf(CallFailed);
  });

  it('ends though the model never does', async () => {
    const { error, asked } = await respondWith([call('{')]);
    expect(error?.message).to.include('50 times');
    expect(asked).to.equal(50);
  });
});

describe('examples/agent', function () {
  this.timeout(60_000);

  const ending = new AbortController();
  let servers: EpisodeServers;
  before(async () => {
    servers = await startEpisodeServers(2, (file, env) => startServer({ file, env, signal: ending.signal }));
  });
  after(async () => {
    ending.abort();
    await Promise.all(servers.all.map((server) => server.ended));
  });

  const episode_id = { rollout_id: 'r' };
  const task_id = { taskset: 't', task_id: '1' };
  const access = (more: object = {}) => ({
    kind: 'direct_http',
    name: 'counter',
    required: true,
    base_url: servers.resources.url,
    ...more,
  });

  async function open(tool_accesses: object[], more: object = {}) {
    const client = new Client();
    const agent_session_id = randomUUID();
    const seed = { agent_session_id, episode_id, task_id, tool_accesses, ...more };
    const reply = await client.post(`${servers.agent.url}/v1/agent_sessions`, seed);
    return { client, reply, close: { agent_session_id, episode_id } };
  }

  it('calls the tools with the cookies of the access, and gives back what the tools made of them', async () => {
    const resources = new Client();
    await resources.post(`${servers.resources.url}/seed_session`, { initial_count: 5 });
    const cookies = Object.fromEntries(resources.jar);
    const { client, reply, close } = await open([access({ cookies: { ...cookies, other: 'kept' } })]);
    expect(reply.status).to.equal(200);
    const { json } = await client.post(`${servers.agent.url}/v1/responses`, params);
    expect(json.output.map(({ type }: { type: string }) => type)).to.include('message');
    const closed = await client.post(`${servers.agent.url}/v1/agent_sessions/close`, close);
    expect(closed.json.resources_cookies).to.deep.equal({ ...cookies, other: 'kept' });
    expect((await resources.post(`${servers.resources.url}/get_counter_value`)).json).to.deep.equal({ count: 8 });
    const late = await client.post(`${servers.agent.url}/v1/responses`, params);
    expect([late.status, late.json.code]).to.deep.equal([409, 'AGENT_SESSION_NOT_OPEN']);
  });

  it('merges the cookies that a tool sets into those of the session', async () => {
    const { client, close } = await open([access()]);
    await client.post(`${servers.agent.url}/v1/responses`, params);
    const closed = await client.post(`${servers.agent.url}/v1/agent_sessions/close`, close);
    expect(closed.json.resources_cookies).to.have.all.keys('resources.sid');
  });

  it('has no cookies to give back where it was given no access, and cannot call tools', async () => {
    const { client, close } = await open([]);
    expect((await client.post(`${servers.agent.url}/v1/responses`, params)).status).to.equal(500);
    const closed = await client.post(`${servers.agent.url}/v1/agent_sessions/close`, close);
    expect(closed.json.resources_cookies).to.equal(null);
  });

  it('lets the model read what a tool replies, whatever its status', async () => {
    const { client } = await open([access({ base_url: `${servers.resources.url}/nowhere` })]);
    const { status, json } = await client.post(`${servers.agent.url}/v1/responses`, params);
    expect(status).to.equal(200);
    expect(json.output[1]).to.include({ type: 'function_call_output', output: '{"detail":"Not Found"}' });
  });

  const mcp = (required: boolean) => ({
    kind: 'mcp',
    name: 'mcp',
    required,
    connection: { transport: 'streamable_http', url: 'http://127.0.0.1:1/mcp' },
  });

  it('takes no notice of an access over MCP that it may do without', async () => {
    expect((await open([mcp(false), access()])).reply.status).to.equal(200);
  });

  it('refuses what it cannot serve with 422, and nothing is left', async () => {
    const sandbox_access = { connection: { kind: 'sandbox_server', sandbox_ref: 's' } };
    for (const { reply, client, close } of [
      await open([mcp(true)]),
      await open([access(), access({ name: 'another' })]),
      await open([access(), access()]),
      await open([access({ base_url: 'ftp://127.0.0.1' })]),
      await open([], { sandbox_access }),
    ]) {
      expect([reply.status, reply.setCookies]).to.deep.equal([422, []]);
      const closed = await client.post(`${servers.agent.url}/v1/agent_sessions/close`, close);
      expect([closed.status, closed.json.resources_cookies]).to.deep.equal([200, null]);
    }
  });

  it('without an agent session works for the session whose cookie it is sent, and sends new ones back', async () => {
    const client = new Client();
    const { setCookies } = await client.post(`${servers.agent.url}/v1/responses`, params);
    expect(setCookies).to.have.length(1);
    const { json } = await client.post(`${servers.resources.url}/get_counter_value`);
    expect(json).to.deep.equal({ count: 3 });
    expect((await client.post(`${servers.agent.url}/v1/responses`, params)).setCookies).to.deep.equal([]);
  });
});
