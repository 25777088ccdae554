import { newConnections } from '../caller/caller.ts';
import { startEpisodeServers } from '../episode/servers.ts';
import { runEpisode } from './episode.ts';
import type { RunOptions } from './run.ts';
import { runTypedEpisode } from './typed-episode.ts';

type Plan = Pick<RunOptions, 'name' | 'prepare'>;

/** The runs of the main job. */
export function plans(workers: number): Plan[] {
  return [
    counterPlan('one-worker', 1, true),
    counterPlan('unrouted', workers, false),
    counterPlan('routed', workers, true),
    typedEpisodesPlan(workers),
  ];
}

/** Episodes on the counter of examples/counter. */
function counterPlan(name: string, workers: number, isRouted: boolean): Plan {
  return {
    name,
    async prepare(start, signal) {
      const { url } = await start('counter/server.ts', { WORKERS: `${workers}`, ROUTING: isRouted ? 'on' : 'off' });
      const agent = newConnections();
      return (initialCount) => runEpisode({ url, initialCount, agent, signal });
    },
  };
}

/** Episodes by the environment server of examples/episode, on the counter and the agent of examples/agent. */
function typedEpisodesPlan(workers: number): Plan {
  return {
    name: 'typed-episodes',
    async prepare(start, signal) {
      const { url } = (await startEpisodeServers(workers, start)).environment;
      const agent = newConnections();
      return (initialCount) => runTypedEpisode({ url, initialCount, agent, signal });
    },
  };
}
