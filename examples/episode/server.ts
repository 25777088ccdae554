// Everything that an episode takes, for you to try: `npx tsx examples/episode/server.ts`.
import { startServer } from '../processes/server-process.ts';
import { episodeOf } from '../main-job/typed-episode.ts';
import { startEpisodeServers } from './servers.ts';

const ending = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => ending.abort(signal));

const { environment, all } = await startEpisodeServers(4, (file, env) =>
  startServer({ file, env, signal: ending.signal }),
);
const flatRow = { responses_create_params: { input: 'Add 1, then add 2.' }, initial_count: 3, expected_count: 6 };
console.log('The counter and the agent run on 4 workers each. Try a typed episode, and a flat one:');
for (const body of [episodeOf(3), flatRow]) {
  console.log(`\ncurl -s -H 'content-type: application/json' -d '${JSON.stringify(body)}' ${environment.url}/run`);
}
await Promise.all(all.map((server) => server.ended));
