import type { Agent } from 'node:http';
import { z } from 'zod';
import { Caller } from '../../examples/caller/caller.ts';
import { countOverMcp } from '../../examples/mcp/sequence.ts';
import { runTypedEpisode } from '../../examples/main-job/typed-episode.ts';

/** The whole of an episode, by the environment server: an agent that adds 1 and 2, and the counter's verdict. */
export async function typedEpisode(url: string, number: number, agent: Agent, signal: AbortSignal) {
  // An episode waits for its connection behind up to 256 others.
  const { reward, problem } = await runTypedEpisode({ url, initialCount: number, agent, signal, requestSeconds: 300 });
  return reward === 1 ? undefined : (problem ?? 'reward 0');
}

const verdict = z.object({ reward: z.number() });

/** The same, from a flat row, which the environment server relays to the agent. */
export async function flatEpisode(url: string, number: number, agent: Agent, signal: AbortSignal) {
  const row = {
    responses_create_params: { input: 'Add 1, then add 2.' },
    initial_count: number,
    expected_count: number + 3,
  };
  const environment = new Caller(url, { agent, signal, requestSeconds: 300 });
  const { reward } = verdict.parse(await environment.post('/run', row));
  return reward === 1 ? undefined : `reward ${reward}`;
}

/** A count over MCP, with nothing but the token that the seed gave. */
export async function mcpSequence(url: string, number: number) {
  const count = await countOverMcp(url, number);
  return count === number + 3 ? undefined : `counted to ${String(count)} from ${number}`;
}

const steps = 5;

/** A session that begins with its first step, and not with its seed. Every step, and the end, needs the ones before it. */
export async function steppedSession(url: string, agent: Agent, signal: AbortSignal) {
  const session = new Caller(url, { agent, signal });
  await session.post('/seed_session', { steps });
  for (let number = 1; number <= steps; number++) await session.post('/step', { number });
  const { reward } = verdict.parse(await session.post('/verify', { steps }));
  return reward === 1 ? undefined : `reward ${reward}`;
}
