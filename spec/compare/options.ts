import { parseArgs } from 'node:util';

/** What `npm run compare` was asked for. */
export interface CompareOptions {
  readonly episodes: number;
  readonly rounds: number;
  /** Which arrangements to try, by name. All, if none is named. */
  readonly only: readonly string[];
  /** Whether the app refuses sessions that it does not know, instead of counting from 0. Then no costs are measured. */
  readonly strict: boolean;
  readonly json: boolean;
  readonly chart: boolean;
}

/**
 * Reads the words of a command line: `--episodes N`, `--rounds N`, `--only NAME` (more than once), `--strict`,
 * `--json`, `--chart`.
 *
 * @throws Error whose message is one line, if they cannot be obeyed
 */
export function parseOptions(words: string[], names: readonly string[]): CompareOptions {
  const { values } = parseArgs({
    args: words,
    options: {
      episodes: { type: 'string', default: '200' },
      rounds: { type: 'string', default: '7' },
      only: { type: 'string', multiple: true, default: [] },
      strict: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
      chart: { type: 'boolean', default: false },
    },
  });
  const { only, strict, json, chart } = values;
  const unknown = only.find((name) => !names.includes(name));
  if (unknown !== undefined)
    throw new Error(`--only takes one of ${names.join(', ')}, not ${JSON.stringify(unknown)}.`);
  if (chart && only.length > 0) throw new Error('--chart shows several arrangements, so it does not go with --only.');
  if (chart && strict) throw new Error('--chart shows costs, so it does not go with --strict.');
  return {
    episodes: integer('--episodes', values.episodes, 1, 2_000),
    rounds: strict ? 0 : integer('--rounds', values.rounds, 0, 100),
    only,
    strict,
    json,
    chart,
  };
}

function integer(option: string, written: string, least: number, most: number): number {
  const value = Number(written);
  if (/^\d+$/.test(written) && value >= least && value <= most) return value;
  throw new Error(`${option} takes a whole number from ${least} to ${most}, not ${JSON.stringify(written)}.`);
}
