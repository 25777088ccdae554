import { expect } from 'chai';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const cli = fileURLToPath(new URL('../lib/cli.ts', import.meta.url));
const app = fileURLToPath(new URL('fixtures/workers-app.js', import.meta.url));
const usage = 'Usage: session-routing [--workers N] [--stop-seconds S] <app.js> [argument...]\n';

describe('session-routing', () => {
  let folder: string;
  let commands: Command[];

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'esr-spec-'));
    commands = [];
  });

  afterEach(async () => {
    for (const { process, ended } of commands) {
      process.kill('SIGKILL');
      await ended;
    }
    expect(readdirSync(folder)).to.deep.equal([]);
    rmSync(folder, { recursive: true });
  });

  /** The command as a process of its own, with its runtime directories in the spec's folder. */
  class Command {
    readonly process: ChildProcess;
    /** Exit code and signal, once the last process that shares the output has ended too. */
    readonly ended: Promise<[number | null, NodeJS.Signals | null]>;
    output = '';
    errors = '';

    constructor(words: string[]) {
      this.process = spawn(process.execPath, ['--import', 'tsx', cli, ...words], {
        env: { ...process.env, TMPDIR: folder, TSX_DISABLE_CACHE: '1' },
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      this.ended = once(this.process, 'close') as typeof this.ended;
      this.process.stdout!.on('data', (data) => (this.output += data));
      this.process.stderr!.on('data', (data) => (this.errors += data));
      commands.push(this);
    }

    /** The process IDs behind the first lines that begin so, once there are so many. */
    async said(what: string, count: number): Promise<number[]> {
      for (;;) {
        const lines = this.output.split('\n').slice(0, -1);
        const found = lines.filter((line) => line.startsWith(what));
        if (found.length >= count) return found.map((line) => Number(line.split(' ').at(-1)));
        await once(this.process.stdout!, 'data');
      }
    }
  }

  it('shows a help text', async () => {
    const command = new Command(['--help']);
    expect(await command.ended).to.deep.equal([0, null]);
    expect(command.output.startsWith(usage)).to.equal(true);
    for (const option of ['--workers N', '--stop-seconds S', '--version']) expect(command.output).to.include(option);
  });

  it('shows the version of the package', async () => {
    const command = new Command(['--version']);
    expect(await command.ended).to.deep.equal([0, null]);
    const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
    expect(command.output).to.equal(`${version}\n`);
  });

  const refusals: [string[], string][] = [
    [[], 'The file of the app is missing.'],
    [['--workers', '2'], 'The file of the app is missing.'],
    [['no-such-app.js'], 'There is no file '],
    [[fileURLToPath(new URL('fixtures', import.meta.url))], 'There is no file '],
    [['--threads', '2', app], "Unknown option '--threads'"],
    [['-w', '2', app], "Unknown option '-w'"],
    [['--workers'], "Option '--workers <value>' argument missing"],
    [['--workers', '0', app], '--workers takes a number from 1 to 1024, and "0" is none.'],
    [['--workers', '2.5', app], '--workers takes a number from 1 to 1024, and "2.5" is none.'],
    [['--workers=', app], '--workers takes a number from 1 to 1024, and "" is none.'],
    [['--stop-seconds', 'soon', app], '--stop-seconds takes a number from 0 to 86400, and "soon" is none.'],
  ];
  for (const [words, message] of refusals) {
    it(`refuses "${words.join(' ').replace(app, 'app.js')}" with the usage and exit status 2`, async () => {
      const command = new Command(words);
      expect(await command.ended).to.deep.equal([2, null]);
      expect(command.errors).to.include(`session-routing: ${message}`);
      expect(command.errors.endsWith(`\n${usage}`)).to.equal(true);
      expect(command.output).to.equal('');
    });
  }

  it('runs the app in so many workers, and passes on what stands behind its file', async () => {
    const command = new Command(['--workers', '3', app, 'curious', '--workers', '9', '--help', '--', 'x']);
    await command.said('listens', 3);
    expect(command.output).to.include('{"args":["--workers","9","--help","--","x"],');
    command.process.kill('SIGTERM');
    expect(await command.ended).to.deep.equal([null, 'SIGTERM']);
    expect(await command.said('listens', 3)).to.have.length(3);
  });

  it('kills workers that have not exited after --stop-seconds', async () => {
    const command = new Command(['--workers=1', '--stop-seconds=0.3', app, 'stubborn']);
    await command.said('listens', 1);
    command.process.kill('SIGINT');
    expect(await command.ended).to.deep.equal([null, 'SIGINT']);
    expect(command.errors).to.include('not exited within 0.3 s of SIGINT');
  });

  it('says so and exits with status 1 when a worker dies at the start', async () => {
    const command = new Command(['--workers', '2', app, 'one-broken']);
    expect(await command.ended).to.deep.equal([1, null]);
    expect(command.errors).to.include(`session-routing: Gave up on ${app}: a worker exited with code 3`);
    expect(command.errors).not.to.include('Usage');
  });

  it('says so and exits with status 1 when no worker can be kept running', async () => {
    const broken = join(folder, 'broken');
    const command = new Command(['--workers', '1', app, 'broken-while', broken]);
    const [pid] = await command.said('listens', 1);
    writeFileSync(broken, '');
    process.kill(pid!, 'SIGKILL');
    expect(await command.ended).to.deep.equal([1, null]);
    expect(command.errors).to.match(/^session-routing: Gave up on .* no worker is left, and 5 in a row died/m);
    rmSync(broken);
  });
});
