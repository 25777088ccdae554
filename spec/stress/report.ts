import type { CheckName } from './checks.ts';
import type { Cost, Times } from './cost.ts';
import type { Outcome } from './tally.ts';

interface Row {
  readonly check: string;
  /** The published figures, at 4,000 and at 10,000 episodes. */
  readonly published: string;
}

const thousands = '1,000 of 1,000; 2,500 of 2,500';

/** The published table, and what it takes for granted in the last row. */
const rows: Readonly<Record<CheckName, Row>> = {
  typed: { check: 'Typed episodes at once', published: '4,000 of 4,000 in 16 s; 10,000 of 10,000 in 44 s' },
  flat: { check: 'The same from flat rows', published: '4,000 of 4,000 in 16 s; 10,000 of 10,000 in 47 s' },
  failing: { check: 'Seeds that fail without a cookie, are closed and attempted anew', published: thousands },
  broken: { check: 'Seeds whose first reply is dropped or cut off, sent again', published: thousands },
  delayed: { check: 'Seeds that come after their close: refused', published: 'every one' },
  workers: { check: 'Sessions begun on two workers, or live after every close', published: 'none' },
  stepped: {
    check: 'Untyped seeds that never read the session, then 5 calls and an end',
    published: '1,000 of 1,000, none split, none left',
  },
  mcp: { check: 'MCP sequences with only the token, 4 workers', published: thousands },
  claims: { check: 'Claims left 6 s after the end (window 5 s)', published: 'none' },
  killed: {
    check: 'A worker killed: its sessions get 410, all others finish',
    published: 'its sessions on every request and close; every other',
  },
  strict: { check: 'Tool calls without a counter: refused with 409', published: '-' },
};

/** The published cost: milliseconds, and microseconds of a look-up. */
const publishedCost = {
  oneWorker: { median: 1.9, p99: 8.8 },
  forwarded: { median: 3.1, p99: 9.2 },
  lookUpMicroseconds: { median: 8 },
} as const;

/** The outcomes of a check, one for each scale. */
export type Outcomes = ReadonlyMap<CheckName, readonly Outcome[]>;

/** What came of all that was asked. */
export interface Report {
  readonly outcomes: Outcomes;
  readonly cost?: Cost;
  /** Why the cost was not measured. */
  readonly costProblem?: string;
}

/** Whether all went as it must. */
export function isRight({ right, of, problem }: Outcome): boolean {
  return right === of && problem === undefined;
}

function cellOf({ right, of, seconds, problem, ...more }: Outcome & { lost?: number }): string {
  const count = `${right.toLocaleString('en')} of ${of.toLocaleString('en')}`;
  const time = seconds === undefined ? '' : ` in ${seconds.toFixed(1)} s`;
  const lost = more.lost === undefined ? '' : ` (${more.lost} with 410)`;
  if (of === 0) return problem ?? 'none';
  return count + lost + time;
}

function toLines(table: readonly (readonly string[])[]): string[] {
  const widths = table[0]?.map((_, column) => Math.max(...table.map((row) => row[column]?.length ?? 0))) ?? [];
  return table.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

function allOf(outcomes: Outcomes) {
  return (Object.keys(rows) as CheckName[]).map((name) => ({
    name,
    ...rows[name],
    outcomes: outcomes.get(name) ?? [],
  }));
}

/** What did not go as it must, a sentence each. */
export function failures({ outcomes, costProblem }: Report): string[] {
  const found = allOf(outcomes).flatMap(({ check, outcomes: ofCheck }) => {
    if (ofCheck.length === 0) return [`${check}: not checked.`];
    return ofCheck
      .filter((outcome) => !isRight(outcome))
      .map(
        (outcome) =>
          `${check}: ${cellOf(outcome)}${outcome.problem === undefined || outcome.of === 0 ? '' : ` (${outcome.problem})`}.`,
      );
  });
  return costProblem === undefined
    ? found
    : [...found, `The cost was not measured (${costProblem.split('\r\n', 1)[0]}).`];
}

/** The report for programs. */
export function toJson({ outcomes, cost }: Report): string {
  const checks = allOf(outcomes).map((row) => ({ ...row, isRight: row.outcomes.every(isRight) }));
  return JSON.stringify({ checks, ...(cost && { cost: { ...cost, ratios: ratiosOf(cost) } }), publishedCost });
}

/** The report for people. */
export function toTable({ outcomes, cost }: Report): string {
  const checks = allOf(outcomes).map(({ check, published, outcomes: ofCheck }) => [
    check,
    ofCheck.map(cellOf).join('; '),
    published,
  ]);
  return [...toLines([['Check', 'Ours', 'Published'], ...checks]), ...(cost ? costLines(cost) : [])].join('\n');
}

function costLines(cost: Cost): string[] {
  const published = publishedTimes();
  const ratios = ratiosOf(cost);
  const cell = ({ median, p99 }: Times, ratio?: Times): string =>
    `${median.toFixed(3)} ms, p99 ${p99.toFixed(3)} ms` +
    (ratio ? ` (${ratio.median.toFixed(2)} and ${ratio.p99.toFixed(2)} times)` : '');
  const { lookUpMicroseconds: look } = cost;
  return [
    '',
    ...toLines([
      ['A tool call, at the median, on a kept connection (times 1 worker)', 'Ours', 'Published'],
      ['1 worker', cell(cost.oneWorker), published.oneWorker],
      ['8 workers, served locally', cell(cost.local, ratios.local), '-'],
      ['8 workers, forwarded', cell(cost.forwarded, ratios.forwarded), published.forwarded],
      [
        'The look-up of a claim alone (times the reading of a file)',
        `${look.median.toFixed(1)} µs (${ratios.lookUpToReadFile.toFixed(2)} times)`,
        `${publishedCost.lookUpMicroseconds.median} µs, which is the reading of a file`,
      ],
    ]),
  ];
}

function publishedTimes(): Record<'oneWorker' | 'forwarded', string> {
  const { oneWorker, forwarded } = publishedCost;
  const ratio = (of: 'median' | 'p99'): string => (forwarded[of] / oneWorker[of]).toFixed(2);
  return {
    oneWorker: `${oneWorker.median} ms, p99 ${oneWorker.p99} ms`,
    forwarded: `${forwarded.median} ms, p99 ${forwarded.p99} ms (${ratio('median')} and ${ratio('p99')} times)`,
  };
}

function ratiosOf({ oneWorker, local, forwarded, lookUpMicroseconds, readFileMicroseconds }: Cost) {
  const ratio = (times: Times): Times => ({ median: times.median / oneWorker.median, p99: times.p99 / oneWorker.p99 });
  return {
    local: ratio(local),
    forwarded: ratio(forwarded),
    lookUpToReadFile: lookUpMicroseconds.median / readFileMicroseconds.median,
  };
}
