/**
 * Puts servers of several workers under stress, and prints what came of it beside what is published of the change that this
 * package follows:
 *
 *     npm run stress -- [--full] [--json]
 *
 * `--full` runs 4,000 and then 10,000 episodes, as published. Exit status: 0 when all went as it must, else 1.
 */
import { parseArgs } from 'node:util';
import { runChecks, type CheckName, type Scale } from './checks.ts';
import { measureCost } from './cost.ts';
import { failures, isRight, toJson, toTable, type Report } from './report.ts';
import { ServerPark } from './servers.ts';
import type { Outcome } from './tally.ts';

const { values: options } = parseArgs({
  options: { full: { type: 'boolean', default: false }, json: { type: 'boolean', default: false } },
});
const scales: readonly Scale[] = options.full
  ? [
      { episodes: 4_000, sessions: 1_000 },
      { episodes: 10_000, sessions: 2_500 },
    ]
  : [{ episodes: 200, sessions: 100 }];
const costCalls = options.full ? 10_000 : 1_500;

const interruption = new AbortController();
const interrupt = (signal: NodeJS.Signals) => interruption.abort(signal);
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
for (const signal of signals) process.on(signal, interrupt);

const outcomes = new Map<CheckName, Outcome[]>();

async function stress(): Promise<Report> {
  const { signal } = interruption;
  for (const scale of scales) {
    await runChecks(scale, signal, (check, outcome) => {
      outcomes.set(check, [...(outcomes.get(check) ?? []), outcome]);
      if (!options.json)
        console.error(`${check} at ${scale.episodes} episodes: ${isRight(outcome) ? 'right' : 'WRONG'}`);
    });
  }
  await using park = new ServerPark(signal);
  try {
    return { outcomes, cost: await measureCost(park, costCalls, signal) };
  } catch (error) {
    signal.throwIfAborted();
    return { outcomes, costProblem: (error as Error).message };
  }
}

try {
  const report = await stress();
  console.log(options.json ? toJson(report) : `\n${toTable(report)}`);
  for (const failure of failures(report)) {
    console.error(failure);
    process.exitCode = 1;
  }
} catch (error) {
  process.exitCode = 1;
  if (interruption.signal.aborted) {
    // Everything is stopped by now. Die of the signal, so that the exit status tells.
    for (const signal of signals) process.off(signal, interrupt);
    process.kill(process.pid, interruption.signal.reason);
  } else {
    console.error(error);
  }
}
