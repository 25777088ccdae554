#!/usr/bin/env node
import { readFileSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { runWorkers, type RunWorkersOptions } from './workers.ts';

const usage = 'Usage: session-routing [--workers N] [--stop-seconds S] <app.js> [argument...]';

const help = `${usage}

Runs an Express app in several worker processes. The app routes the requests of a
session to the worker that holds it, with express-session-routing.

  --workers N        worker processes, 1 to 1024 (default: one for each CPU)
  --stop-seconds S   how long workers may take to exit after SIGTERM, SIGINT or
                     SIGHUP before they are killed (default: 10)
  --help             shows this text
  --version          shows the version

What stands behind the app's file is passed to the app.

Exit status: 1 when no worker could be kept running, 2 when the command line is
wrong; otherwise the signal that ended the server.`;

const options = {
  workers: { type: 'string' },
  'stop-seconds': { type: 'string' },
  help: { type: 'boolean' },
  version: { type: 'boolean' },
} as const;

/** A command line that cannot be obeyed. */
class UsageError extends Error {}

/** What a command line asks for: something to print, or workers to run. */
function parse(words: string[]): { print: string } | { run: RunWorkersOptions } {
  // The first word that is no option is the app's file. What follows it is the app's own.
  const { tokens } = parseArgs({ args: words, options, allowPositionals: true, strict: false, tokens: true });
  const at = tokens.find(({ kind }) => kind === 'positional')?.index ?? words.length;
  const { values } = parseArgs({ args: words.slice(0, at), options });
  if (values.help) return { print: help };
  if (values.version) return { print: version() };
  const [app, ...args] = words.slice(at);
  if (app === undefined) throw new UsageError('The file of the app is missing.');
  const exec = resolve(app);
  if (!statSync(exec, { throwIfNoEntry: false })?.isFile()) throw new UsageError(`There is no file ${exec}.`);
  const run: RunWorkersOptions = { exec, args };
  const { workers, 'stop-seconds': stopSeconds } = values;
  if (workers !== undefined) run.workers = number('--workers', workers, /^\d+$/, 1, 1024);
  if (stopSeconds !== undefined) run.stopSeconds = number('--stop-seconds', stopSeconds, /^\d+(\.\d+)?$/, 0, 86_400);
  return { run };
}

function number(option: string, written: string, form: RegExp, least: number, most: number): number {
  const value = Number(written);
  if (form.test(written) && value >= least && value <= most) return value;
  throw new UsageError(`${option} takes a number from ${least} to ${most}, and "${written}" is none.`);
}

function version(): string {
  return JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')).version;
}

async function main(words: string[]): Promise<void> {
  const asked = parse(words);
  if ('print' in asked) return console.log(asked.print);
  const { stopped } = await runWorkers(asked.run);
  await stopped;
}

main(process.argv.slice(2)).catch((error: NodeJS.ErrnoException) => {
  const isUsage = error instanceof UsageError || error.code?.startsWith('ERR_PARSE_ARGS_') === true;
  console.error(`session-routing: ${error.message}${isUsage ? `\n${usage}` : ''}`);
  process.exitCode = isUsage ? 2 : 1;
});
