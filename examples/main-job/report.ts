import type { RunResult } from './run.ts';

/** What came of the main job. */
export interface Report {
  readonly workers: number;
  readonly episodes: number;
  readonly runs: readonly RunResult[];
}

/** The report for programs. */
export function toJson({ workers, episodes, runs }: Report): string {
  const plainRuns = runs.map(({ name, reward1, reward0, forwarded, local, claimsLeft }) => ({
    name,
    reward1,
    reward0,
    forwarded,
    local,
    claimsLeft,
  }));
  return JSON.stringify({ workers, episodes, runs: plainRuns });
}

/** The report for people. */
export function toTable({ workers, episodes, runs }: Report): string {
  const rows = [
    ['', 'reward 1.0', 'reward 0.0', 'served locally', 'forwarded', 'claims left', 'seconds'],
    ...runs.map((run) => [
      run.name,
      ...[run.reward1, run.reward0, run.local, run.forwarded, run.claimsLeft].map(String),
      run.seconds.toFixed(1),
    ]),
  ];
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? [];
  const lines = rows.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  '),
  );
  return [
    `${episodes} concurrent episodes; one worker, then ${workers} without and with session routing, then an agent on ${workers}.`,
    'Requests are counted after the seeds, claims a window after the last request.',
    '',
    ...lines,
  ].join('\n');
}

/** What did not go as it must, a sentence each. */
export function failures({ workers, runs }: Report): string[] {
  const found: string[] = [];
  for (const { name, reward1, reward0, claimsLeft, forwarded, local, problem } of runs) {
    if (name === 'unrouted') {
      if (reward0 <= reward1) {
        found.push(`${name}: ${reward1} of ${reward1 + reward0} episodes scored 1.0, so the fault did not show.`);
      }
    } else if (reward0 > 0) {
      const reason = problem === undefined ? '' : ` (${problem})`;
      found.push(`${name}: ${reward0} of ${reward1 + reward0} episodes scored 0.0${reason}.`);
    }
    if (claimsLeft > 0) found.push(`${name}: ${claimsLeft} claims were left after the window.`);
    if ((name === 'routed' || name === 'typed-episodes') && forwarded < leastForwarded(workers) * (forwarded + local)) {
      found.push(`${name}: only ${forwarded} of ${forwarded + local} requests after the seeds were forwarded.`);
    }
  }
  return found;
}

/** Of N workers, N - 1 have to forward what they get of a session. Two would forward half, give or take. */
function leastForwarded(workers: number): number {
  return workers === 2 ? 1 / 3 : 1 / 2;
}
