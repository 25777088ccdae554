import { startServer, type ServerProcess } from '../../examples/processes/server-process.ts';
import { reference, type Arrangement } from './arrangements.ts';
import type { Row } from './report.ts';
import { killWorker, repeatedSeeds, rightEpisodes } from './sessions.ts';
import { ratios } from './statistics.ts';
import { measureRound, openTarget, type Round } from './timing.ts';

/** How much there is to try. */
export interface Extent {
  readonly workers: number;
  readonly episodes: number;
  /** Seeds that are repeated without a cookie. */
  readonly seeds: number;
  /** Sessions that are open when a worker is killed. */
  readonly sessions: number;
  /** Of measuring what a call costs. */
  readonly rounds: number;
  /** Whether the app refuses sessions that it does not know. */
  readonly strict: boolean;
}

/** What a trial needs besides. */
export interface Surroundings {
  readonly signal: AbortSignal;
  /** Told in words what comes next. */
  readonly onProgress: (next: string) => void;
}

/** What came of one arrangement, and the rounds of which its costs are made. */
export interface Tried {
  readonly row: Row;
  readonly rounds: readonly Round[];
}

/** Starts an arrangement of this folder, in processes of its own. */
export function startArrangement(
  { name }: Arrangement,
  { workers, strict }: Pick<Extent, 'workers' | 'strict'>,
  signal: AbortSignal,
): Promise<ServerProcess> {
  const env = { ARRANGEMENT: name, WORKERS: `${workers}`, STRICT: strict ? '1' : '0' };
  return startServer({ file: '../spec/compare/primary.ts', env, signal });
}

/**
 * Tries arrangements one after another, and then measures all of them in turns. The first is what the costs of all are compared to.
 *
 * @throws Error if one does not start, and the signal's reason if it is aborted. All are stopped anyway.
 */
export async function tryAll(
  chosen: readonly Arrangement[],
  extent: Extent,
  { signal, onProgress }: Surroundings,
): Promise<Tried[]> {
  const servers: ServerProcess[] = [];
  try {
    const rows: Row[] = [];
    for (const arrangement of chosen) {
      onProgress(arrangement.title);
      const server = await startArrangement(arrangement, extent, signal);
      servers.push(server);
      rows.push({
        arrangement,
        rightEpisodes: await rightEpisodes(server.url, extent.episodes, signal),
        repeatedSeeds: await repeatedSeeds(server.url, extent.seeds, signal),
        ...(arrangement !== reference && { afterKill: await killWorker(server.url, extent.sessions, signal) }),
      });
    }
    const rounds = await measure(servers, extent.rounds, { signal, onProgress });
    const roundsOf = (index: number): Round[] => rounds.map((round) => round[index] as Round);
    return rows.map((row, index) => ({ row: withCosts(row, roundsOf(index), roundsOf(0)), rounds: roundsOf(index) }));
  } finally {
    await Promise.all(servers.map((server) => server.stop()));
  }
}

async function measure(
  servers: readonly ServerProcess[],
  rounds: number,
  { signal, onProgress }: Surroundings,
): Promise<Round[][]> {
  if (rounds === 0) return [];
  const targets = await Promise.all(servers.map(({ url }) => openTarget(url, signal)));
  onProgress('warming up');
  await measureRound(targets, signal);
  const taken: Round[][] = [];
  for (let round = 0; round < rounds; round++) {
    onProgress(`round ${round + 1} of ${rounds}`);
    // In either order, so that none has the same predecessor throughout.
    if (round % 2 === 0) taken.push(await measureRound(targets, signal));
    else taken.push((await measureRound(targets.toReversed(), signal)).toReversed());
  }
  return taken;
}

function withCosts(row: Row, rounds: readonly Round[], references: readonly Round[]): Row {
  if (rounds.length === 0) return row;
  const of = (key: 'one' | 'many') =>
    ratios(
      rounds.map((round) => round[key]),
      references.map((round) => round[key]),
    );
  return { ...row, costs: { one: of('one'), many: of('many') } };
}
