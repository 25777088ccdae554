import type { ServerProcess } from '../processes/server-process.ts';

/** Starts a server of the examples, by its file and what its environment tells it. */
export type StartServer = (file: string, env?: Readonly<Record<string, string>>) => Promise<ServerProcess>;

/** The servers that an episode takes. */
export interface EpisodeServers {
  readonly resources: ServerProcess;
  readonly model: ServerProcess;
  readonly agent: ServerProcess;
  /** Runs the episodes. */
  readonly environment: ServerProcess;
  readonly all: readonly ServerProcess[];
}

/** Starts the counter and the agent on several workers each, the model and the environment server. */
export async function startEpisodeServers(workers: number, start: StartServer): Promise<EpisodeServers> {
  const WORKERS = `${workers}`;
  const [resources, model] = await Promise.all([start('counter/server.ts', { WORKERS }), start('episode/model.ts')]);
  const urls = { RESOURCES_URL: resources.url, MODEL_URL: model.url };
  const agent = await start('agent/server.ts', { ...urls, WORKERS });
  const environment = await start('episode/app.ts', { ...urls, AGENT_URL: agent.url });
  return { resources, model, agent, environment, all: [resources, model, agent, environment] };
}
