import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { failures, toJson, toTable, type Report } from '../examples/main-job/report.ts';
import { until } from './fixtures/example-server.ts';

const file = fileURLToPath(new URL('../examples/start.ts', import.meta.url));

/**
 * Starts `examples/start.ts`, with a folder for temporary files of its own if one is given. What tsx has kept of its
 * files is in the folder that all share.
 */
function start(words: string[], temporary = tmpdir()) {
  const child = spawn(process.execPath, ['--import', 'tsx', file, ...words], {
    env: { ...process.env, TMPDIR: temporary },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = Promise.all([once(child, 'exit'), text(child.stdout), text(child.stderr)]).then(
    ([[status, signal], stdout, stderr]) => ({ status, signal, stdout, stderr }),
  );
  return { child, ended };
}

describe('examples/start.ts', () => {
  let temporary: string;
  beforeEach(() => void (temporary = mkdtempSync(join(tmpdir(), 'start-spec-'))));
  afterEach(() => rmSync(temporary, { recursive: true }));

  /** The runtime directories of servers that run, or were left behind. Their names hold the server's process ID. */
  function runtimeDirectories(): string[] {
    return readdirSync(temporary).filter((name) => name.startsWith('esr-'));
  }

  it('--json prints one object and nothing else, and ends with 0 when all went as it must', async function () {
    this.timeout(180_000);
    const words = ['--json', '--episodes', '40', '--workers', '3'];
    const { status, stdout, stderr } = await start(words, temporary).ended;
    expect([status, stderr]).to.deep.equal([0, '']);
    const { runs, ...rest } = JSON.parse(stdout);
    expect(rest).to.deep.equal({ workers: 3, episodes: 40 });
    const [oneWorker, unrouted, routed, typed] = runs;
    const right = { reward1: 40, reward0: 0, claimsLeft: 0 };
    expect(oneWorker).to.deep.equal({ name: 'one-worker', ...right, forwarded: 0, local: 160 });
    const { reward1, reward0, ...others } = unrouted;
    expect(others).to.deep.equal({ name: 'unrouted', forwarded: 0, local: 160, claimsLeft: 0 });
    expect(reward1 + reward0).to.equal(40);
    expect(reward0).to.be.above(reward1);
    for (const [name, run] of [
      ['routed', routed],
      ['typed-episodes', typed],
    ]) {
      const { forwarded, local, ...result } = run;
      expect(result).to.deep.equal({ name, ...right });
      expect(forwarded + local).to.equal(160);
      expect(forwarded).to.be.above(80);
    }
    expect(stdout).to.equal(`${JSON.stringify({ ...rest, runs })}\n`);
    expect(runtimeDirectories()).to.deep.equal([]);
  });

  it('--help says what there is', async () => {
    const { status, stdout, stderr } = await start(['--help']).ended;
    expect([status, stderr]).to.deep.equal([0, '']);
    for (const option of ['--workers', '--episodes', '--json', '--help']) expect(stdout).to.contain(option);
  });

  for (const words of [
    ['--workers', '1'],
    ['--workers', 'two'],
    ['--workers', '65'],
    ['--workers'],
    ['--workers', '-4'],
    ['--episodes', '0'],
    ['--episodes', '1e3'],
    ['--episodes', ''],
    ['--json=yes'],
    ['--fast'],
    ['200'],
  ]) {
    it(`refuses ${words.join(' ') || 'nothing'} with a line and status 2`, async () => {
      const { status, stdout, stderr } = await start(words).ended;
      expect([status, stdout]).to.deep.equal([2, '']);
      expect(stderr).to.match(/^[^\n]+\n$/);
    });
  }

  it('ends with 1 and says so when the server does not start', async () => {
    const tooLong = join(temporary, 'x'.repeat(100));
    mkdirSync(tooLong);
    const { status, stdout, stderr } = await start([], tooLong).ended;
    expect([status, stdout]).to.deep.equal([1, '']);
    expect(stderr).to.match(/The counter server ended before it listened \(exit status 1\)\.\n$/);
  });

  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    it(`stopped by ${signal}, dies of it and leaves no process and no directory`, async () => {
      const { child, ended } = start(['--json'], temporary);
      await until(() => runtimeDirectories().length > 0);
      const server = Number(runtimeDirectories()[0]?.split('-')[1]);
      expect(isRunning(server)).to.equal(true);
      child.kill(signal);
      const result = await ended;
      expect(result).to.deep.equal({ status: null, signal, stdout: '', stderr: '' });
      expect(isRunning(server)).to.equal(false);
      expect(runtimeDirectories()).to.deep.equal([]);
    });
  }

  it('killed by SIGKILL, leaves no process and no directory either', async () => {
    const { child, ended } = start(['--json'], temporary);
    await until(() => runtimeDirectories().length > 0);
    const server = Number(runtimeDirectories()[0]?.split('-')[1]);
    child.kill('SIGKILL');
    await ended;
    await until(() => !isRunning(server));
    expect(runtimeDirectories()).to.deep.equal([]);
  });
});

function isRunning(processId: number): boolean {
  try {
    return process.kill(processId, 0);
  } catch {
    return false;
  }
}

describe('the report of the main job', () => {
  const common = { reward1: 200, reward0: 0, forwarded: 0, local: 800, claimsLeft: 0, seconds: 1.04 };
  const oneWorker = { ...common, name: 'one-worker' };
  const unrouted = { ...common, name: 'unrouted', reward1: 9, reward0: 191 };
  const routed = { ...common, name: 'routed', forwarded: 600, local: 200 };
  const typed = { ...routed, name: 'typed-episodes' };

  function report(...runs: Report['runs'][number][]): Report {
    return { workers: 4, episodes: 200, runs };
  }

  it('has nothing to say when all went as it must', () => {
    expect(failures(report(oneWorker, unrouted, routed, typed))).to.deep.equal([]);
  });

  it('says what failed', () => {
    const failed = report(
      { ...oneWorker, reward1: 199, reward0: 1, problem: 'POST /verify: status 410' },
      { ...unrouted, reward1: 100, reward0: 100 },
      { ...routed, reward1: 198, reward0: 2, forwarded: 399, local: 401, claimsLeft: 3 },
      { ...typed, reward1: 199, reward0: 1, problem: 'verify: status 410', forwarded: 0, local: 800, claimsLeft: 1 },
    );
    expect(failures(failed)).to.deep.equal([
      'one-worker: 1 of 200 episodes scored 0.0 (POST /verify: status 410).',
      'unrouted: 100 of 200 episodes scored 1.0, so the fault did not show.',
      'routed: 2 of 200 episodes scored 0.0.',
      'routed: 3 claims were left after the window.',
      'routed: only 399 of 800 requests after the seeds were forwarded.',
      'typed-episodes: 1 of 200 episodes scored 0.0 (verify: status 410).',
      'typed-episodes: 1 claims were left after the window.',
      'typed-episodes: only 0 of 800 requests after the seeds were forwarded.',
    ]);
  });

  it('expects two workers to forward less than more workers', () => {
    const evenly = { ...routed, forwarded: 390, local: 410 };
    expect(failures({ ...report(oneWorker, unrouted, evenly), workers: 2 })).to.deep.equal([]);
    expect(failures(report(oneWorker, unrouted, evenly))).to.have.length(1);
  });

  it('is a table for people and an object without times for programs', () => {
    const all = report(oneWorker, unrouted, routed);
    const lines = toTable(all).split('\n').slice(-4);
    expect(lines.map((line) => line.split(/ {2,}/))).to.deep.equal([
      ['', 'reward 1.0', 'reward 0.0', 'served locally', 'forwarded', 'claims left', 'seconds'],
      ['one-worker', '200', '0', '800', '0', '0', '1.0'],
      ['unrouted', '9', '191', '800', '0', '0', '1.0'],
      ['routed', '200', '0', '200', '600', '0', '1.0'],
    ]);
    const { seconds: _, ...plain } = routed;
    expect(JSON.parse(toJson(all)).runs[2]).to.deep.equal(plain);
  });
});
