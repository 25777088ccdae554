import { arrangements, reference } from './arrangements.ts';
import type { ChartData } from './chart.ts';
import { rightEpisodes } from './sessions.ts';
import { distribution } from './statistics.ts';
import { startArrangement, type Surroundings, type Tried } from './trial.ts';

const workerCounts = [1, 2, 4, 8];
const steps = 200;

/** Gathers what the chart shows: the calls that were timed, and further episodes on 1, 2, 4 and 8 workers. */
export async function chartData(
  tried: readonly Tried[],
  episodes: number,
  surroundings: Surroundings,
): Promise<ChartData> {
  return {
    latencies: latencies(tried),
    rewards: {
      'with this package': await shares('routed', episodes, surroundings),
      'plain cluster': await shares('cluster', episodes, surroundings),
    },
  };
}

function latencies(tried: readonly Tried[]): ChartData['latencies'] {
  const callsOf = (name: string, isForwarded: boolean): number[] =>
    tried
      .filter(({ row }) => row.arrangement.name === name)
      .flatMap(({ rounds }) => rounds.flatMap(({ calls }) => calls))
      .filter((call) => call.isForwarded === isForwarded)
      .map(({ milliseconds }) => milliseconds);
  const series = {
    'one worker': callsOf(reference.name, false),
    'forwarded by this package': callsOf('routed', true),
    nginx: callsOf('nginx-own-cookie', false),
    HAProxy: callsOf('haproxy', false),
  };
  // A proxy that is not installed has no calls.
  const measured = Object.entries(series).filter(([, calls]) => calls.length > 0);
  return Object.fromEntries(measured.map(([name, calls]) => [name, distribution(calls, steps)]));
}

async function shares(
  name: string,
  episodes: number,
  { signal, onProgress }: Surroundings,
): Promise<{ workers: number; share: number }[]> {
  const arrangement = arrangements.find((each) => each.name === name);
  if (arrangement === undefined) throw new Error(`There is no arrangement ${name}.`);
  const points: { workers: number; share: number }[] = [];
  for (const workers of workerCounts) {
    onProgress(`${arrangement.title}, ${workers} workers`);
    const server = await startArrangement(arrangement, { workers, strict: false }, signal);
    try {
      points.push({ workers, share: (await rightEpisodes(server.url, episodes, signal)) / episodes });
    } finally {
      await server.stop();
    }
  }
  return points;
}
