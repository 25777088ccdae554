import { expect } from 'chai';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { createRuntimeDirectory } from '../lib/runtime-directory.ts';
import { runWorkers, type RunWorkersOptions } from '../lib/workers.ts';

const app = fileURLToPath(new URL('fixtures/workers-app.js', import.meta.url));
const primaryFile = fileURLToPath(new URL('fixtures/workers-primary.ts', import.meta.url));

interface Report {
  started?: string;
  pids?: number[];
  log?: string;
  own?: string;
  rejected?: string;
  stopped?: true;
  again?: number[] | string;
  stoppedAgain?: true;
  leftListeners?: number[];
}

/** Events that are kept, so that one can be awaited before or after it happens. */
class Inbox<T> {
  readonly all: T[] = [];
  readonly #waiting: (() => void)[] = [];

  add(item: T): void {
    this.all.push(item);
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** The first items that match, as soon as there are so many. */
  async first(count: number, matches: (item: T) => boolean): Promise<T[]> {
    for (;;) {
      const found = this.all.filter(matches);
      if (found.length >= count) return found.slice(0, count);
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}

/** A process of its own that calls `runWorkers()`. Its workers share its standard output. */
class Primary {
  readonly process: ChildProcess;
  readonly #reports = new Inbox<Report>();
  readonly #lines = new Inbox<string>();
  /** Exit code and signal, once the last process that shares the output has ended too. */
  readonly closed: Promise<[number | null, NodeJS.Signals | null]>;
  errors = '';

  constructor(options: object) {
    this.process = fork(primaryFile, [JSON.stringify({ exec: app, workers: 2, ...options })], {
      execArgv: ['--import', 'tsx'],
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      // A process group of its own, so that a signal to the whole group cannot come here.
      detached: true,
    });
    this.closed = once(this.process, 'close') as typeof this.closed;
    this.process.on('message', (report: Report) => this.#reports.add(report));
    this.process.stderr!.on('data', (data) => (this.errors += data));
    createInterface({ input: this.process.stdout! }).on('line', (line) => this.#lines.add(line));
  }

  async report<Key extends keyof Report>(key: Key, index = 0): Promise<Report & Required<Pick<Report, Key>>> {
    const reports = await this.#reports.first(index + 1, (report) => key in report);
    return reports[index] as Report & Required<Pick<Report, Key>>;
  }

  /** The process IDs behind the first lines that begin so. */
  async said(what: string, count = 2): Promise<number[]> {
    const lines = await this.#lines.first(count, (line) => line.startsWith(what));
    return lines.map((line) => Number(line.split(' ').at(-1)));
  }

  /** The last of so many log lines that have all these parts. */
  async logged(count: number, ...parts: string[]): Promise<string> {
    const matches = ({ log }: Report) => parts.every((part) => log?.includes(part));
    return (await this.#reports.first(count, matches))[count - 1]!.log!;
  }

  get reports(): Report[] {
    return this.#reports.all;
  }

  get lines(): string[] {
    return this.#lines.all;
  }

  ask(request: object): void {
    this.process.send(request);
  }

  async pids(index: number): Promise<number[]> {
    this.ask({ ask: 'pids' });
    return (await this.report('pids', index)).pids;
  }
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

describe('runWorkers()', () => {
  let parent: string;
  let primaries: Primary[];

  beforeEach(() => {
    parent = mkdtempSync(join(tmpdir(), 'esr-spec-'));
    primaries = [];
  });

  afterEach(async () => {
    for (const { process, closed } of primaries) {
      process.kill('SIGKILL');
      await closed;
    }
    rmSync(parent, { recursive: true });
  });

  /** Runs workers that behave in one of the ways of `fixtures/workers-app.js`. */
  function run(behaviour: string, options: Partial<RunWorkersOptions> & object = {}): Primary {
    const primary = new Primary({ parent, args: [behaviour], ...options });
    primaries.push(primary);
    return primary;
  }

  function expectNothingLeft(pids: number[]): void {
    expect(pids.filter(isRunning)).to.deep.equal([]);
    expect(readdirSync(parent)).to.deep.equal([]);
  }

  describe('the start', () => {
    it('resolves when every worker listens', async () => {
      const primary = run('plain', { workers: 3 });
      const { pids } = await primary.report('started');
      expect(pids).to.have.length(3);
      expect(pids).to.have.members(await primary.said('listens', 3));
    });

    it('gives the workers their arguments, their environment and a runtime directory', async () => {
      const primary = run('', { args: ['curious', '--port', '3000'], env: { GREETING: 'hello' } });
      const { started: directory } = await primary.report('started');
      await primary.said('{');
      expect(statSync(directory).mode & 0o777).to.equal(0o700);
      const expected = JSON.stringify({ args: ['--port', '3000'], directory, greeting: 'hello' });
      expect(primary.lines.filter((line) => line.startsWith(expected))).to.have.length(2);
    });

    it('makes a runtime directory for a single worker too', async () => {
      const primary = run('plain', { workers: 1 });
      const { started: directory } = await primary.report('started');
      expect(readdirSync(parent).map((name) => join(parent, name))).to.deep.equal([directory]);
    });

    it('rejects when a worker dies before it listens, and leaves nothing', async () => {
      const primary = run('one-broken');
      const { rejected, leftListeners } = await primary.report('rejected');
      expect(rejected).to.equal(
        `Error: Gave up on ${app}: a worker exited with code 3 before it listened on a port, which every worker must. ` +
          'What it printed may say why.',
      );
      expect(leftListeners).to.deep.equal([0, 0, 0]);
      expect(readdirSync(parent)).to.deep.equal([]);
      // No process is left that could hold the output open.
      primary.ask({ ask: 'leave' });
      expect(await primary.closed).to.deep.equal([0, null]);
    });

    it('does not take the private socket of a worker for its port', async () => {
      const { rejected } = await run('private-only').report('rejected');
      expect(rejected).to.include('a worker exited with code 5 before it listened');
    });

    it('rejects when no process can be made', async () => {
      const primary = run('plain', { cwd: join(parent, 'none'), hasOwnListener: true } as object);
      const { rejected } = await primary.report('rejected');
      expect(rejected).to.match(/a worker could not be made \(spawn .* ENOENT\)/);
      primary.ask({ ask: 'leave' });
      expect(await primary.closed).to.deep.equal([0, null]);
      // Nor was a signal sent to process 0, which is everyone.
      expect(primary.reports.filter(({ own }) => own !== undefined)).to.deep.equal([]);
      expect(readdirSync(parent)).to.deep.equal([]);
    });

    it('ends by a signal that comes before every worker listens', async () => {
      const primary = run('idle');
      const pids = await primary.said('idles');
      primary.process.kill('SIGTERM');
      expect(await primary.closed).to.deep.equal([null, 'SIGTERM']);
      expectNothingLeft(pids);
    });

    it('is refused in a cluster worker, as is createRuntimeDirectory()', async () => {
      const primary = run('nested');
      await primary.said('runWorkers() was called in a cluster worker');
      await primary.said('createRuntimeDirectory() was called in a cluster worker');
    });

    it('is refused while other workers run in the same process, and possible after them', async () => {
      const primary = run('plain');
      await primary.report('started');
      primary.ask({ ask: 'run again' });
      const { again: refused } = await primary.report('again');
      expect(refused).to.include('runWorkers() is running in this process already');
      primary.ask({ ask: 'stop' });
      await primary.report('stopped');
      primary.ask({ ask: 'run again' });
      const { again: pids } = await primary.report('again', 1);
      expect(pids).to.have.length(2);
      await primary.report('stoppedAgain');
      expectNothingLeft(pids as number[]);
    });

    const refusals: [object, string][] = [
      [{}, '"exec"'],
      [{ exec: new URL('http://localhost/app.js') }, '"exec": must be a path or a file: URL'],
      [{ exec: app, workers: 0 }, '"workers"'],
      [{ exec: app, workers: 1.5 }, '"workers"'],
      [{ exec: app, workers: 1025 }, '"workers"'],
      [{ exec: app, args: 'x' }, '"args"'],
      [{ exec: app, env: { PORT: 3000 } }, '"env.PORT"'],
      [{ exec: app, stopSeconds: -1 }, '"stopSeconds"'],
      [{ exec: app, stopSeconds: Infinity }, '"stopSeconds"'],
      [{ exec: app, log: true }, '"log"'],
      [{ exec: app, worker: 2 }, '"worker"; did you mean "workers"?'],
    ];
    for (const [options, message] of refusals) {
      it(`refuses ${JSON.stringify(options).replace(app, 'app.js')} with a TypeError that names the option`, async () => {
        const error = await runWorkers(options as RunWorkersOptions).catch((error: unknown) => error);
        expect(error).to.be.instanceOf(TypeError).with.property('message').that.includes(message);
      });
    }
  });

  describe('a signal', () => {
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
      it(`${signal} goes to every worker, and ends this process when they have exited`, async () => {
        const primary = run('graceful');
        const { pids = [] } = await primary.report('started');
        primary.process.kill(signal);
        expect(await primary.closed).to.deep.equal([null, signal]);
        expect(await primary.said(`got ${signal}`)).to.have.members(pids);
        expect(await primary.said('done')).to.have.members(pids);
        expectNothingLeft(pids);
      });
    }

    it('kills workers that have not exited after stopSeconds', async () => {
      const primary = run('stubborn', { stopSeconds: 0.3 });
      const { pids = [] } = await primary.report('started');
      primary.process.kill('SIGTERM');
      expect(await primary.closed).to.deep.equal([null, 'SIGTERM']);
      await primary.logged(1, `not exited within 0.3 s of SIGTERM: ${pids.join(', ')}.`);
      expectNothingLeft(pids);
    });

    it('that is the second one kills the workers at once', async () => {
      const primary = run('stubborn', { stopSeconds: 600 });
      const { pids = [] } = await primary.report('started');
      primary.process.kill('SIGTERM');
      await primary.said('got SIGTERM');
      primary.process.kill('SIGINT');
      expect(await primary.closed).to.deep.equal([null, 'SIGTERM']);
      expectNothingLeft(pids);
    });

    it('that comes twice, as from a terminal and npm, is one', async () => {
      const primary = run('graceful');
      const { pids = [] } = await primary.report('started');
      primary.ask({ raise: ['SIGINT', 'SIGINT'] });
      expect(await primary.closed).to.deep.equal([null, 'SIGINT']);
      expect(await primary.said('done')).to.have.members(pids);
    });

    it('stops the workers and leaves the process to its other listeners for that signal', async () => {
      const primary = run('graceful', { hasOwnListener: true } as object);
      const { pids = [] } = await primary.report('started');
      primary.process.kill('SIGTERM');
      const { leftListeners } = await primary.report('stopped');
      await primary.report('own');
      expect(leftListeners).to.deep.equal([0, 0, 0]);
      expect(primary.process.exitCode ?? primary.process.signalCode).to.equal(null);
      expectNothingLeft(pids);
    });

    it('is not handled with signals: false', async () => {
      const primary = run('graceful', { signals: false });
      await primary.report('started');
      primary.process.kill('SIGTERM');
      expect(await primary.closed).to.deep.equal([null, 'SIGTERM']);
      expect(primary.lines.filter((line) => line.startsWith('got'))).to.deep.equal([]);
    });
  });

  describe('stop()', () => {
    it('sends SIGTERM, waits for the workers, and leaves nothing', async () => {
      const primary = run('graceful');
      const { pids = [] } = await primary.report('started');
      primary.ask({ ask: 'stop' });
      const { leftListeners } = await primary.report('stopped');
      expect(leftListeners).to.deep.equal([0, 0, 0]);
      expect(await primary.said('got SIGTERM')).to.have.members(pids);
      expect(await primary.said('done')).to.have.members(pids);
      expectNothingLeft(pids);
      primary.ask({ ask: 'leave' });
      expect(await primary.closed).to.deep.equal([0, null]);
    });

    it('sends the signal that it is given, and kills at once when it is called again with SIGKILL', async () => {
      const primary = run('stubborn', { stopSeconds: 600 });
      const { pids = [] } = await primary.report('started');
      primary.ask({ stop: 'SIGHUP' });
      await primary.said('got SIGHUP');
      primary.ask({ stop: 'SIGTERM' });
      primary.ask({ stop: 'SIGKILL' });
      await primary.report('stopped');
      expectNothingLeft(pids);
    });
  });

  describe('a worker that dies', () => {
    it('is replaced, beside the workers that live', async () => {
      const primary = run('plain');
      const { pids: [killed = 0, left = 0] = [] } = await primary.report('started');
      await primary.said('listens');
      process.kill(killed, 'SIGKILL');
      const log = await primary.logged(1, `Worker ${killed} was killed by SIGKILL`);
      expect(log).to.include('Another takes its place in 0.1 s');
      const [, , replacement] = await primary.said('listens', 3);
      expect(await primary.pids(1)).to.have.members([left, replacement]);
      expect(replacement).not.to.equal(killed);
    });

    it('is replaced after twice as long each time, and after 0.1 s again when it has lived for 10 s', async () => {
      const primary = run('plain', { workers: 1 });
      for (const [n, delay] of ['0.1 s', '0.2 s', '0.4 s', '0.1 s', '0.2 s'].entries()) {
        const pid = (await primary.said('listens', n + 1)).at(-1)!;
        if (n === 0) await primary.report('started');
        if (n === 3) {
          primary.ask({ ask: 'age' });
          await primary.pids(1);
        }
        process.kill(pid, 'SIGKILL');
        expect(await primary.logged(1, `Worker ${pid} `)).to.include(`in ${delay}.`);
      }
    });

    it('is replaced again when its replacement dies before it listens, while others listen', async () => {
      const broken = join(parent, 'broken');
      const primary = run('', { workers: 3, args: ['broken-while', broken] });
      const { pids = [] } = await primary.report('started');
      await primary.said('listens', 3);
      writeFileSync(broken, '');
      for (const pid of pids.slice(1)) process.kill(pid, 'SIGKILL');
      // Six times, which is more than it takes to give up when none listens.
      for (const delay of ['0.2 s', '0.4 s', '0.8 s']) await primary.logged(2, 'exited with code 4', `in ${delay}.`);
      rmSync(broken);
      await primary.said('listens', 5);
      expect(await primary.pids(1))
        .to.have.length(3)
        .and.include(pids[0]);
    });

    it('is given up when none listens any more and five replacements in a row died before they listened', async () => {
      const broken = join(parent, 'broken');
      const primary = run('', { args: ['broken-while', broken], ignoresStopped: true } as object);
      const { started: directory, pids = [] } = await primary.report('started');
      writeFileSync(broken, '');
      for (const pid of pids) process.kill(pid, 'SIGKILL');
      // Nobody handles the rejection of `stopped`, which ends the process.
      expect(await primary.closed).to.deep.equal([1, null]);
      expect(primary.errors).to.include('no worker is left, and 5 in a row died before they listened');
      expect(primary.errors).to.include('the last one exited with code 4');
      expect(existsSync(directory)).to.equal(false);
    });
  });

  describe('a primary that is killed', () => {
    it('takes its workers with it, and its directory is removed by the next', async () => {
      const primary = run('stubborn');
      const { started: left } = await primary.report('started');
      primary.process.kill('SIGKILL');
      // The workers hold the output open for as long as they run.
      expect(await primary.closed).to.deep.equal([null, 'SIGKILL']);
      expect(existsSync(left)).to.equal(true);
      const next = await createRuntimeDirectory({ parent });
      expect(existsSync(left)).to.equal(false);
      next.remove();
    });
  });
});
