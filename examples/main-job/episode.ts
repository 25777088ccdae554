import type { Agent } from 'node:http';
import { ResourcesSession } from 'express-session-routing/client';

/** How an episode went. */
export interface EpisodeResult {
  /** 1 if the counter's verdict was 1.0; else 0, also if the episode broke off. */
  readonly reward: 0 | 1;
  /** Requests after the seed that were served by the worker which received them. */
  readonly local: number;
  /** Requests after the seed that the receiving worker forwarded to another. */
  readonly forwarded: number;
  /** Why the episode broke off. */
  readonly problem?: string;
}

export interface EpisodeOptions {
  /** The counter server, without a path. */
  readonly url: string;
  readonly initialCount: number;
  /** Opens the connections: a new one for each request, if any worker is to get it. */
  readonly agent: Agent;
  readonly signal?: AbortSignal;
  /** How long a request may take, with the wait for a connection. Default: 60. */
  readonly requestSeconds?: number;
}

/**
 * Runs an episode as an agent would: seeds a counter, adds 1 and 2, reads it, and has it verified.
 *
 * Never rejects: an episode that breaks off scores 0, and says why.
 */
export async function runEpisode({
  initialCount,
  requestSeconds = 60,
  ...options
}: EpisodeOptions): Promise<EpisodeResult> {
  const served = { local: 0, forwarded: 0 };
  try {
    const counter = await ResourcesSession.openUntyped({
      ...options,
      requestSeconds,
      body: { initial_count: initialCount },
      onReply({ stage, headers }) {
        const servedBy = headers.get('x-served-by');
        if (servedBy !== null && stage !== 'seed') served[/forwarded/.test(servedBy) ? 'forwarded' : 'local'] += 1;
      },
    });
    await counter.callTool('increment_counter', { count: 1 });
    await counter.callTool('increment_counter', { count: 2 });
    await counter.callTool('get_counter_value');
    const { reward } = await counter.verify({ expected_count: initialCount + 3 });
    return { ...served, reward: reward === 1 ? 1 : 0 };
  } catch (error) {
    return { ...served, reward: 0, problem: (error as Error).message };
  }
}
