import { parseArgs } from 'node:util';

export const nodeLines = ['20', '22', '24', '26'];
export const expressLines = ['4', '5'];

/** One combination of what the package supports. */
export interface Cell {
  readonly node: string;
  readonly express: string;
}

/** What `npm run test:nodes` was asked for. */
export interface Options {
  readonly cells: readonly Cell[];
  readonly asJson: boolean;
  /** Files of specs, for mocha; none: all. */
  readonly files: readonly string[];
}

/**
 * Reads `[--node 22] [--express 4] [--json] [files]`, where `--node` and `--express` may come more than once.
 *
 * @throws TypeError for another option, or a line that the package does not support
 */
export function parseOptions(args: readonly string[]): Options {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      node: { type: 'string', multiple: true },
      express: { type: 'string', multiple: true },
      json: { type: 'boolean', default: false },
    },
  });
  const nodes = chosen('--node', values.node, nodeLines);
  const expresses = chosen('--express', values.express, expressLines);
  return {
    cells: nodes.flatMap((node) => expresses.map((express) => ({ node, express }))),
    asJson: values.json,
    files: positionals,
  };
}

function chosen(option: string, asked: readonly string[] | undefined, all: readonly string[]): readonly string[] {
  const unknown = asked?.find((line) => !all.includes(line));
  if (unknown !== undefined) throw new TypeError(`${option} takes ${all.join(', ')}, not ${unknown}`);
  return asked ?? all;
}
