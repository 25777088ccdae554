import { parseArgs } from 'node:util';

/** What `npm start` was asked for. */
export interface MainJobOptions {
  readonly workers: number;
  readonly episodes: number;
  readonly json: boolean;
  readonly help: boolean;
}

export const help = `Usage: npm start -- [--workers N] [--episodes N] [--json]

Runs the counter of examples/counter under concurrent episodes three times: on one
worker, on several workers without session routing, and on several with it. Then runs
the episodes of examples/episode: an agent calls the counter, both on several workers.

  --workers N    worker processes of each server but the first, 2 to 64 (default: 4)
  --episodes N   episodes of each run, 1 to 10000 (default: 200)
  --json         prints one JSON object and nothing else (npm: npm start --silent)
  --help         shows this text

Exit status: 0 when all went as it must, 1 when it did not, 2 when the command
line is wrong.`;

/**
 * Reads the words of a command line.
 *
 * @throws Error whose message is one line, if they cannot be obeyed
 */
export function parseOptions(words: string[]): MainJobOptions {
  const { values } = parseArgs({
    args: words,
    options: {
      workers: { type: 'string', default: '4' },
      episodes: { type: 'string', default: '200' },
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const { json, help } = values;
  return {
    workers: integer('--workers', values.workers, 2, 64),
    episodes: integer('--episodes', values.episodes, 1, 10_000),
    json,
    help,
  };
}

function integer(option: string, written: string, least: number, most: number): number {
  const value = Number(written);
  if (/^\d+$/.test(written) && value >= least && value <= most) return value;
  throw new Error(`${option} takes a whole number from ${least} to ${most}, not ${JSON.stringify(written)}.`);
}
