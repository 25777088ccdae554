import { expect } from 'chai';
import { AgentSession, ResourcesSession, SessionClientError } from 'express-session-routing/client';
import { Caller, newConnections } from '../../examples/caller/caller.ts';
import { startEpisodeServers, type EpisodeServers } from '../../examples/episode/servers.ts';
import { episodeOf } from '../../examples/main-job/typed-episode.ts';
import { mcpClientOf } from '../../examples/mcp/sequence.ts';
import { startServer, type ServerProcess } from '../../examples/processes/server-process.ts';
import { describeE2e } from '../fixtures/e2e.ts';
import { until } from '../fixtures/routed.ts';

const params = { input: 'Add 1, then add 2.' };
const rowOf = (count: number): object => ({
  responses_create_params: params,
  initial_count: count,
  expected_count: count + 3,
});

/** What a typed session of the counter says of itself. */
const sessionOf = (url: string, count: number) => ({
  url,
  episodeId: { rollout_id: `rollout-${count}` },
  taskId: { taskset: 'counting', task_id: `${count}` },
});

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** The status that a call was refused with, or what it resolves to. */
async function refusal<Value>(call: Promise<Value>): Promise<Value | number | undefined> {
  return call.catch((error: unknown) => {
    if (error instanceof SessionClientError) return error.status;
    throw error;
  });
}

const numbers = (length: number): number[] => Array.from({ length }, (_, number) => number);

describeE2e('episodes on servers of 4 workers', function () {
  this.timeout(120_000);

  const ending = new AbortController();
  let servers: EpisodeServers;
  let mcp: ServerProcess;
  before(async () => {
    const start = (file: string, env: object = {}) =>
      startServer({ file, env: { WINDOW_SECONDS: '1', STRICT: '1', ...env }, signal: ending.signal });
    [servers, mcp] = await Promise.all([startEpisodeServers(4, start), start('mcp/server.ts', { WORKERS: '4' })]);
  });
  after(async () => {
    ending.abort();
    await Promise.all([...servers.all, mcp].map((server) => server.ended));
  });

  /** Opens a session on the counter and one on the agent, and tells which workers hold them. */
  async function openBoth(count: number) {
    const holders: { resources?: number; agent?: number } = {};
    const onReply = (reply: {
      server: 'resources' | 'agent';
      stage: string;
      headers: { get(name: string): string | null };
    }) => {
      if (reply.stage !== 'seed') return;
      holders[reply.server] = Number(/^worker (\d+)/.exec(reply.headers.get('x-served-by') ?? '')?.[1]);
    };
    const taskData = { initial_count: count };
    const resources = await ResourcesSession.open({ ...sessionOf(servers.resources.url, count), taskData, onReply });
    const toolAccesses = [resources.directHttpAccess('resources.direct_http')];
    const agent = await AgentSession.open({ ...sessionOf(servers.agent.url, count), toolAccesses, onReply });
    return { count, resources, agent, cookies: resources.cookies, holders };
  }

  type Both = Awaited<ReturnType<typeof openBoth>>;

  /** Plays an episode to its end. Returns the verdict, or the first refusal. */
  async function finish({ count, resources, agent }: Both): Promise<number | undefined> {
    const response = await refusal(agent.respond(params));
    const closed = await refusal(agent.close());
    if (typeof response !== 'object') return response;
    if (typeof closed !== 'object') return closed;
    resources.useCookies(closed.resources_cookies ?? {});
    const verdict = await refusal(resources.verify({ expected_count: count + 3 }));
    const end = await refusal(resources.close());
    if (typeof verdict !== 'object') return verdict;
    return typeof end === 'object' ? verdict.reward : end;
  }

  async function kill(pid: number | undefined): Promise<void> {
    if (pid === undefined) throw new Error('there is no worker to kill');
    process.kill(pid, 'SIGKILL');
    await until(() => !isRunning(pid), 'the worker has exited');
  }

  it('score 1.0, of typed ones and of flat rows at the same time, with a counter that does not begin by itself', async () => {
    const options = { agent: newConnections() };
    const rewards = await Promise.all(
      numbers(100).map(async (count) => {
        const isTyped = count % 2 === 0;
        const environment = new Caller(servers.environment.url, options);
        const reply = await environment.post('/run', isTyped ? episodeOf(count) : rowOf(count));
        return isTyped
          ? (reply as { result?: { reward: number } }).result?.reward
          : (reply as { reward: number }).reward;
      }),
    );
    expect(rewards).to.deep.equal(Array(100).fill(1));
  });

  it('find what their seed left when they are verified at once', async () => {
    const rewards = await Promise.all(
      numbers(200).map(async (count) => {
        const url = servers.resources.url;
        const body = { initial_count: count, expected_count: count };
        if (count % 2 === 0) return (await (await ResourcesSession.openUntyped({ url, body })).verify(body)).reward;
        await using session = await ResourcesSession.open({ ...sessionOf(url, count), taskData: body });
        return (await session.verify(body)).reward;
      }),
    );
    expect(rewards).to.deep.equal(Array(200).fill(1));
  });

  it('count over MCP and over HTTP in turn, in sessions that their callers named', async () => {
    const rewards = await Promise.all(
      numbers(40).map(async (count) => {
        await using session = await ResourcesSession.open({
          ...sessionOf(mcp.url, count),
          taskData: { initial_count: count },
        });
        const client = await mcpClientOf(mcp.url, session.tools as Parameters<typeof mcpClientOf>[1]);
        await client.callTool({ name: 'increment_counter', arguments: { count: 1 } });
        await session.callTool('increment_counter', { count: 2 });
        const { structuredContent } = await client.callTool({ name: 'get_counter_value' });
        expect(structuredContent).to.deep.equal({ count: count + 3 });
        await client.close();
        return (await session.verify({ expected_count: count + 3 })).reward;
      }),
    );
    expect(rewards).to.deep.equal(Array(40).fill(1));
  });

  it('are refused with 410 where a worker of the agent was killed that held them, and all others finish', async () => {
    const open = await Promise.all(numbers(32).map(openBoth));
    const killed = open[0]?.holders.agent;
    await kill(killed);
    const ends = await Promise.all(open.map(finish));
    expect(ends).to.deep.equal(open.map(({ holders }) => (holders.agent === killed ? 410 : 1)));
    // The counter has lost nothing: what the episodes that broke off leave there is closed, and nothing stays claimed.
    await Promise.all(open.map(({ resources }) => resources.close()));
    await until(async () => (await servers.resources.claims()) === 0, 'nothing of the counter is claimed');
  });

  it('are refused with 410 where a worker of the counter was killed that held them, and all others finish', async () => {
    const open = await Promise.all(numbers(32).map(openBoth));
    const killed = open[0]?.holders.resources;
    await kill(killed);
    const ends = await Promise.all(open.map(finish));
    expect(ends).to.deep.equal(open.map(({ holders }) => (holders.resources === killed ? 410 : 1)));
  });

  it('leave nothing in a server that is stopped', async () => {
    const claims = await servers.resources.claims();
    expect(claims).to.be.above(0); // those of the worker that was killed
    const all = [...servers.all, mcp];
    await Promise.all(all.map((server) => server.stop()));
    const left = await servers.resources.claims().catch((error: NodeJS.ErrnoException) => error.code);
    expect(left).to.equal('ENOENT');
  });
});
