/**
 * The specs on every line of Node and of Express that the package supports: each Node is the npm package `node`,
 * installed into a temporary folder.
 *
 *     node --import tsx spec/nodes/run.ts [--node 22] [--express 4] [--json] [files of specs]
 *
 * Exits with 1 if a spec fails, or if a process of a cell ran another Node or Express than the cell's.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseOptions, type Cell } from './matrix.ts';

interface Failure {
  readonly fullTitle: string;
  readonly err: { readonly message?: string; readonly stack?: string };
}

/** What mocha's JSON reporter writes. */
interface MochaReport {
  readonly stats: { readonly passes: number; readonly failures: number; readonly pending: number };
  readonly failures: readonly Failure[];
}

interface CellResult {
  readonly node: string;
  readonly express: string;
  readonly passed: number;
  readonly failed: number;
  readonly pending: number;
  readonly seconds: number;
  /** What went wrong, a line each. */
  readonly faults: readonly string[];
}

const root = fileURLToPath(new URL('../..', import.meta.url));
const preload = new URL('cell.js', import.meta.url).href;
const mocha = join(root, 'node_modules/mocha/bin/mocha.js');
const { mocha: configuration } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  mocha: { import: string; spec: string[]; ignore: string[]; timeout: number };
};

const { cells, asJson, files } = parseOptions(process.argv.slice(2));
const temporary = mkdtempSync(join(tmpdir(), 'nodes-'));
chmodSync(temporary, 0o755); // a spec runs Node as another user
let running: ChildProcess | undefined;
let interruption: NodeJS.Signals | undefined;
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.once(signal, () => {
    interruption = signal;
    endGroup(running);
  });
}

/** A run that takes longer has got stuck: on a slow machine a whole cell takes a quarter of an hour. */
const limitMs = 45 * 60_000;
/** After its report, mocha ends unless a spec has left something open. */
const endMs = 60_000;

/** Ends a program and all that it started: mocha kills no server that its specs started. */
function endGroup(child: ChildProcess | undefined): void {
  try {
    if (child?.pid !== undefined) process.kill(-child.pid, 'SIGTERM');
  } catch {
    // It is gone.
  }
}

/** Runs a program in a process group of its own. What it prints goes to stderr, or is returned if `reads`. */
async function run(
  command: string,
  args: readonly string[],
  { env = process.env, reads = false }: { env?: NodeJS.ProcessEnv; reads?: boolean } = {},
): Promise<{ code: unknown; output: string }> {
  if (interruption !== undefined) throw new Error(`interrupted by ${interruption}`);
  const child = spawn(command, args, {
    cwd: root,
    env,
    detached: true,
    stdio: ['ignore', reads ? 'pipe' : 2, 'inherit'],
  });
  running = child;
  let output = '';
  child.stdout?.setEncoding('utf8').on('data', (text: string) => (output += text));
  const [code, signal] = await once(child, 'close');
  if (interruption !== undefined) throw new Error(`interrupted by ${interruption}`);
  return { code: code ?? signal, output };
}

/** Installs a line of Node, unless that has been done. Returns the folder of its binary. */
async function installNode(line: string): Promise<string> {
  const folder = join(temporary, line);
  const bin = join(folder, 'node_modules/node/bin');
  if (existsSync(bin)) return bin;
  mkdirSync(folder, { recursive: true });
  const args = [
    'install',
    `node@${line}`,
    '--prefix',
    folder,
    '--no-save',
    '--no-audit',
    '--no-fund',
    '--loglevel=error',
  ];
  const { code } = await run('npm', args);
  if (code !== 0 || !existsSync(join(bin, 'node'))) throw new Error(`npm could not install Node ${line} (${code})`);
  return bin;
}

/** What stands in the cell: the version of Node, and the URL of Express's main file. */
async function versionsIn(node: string, env: NodeJS.ProcessEnv): Promise<{ node: string; express: string }> {
  const program = `
    import { createRequire } from 'node:module';
    const require = createRequire(process.cwd() + '/spec/nodes/run.ts');
    // Whichever way a module is loaded, it has to get the same one.
    if (require('express') !== (await import('express')).default) throw new Error('there are two Expresses');
    console.log(JSON.stringify({ node: process.version, express: import.meta.resolve('express') }));`;
  const { output } = await run(node, ['--import', 'tsx', '--input-type=module', '--eval', program], {
    env,
    reads: true,
  });
  const found = JSON.parse(output) as { node: string; express: string };
  const { version } = JSON.parse(readFileSync(join(dirname(fileURLToPath(found.express)), 'package.json'), 'utf8'));
  return { node: found.node, express: version };
}

/** The runs of mocha that make up a cell: nock has to have a process of its own. */
function mochaRuns(): string[][] {
  const { import: loader, spec, ignore, timeout } = configuration;
  const common = ['--no-package', `--import=${loader}`, `--timeout=${timeout}`];
  const isNock = (file: string) => file.endsWith('.nock.spec.ts');
  const ordinary = files.length === 0 ? spec : files.filter((file) => !isNock(file));
  const nock = files.length === 0 ? ['spec/*.nock.spec.ts'] : files.filter(isNock);
  return [
    [...common, ...ignore.flatMap((pattern) => ['--ignore', pattern]), ...ordinary],
    [...common, ...nock],
  ].filter((_, index) => [ordinary, nock][index]!.length > 0);
}

async function runCell(cell: Cell): Promise<CellResult> {
  const bin = await installNode(cell.node);
  const node = join(bin, 'node');
  const name = `node-${cell.node}-express-${cell.express}`;
  const strangers = join(temporary, `${name}.strangers`);
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    PATH: `${bin}${delimiter}${process.env['PATH']}`,
    NODE_OPTIONS: `--import=${preload}`,
    CELL_EXPRESS: cell.express,
  };
  const versions = await versionsIn(node, env);
  Object.assign(env, { CELL_NODE: versions.node, CELL_STRANGERS: strangers });
  const faults: string[] = [];
  if (!versions.node.startsWith(`v${cell.node}.`)) faults.push(`Node is ${versions.node}`);
  if (!versions.express.startsWith(`${cell.express}.`)) faults.push(`Express is ${versions.express}`);
  console.error(`\nNode ${versions.node}, Express ${versions.express}`);

  const counts = { passed: 0, failed: 0, pending: 0 };
  const begin = performance.now();
  for (const [index, args] of mochaRuns().entries()) {
    const report = join(temporary, `${name}-${index}.json`);
    const options = ['--reporter', 'json', '--reporter-option', `output=${report}`];
    const begun = performance.now();
    let reportedAt = Infinity;
    const watch = setInterval(() => {
      const now = performance.now();
      if (reportedAt === Infinity && existsSync(report)) reportedAt = now;
      if (now - begun > limitMs || now - reportedAt > endMs) endGroup(running);
    }, 1_000);
    const { code } = await run(node, [mocha, ...options, ...args], { env }).finally(() => clearInterval(watch));
    if (performance.now() - reportedAt > endMs) faults.push('a spec left something open: mocha did not end');
    if (!existsSync(report)) {
      faults.push(`mocha ended with ${code} and wrote no report`);
      continue;
    }
    const { stats, failures } = JSON.parse(readFileSync(report, 'utf8')) as MochaReport;
    counts.passed += stats.passes;
    counts.failed += stats.failures;
    counts.pending += stats.pending;
    for (const { fullTitle, err } of failures) faults.push(`${fullTitle}: ${err.stack ?? err.message}`);
    if (stats.failures === 0 && code !== 0) faults.push(`mocha ended with ${code}`);
  }
  const seconds = Math.round((performance.now() - begin) / 1000);
  if (counts.passed === 0) faults.push('no spec passed');
  if (existsSync(strangers)) faults.push(`other Nodes ran:\n${readFileSync(strangers, 'utf8')}`);
  for (const fault of faults) console.error(`  ${fault}`);
  console.error(`  ${counts.passed} passed, ${counts.failed} failed, ${counts.pending} pending, ${seconds} s`);
  return { node: versions.node.slice(1), express: versions.express, ...counts, seconds, faults };
}

const results: CellResult[] = [];
try {
  for (const cell of cells) results.push(await runCell(cell));
} catch (error) {
  if (interruption === undefined) throw error;
} finally {
  rmSync(temporary, { recursive: true, force: true });
}
if (asJson) console.log(JSON.stringify(results));
else console.table(results.map(({ faults, ...row }) => ({ ...row, holds: faults.length === 0 })));
if (interruption !== undefined) process.kill(process.pid, interruption);
else if (results.some(({ faults }) => faults.length > 0)) process.exitCode = 1;
