import type { Arrangement } from './arrangements.ts';
import type { AfterKill, Outcomes } from './sessions.ts';
import type { Measured, Ratios } from './statistics.ts';
import type { Extent } from './trial.ts';

/** What came of one arrangement. */
export interface Row {
  readonly arrangement: Arrangement;
  readonly rightEpisodes: number;
  readonly repeatedSeeds: number;
  /** Missing for one worker. */
  readonly afterKill?: AfterKill;
  /** Missing if no rounds were asked for. */
  readonly costs?: { readonly one: Ratios; readonly many: Ratios };
}

export interface Report extends Extent {
  /** How many processors there are for the client, the workers and the proxy. */
  readonly processors: number;
  readonly rows: readonly Row[];
  /** What a call of one worker cost, in the medians of the rounds: what the ratios are of. */
  readonly reference?: { readonly one: Measured; readonly many: Measured };
  /** What was left out, a sentence each. */
  readonly leftOut: readonly string[];
}

/** The report for programs. */
export function toJson({ rows, ...report }: Report): string {
  return JSON.stringify({
    ...report,
    rows: rows.map(({ arrangement: { name, title, note }, ...row }) => ({ name, title, ...row, note })),
  });
}

const total = ({ right, empty, refused, unanswered }: Outcomes): number => right + empty + refused + unanswered;

/** The report for people. */
export function toTable(report: Report): string {
  const { episodes, workers, processors, strict, rows, seeds, sessions, rounds, reference, leftOut } = report;
  const behaviour = rows.map(({ arrangement, rightEpisodes, repeatedSeeds, afterKill }) => {
    const cells = [arrangement.title, `${rightEpisodes} of ${episodes}`, `${repeatedSeeds} of ${seeds}`];
    if (afterKill === undefined) return [...cells, '-', '-', '-', '-', '-', '-', '-'];
    const { openedBy, lost, others } = afterKill;
    const counts = [openedBy, total(lost), lost.empty, lost.refused, lost.unanswered, lost.right];
    return [...cells, ...counts.map(String), `${others.right} of ${total(others)}`];
  });
  const lines = [
    `${episodes} concurrent episodes, ${workers} workers (the first row: one), each request on a new connection.`,
    strict
      ? 'The app refuses sessions that it does not know (409), which is for an app to do.'
      : 'The app counts from 0 for sessions that it does not know; with --strict, it refuses them.',
    `Seeds that are repeated, and closed, without a cookie: how many of ${seeds} reached one and the same state.`,
    `${sessions} open sessions, of which one worker is killed: how its sessions went on, and how many others counted right.`,
    '',
    ...table([
      ['', 'episodes', 'repeated', 'workers', "killed worker's", 'served', 'refused', 'no', 'right', 'other'],
      ['', 'right', 'seeds', 'that open', 'sessions', 'empty', '', 'reply', '', 'sessions right'],
      ...behaviour,
    ]),
  ];
  if (reference !== undefined) {
    lines.push(
      '',
      `A tool call, divided by what it costs with one worker (medians of ${rounds} rounds in turns), one call at a time and 32,`,
      `on ${processors} processors, which the client and all workers share.`,
      `One worker: ${described(reference.one)} one at a time; ${described(reference.many)} at 32.`,
      '',
      ...table([
        ['', '1: calls/s', 'p50', 'p99', '32: calls/s', 'p50', 'p99'],
        ...rows.flatMap(({ arrangement, costs }) =>
          costs === undefined ? [] : [[arrangement.title, ...ratioCells(costs.one), ...ratioCells(costs.many)]],
        ),
      ]),
    );
  }
  lines.push('', ...rows.map(({ arrangement: { title, note } }) => `${title}: ${note}`), ...leftOut);
  return lines.join('\n');
}

const ratioCells = ({ callsPerSecond, p50, p99 }: Ratios): string[] =>
  [callsPerSecond, p50, p99].map((ratio) => ratio.toFixed(2));

const described = ({ callsPerSecond, p50Milliseconds, p99Milliseconds }: Measured): string =>
  `${Math.round(callsPerSecond)} calls/s, p50 ${p50Milliseconds.toFixed(2)} ms, p99 ${p99Milliseconds.toFixed(2)} ms`;

function table(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? [];
  return rows.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  );
}

/** What did not go as this package promises, a sentence each. The other arrangements promise nothing here. */
export function failures({ rows, episodes, seeds }: Report): string[] {
  const row = rows.find(({ arrangement }) => arrangement.start === 'routed');
  if (row === undefined) return [];
  const found: string[] = [];
  if (row.rightEpisodes !== episodes) found.push(`${row.rightEpisodes} of ${episodes} episodes counted right.`);
  if (row.repeatedSeeds !== seeds) found.push(`${row.repeatedSeeds} of ${seeds} repeated seeds reached one state.`);
  if (row.afterKill) {
    const { lost, others } = row.afterKill;
    const empty = lost.empty + others.empty;
    if (empty > 0) found.push(`${empty} sessions were served from empty state after a worker was killed.`);
    if (lost.refused !== total(lost)) {
      found.push(`${lost.refused} of ${total(lost)} sessions of the killed worker were refused.`);
    }
    if (others.right !== total(others)) {
      found.push(`${others.right} of ${total(others)} sessions of the other workers counted right.`);
    }
  }
  return found.map((sentence) => `${row.arrangement.title}: ${sentence}`);
}
