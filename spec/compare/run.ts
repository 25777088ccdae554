// `npm run compare`: the counter under the same requests, through what a user would choose in the place of this package. With
// `--chart` it also draws `examples/compare.svg`.
import { writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { arrangements, reference } from './arrangements.ts';
import { chartData } from './chart-data.ts';
import { drawChart } from './chart.ts';
import { parseOptions, type CompareOptions } from './options.ts';
import { missingProgram } from './proxies.ts';
import { failures, toJson, toTable, type Report } from './report.ts';
import { median, type Measured } from './statistics.ts';
import { tryAll, type Extent } from './trial.ts';

const interruption = new AbortController();
const { signal } = interruption;
const interrupt = (name: NodeJS.Signals) => interruption.abort(name);
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
for (const name of signals) process.on(name, interrupt);

async function compare({ episodes, rounds, only, strict, chart }: CompareOptions): Promise<Report> {
  const extent: Extent = { workers: 4, episodes, seeds: 100, sessions: 80, rounds, strict };
  const surroundings = { signal, onProgress: showProgress };
  const leftOut: string[] = [];
  const chosen = arrangements.filter(({ name, title, proxy }) => {
    if (name !== reference.name && only.length > 0 && !only.includes(name)) return false;
    const missing = proxy && missingProgram(proxy);
    if (missing !== undefined) leftOut.push(`${title}: left out, as ${missing} is not installed.`);
    return missing === undefined;
  });
  const tried = await tryAll(chosen, extent, surroundings);
  if (chart) {
    const svg = await drawChart(await chartData(tried, episodes, surroundings));
    writeFileSync(new URL('../../examples/compare.svg', import.meta.url), svg);
  }
  showProgress('');
  const references = tried[0]?.rounds ?? [];
  return {
    ...extent,
    processors: availableParallelism(),
    rows: tried.map(({ row }) => row),
    ...(references.length > 0 && {
      reference: {
        one: middle(references.map(({ one }) => one)),
        many: middle(references.map(({ many }) => many)),
      },
    }),
    leftOut,
  };
}

function middle(rounds: readonly Measured[]): Measured {
  const of = (key: keyof Measured): number => median(rounds.map((round) => round[key]));
  return {
    callsPerSecond: of('callsPerSecond'),
    p50Milliseconds: of('p50Milliseconds'),
    p99Milliseconds: of('p99Milliseconds'),
  };
}

function showProgress(next: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${next}`);
}

function optionsOrExit(): CompareOptions {
  try {
    return parseOptions(
      process.argv.slice(2),
      arrangements.map(({ name }) => name),
    );
  } catch (error) {
    console.error((error as Error).message.split('\n', 1)[0]);
    process.exit(2);
  }
}

const options = optionsOrExit();
try {
  const report = await compare(options);
  console.log(options.json ? toJson(report) : toTable(report));
  for (const failure of failures(report)) {
    console.error(failure);
    process.exitCode = 1;
  }
} catch (error) {
  process.exitCode = 1;
  if (signal.aborted) {
    // Everything is stopped by now. Die of the signal, so that the exit status tells.
    for (const name of signals) process.off(name, interrupt);
    process.kill(process.pid, signal.reason as NodeJS.Signals);
  } else {
    console.error((error as Error).message);
  }
}
