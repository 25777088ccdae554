// The main job, `npm start`: the counter under concurrent episodes on one worker, on several, and on several with
// session routing; and episodes of an agent on several workers with that counter.
import { SingleBar, Presets } from 'cli-progress';
import { help, parseOptions, type MainJobOptions } from './main-job/options.ts';
import { failures, toJson, toTable, type Report } from './main-job/report.ts';
import { plans } from './main-job/plans.ts';
import { runEpisodes, type RunResult } from './main-job/run.ts';

const interruption = new AbortController();
const interrupt = (signal: NodeJS.Signals) => interruption.abort(signal);
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
for (const signal of signals) process.on(signal, interrupt);

function optionsOrExit(): MainJobOptions {
  try {
    return parseOptions(process.argv.slice(2));
  } catch (error) {
    console.error((error as Error).message.split('\n', 1)[0]);
    process.exit(2);
  }
}

async function run({ workers, episodes }: MainJobOptions): Promise<Report> {
  const all = plans(workers);
  const isWatched = Boolean(process.stdout.isTTY && process.stderr.isTTY);
  const bar = new SingleBar({ format: '{name} {bar} {value}/{total}', clearOnComplete: true }, Presets.shades_classic);
  if (isWatched) bar.start(all.length * episodes, 0, { name: '' });
  const runs: RunResult[] = [];
  try {
    for (const plan of all) {
      const onProgress = (ended: number) => bar.update(runs.length * episodes + ended, { name: plan.name.padEnd(14) });
      runs.push(await runEpisodes({ ...plan, episodes, onProgress, signal: interruption.signal }));
    }
  } finally {
    bar.stop();
  }
  return { workers, episodes, runs };
}

const options = optionsOrExit();
if (options.help) {
  console.log(help);
} else {
  try {
    const report = await run(options);
    console.log(options.json ? toJson(report) : toTable(report));
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
      console.error((error as Error).message);
    }
  }
}
