import { expect } from 'chai';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  watch,
  writeFileSync,
} from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SessionClaims } from '../lib/claims.ts';
import { recordWorker } from '../lib/dead-workers.ts';
import { checkRuntimeDirectory, createRuntimeDirectory, type RuntimeDirectory } from '../lib/runtime-directory.ts';
import { checkSocketPath, isSocketGone, socketPath } from '../lib/socket-path.ts';

const isRoot = process.geteuid?.() === 0;
const nobody = 65_534;
/** A user who may not send signals to process 1. */
const unprivileged = isRoot ? { uid: nobody, gid: nobody } : { uid: process.geteuid!(), gid: process.getegid!() };
const source = new URL('../lib/runtime-directory.ts', import.meta.url).href;

describe('the runtime directory', () => {
  let parent: string;
  let made: RuntimeDirectory[];
  let servers: Server[];

  beforeEach(() => {
    parent = mkdtempSync(join(tmpdir(), 'esr-spec-'));
    made = [];
    servers = [];
  });

  afterEach(async () => {
    for (const server of servers.filter(({ listening }) => listening)) await once(server.close(), 'close');
    for (const directory of made) directory.remove();
    rmSync(parent, { recursive: true });
  });

  async function create(options: { sweepSeconds?: number } = {}): Promise<RuntimeDirectory> {
    const directory = await createRuntimeDirectory({ parent, ...options });
    made.push(directory);
    return directory;
  }

  async function listen(path: string): Promise<Server> {
    const server = createServer((socket) => socket.destroy()).listen(path);
    servers.push(server);
    await once(server, 'listening');
    return server;
  }

  /** A socket file that its process left when it was killed. */
  async function leaveSocket(path: string): Promise<void> {
    const server = await listen(`${path}.live`);
    renameSync(`${path}.live`, path);
    await once(server.close(), 'close');
  }

  /** A directory as a server leaves it that is killed. */
  function leaveDirectory(pid: number | undefined, suffix = '0123abcd'): string {
    const path = join(parent, `esr-${pid}-${suffix}`);
    mkdirSync(join(path, 'session-claims'), { recursive: true, mode: 0o700 });
    writeFileSync(join(path, 'session-claims', 'claim'), 'x');
    return path;
  }

  function deadPid(): number {
    return spawnSync(process.execPath, ['--version']).pid;
  }

  async function runProgram(program: string, options: { uid?: number; gid?: number } = {}) {
    const argv = ['--import', 'tsx', '--input-type=module', '-e'];
    argv.push(`import { createRuntimeDirectory } from ${JSON.stringify(source)}; ${program}`);
    const env = { ...process.env, TSX_DISABLE_CACHE: '1' };
    const child = spawn(process.execPath, argv, { ...options, env, stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    child.stdout.on('data', (data) => (output += data));
    const [code] = await once(child, 'close');
    return { pid: child.pid, code, output };
  }

  describe('createRuntimeDirectory()', () => {
    it('names the directory for its process and hands its path to the workers', async () => {
      const { path, env } = await create();
      expect(path.slice(parent.length)).to.match(new RegExp(`^/esr-${process.pid}-[0-9a-f]{8}$`));
      expect(env).to.deep.equal({ SESSION_ROUTING_DIR: path });
      checkRuntimeDirectory(path);
    });

    for (const umask of [0, 0o777]) {
      it(`gives it mode 0700 under umask ${umask.toString(8)}`, async () => {
        const before = process.umask(umask);
        try {
          const { path } = await create();
          expect(statSync(path).mode & 0o7777).to.equal(0o700);
          recordWorker(path, 'a'.repeat(32), {});
          expect(statSync(join(path, 'workers')).mode & 0o7777).to.equal(0o700);
          expect(statSync(join(path, 'workers', `${'a'.repeat(32)}.json`)).mode & 0o7777).to.equal(0o600);
        } finally {
          process.umask(before);
        }
      });
    }

    it('removes the directory and its exit listener with remove(), which may be called again', async () => {
      const listeners = process.listenerCount('exit');
      const { path, remove } = await create();
      expect(process.listenerCount('exit')).to.equal(listeners + 1);
      await leaveSocket(join(path, 'a.sock'));
      mkdirSync(join(path, 'session-claims'));
      writeFileSync(join(path, 'session-claims', 'claim'), '');
      remove();
      remove();
      expect(existsSync(path)).to.equal(false);
      expect(process.listenerCount('exit')).to.equal(listeners);
    });

    it('removes the directory when the process exits, and keeps no process alive', async () => {
      const { pid, code, output } = await runProgram(
        `console.log((await createRuntimeDirectory({ parent: ${JSON.stringify(parent)} })).path);`,
      );
      expect(output).to.include(`${parent}/esr-${pid}-`);
      expect(code).to.equal(0);
      expect(readdirSync(parent)).to.deep.equal([]);
    });

    it('refuses a parent under which socket paths are too long, and makes nothing', async () => {
      parent = join(parent, 'x'.repeat(100 - parent.length));
      mkdirSync(parent);
      const error = await createRuntimeDirectory({ parent }).catch((error: Error) => error);
      expect(error).to.be.instanceOf(Error);
      expect(String(error)).to.include('Use a runtime directory with a shorter path');
      expect(readdirSync(parent)).to.deep.equal([]);
      parent = join(parent, '..');
    });
  });

  describe('stale directories', () => {
    it('are removed when their process is gone and no socket in them is listened on', async () => {
      const stale = [leaveDirectory(deadPid()), leaveDirectory(deadPid(), 'ffffffff')];
      await leaveSocket(join(stale[0]!, 'a.sock'));
      const { path } = await create();
      expect(readdirSync(parent).map((name) => join(parent, name))).to.deep.equal([path]);
    });

    it('are left when a worker in them still listens', async () => {
      const left = leaveDirectory(deadPid());
      await leaveSocket(join(left, '0.sock'));
      await listen(join(left, '1.sock'));
      await create();
      expect(existsSync(join(left, 'session-claims', 'claim'))).to.equal(true);
    });

    it('are left when their process lives', async () => {
      const left = leaveDirectory(process.ppid);
      await create();
      expect(existsSync(left)).to.equal(true);
    });

    it('are left when their process lives and belongs to another user', async () => {
      const left = leaveDirectory(1);
      rmSync(join(left, 'session-claims'), { recursive: true });
      chownSync(parent, unprivileged.uid, unprivileged.gid);
      chownSync(left, unprivileged.uid, unprivileged.gid);
      const { code, output } = await runProgram(
        `try { process.kill(1, 0) } catch ({ code }) { console.log(code) }
        await createRuntimeDirectory({ parent: ${JSON.stringify(parent)} });`,
        unprivileged,
      );
      expect(output).to.equal('EPERM\n');
      expect(code).to.equal(0);
      expect(existsSync(left)).to.equal(true);
    });

    it('are removed when an earlier process had the process ID of this one', async () => {
      const stale = leaveDirectory(process.pid, '00000000');
      const left = leaveDirectory(process.pid, 'ffffffff');
      const past = performance.timeOrigin / 1_000 - 60;
      utimesSync(stale, past, past);
      await create();
      expect([stale, left].map(existsSync)).to.deep.equal([false, true]);
    });

    it('are left when they are links, files or of another name', async () => {
      const pid = deadPid();
      const target = join(parent, 'target');
      mkdirSync(target);
      writeFileSync(join(target, 'file'), '');
      symlinkSync(target, join(parent, `esr-${pid}-00000000`));
      writeFileSync(join(parent, `esr-${pid}-11111111`), '');
      const others = [`esr-${pid}-1234567`, `esr-${pid}-ABCDEF01`, `my-esr-${pid}-01234567`, 'esr-x-01234567'];
      for (const name of others) mkdirSync(join(parent, name));
      const before = readdirSync(parent);
      const { path } = await create();
      expect(readdirSync(parent).filter((name) => !path.endsWith(name))).to.deep.equal(before);
      expect(readdirSync(target)).to.deep.equal(['file']);
    });

    it('are left when they belong to another user', async function () {
      if (!isRoot) this.skip();
      const left = leaveDirectory(deadPid());
      chownSync(left, nobody, nobody);
      await create();
      expect(existsSync(join(left, 'session-claims', 'claim'))).to.equal(true);
    });

    it('are no reason not to start when they cannot be removed', async () => {
      const left = leaveDirectory(deadPid());
      const claims = join(left, 'session-claims');
      for (const path of [parent, left, claims]) chownSync(path, unprivileged.uid, unprivileged.gid);
      chmodSync(claims, 0o500);
      const { code, output } = await runProgram(
        `console.log((await createRuntimeDirectory({ parent: ${JSON.stringify(parent)} })).path);`,
        unprivileged,
      );
      expect(code).to.equal(0);
      expect(output).to.include(parent);
      expect(readdirSync(claims)).to.deep.equal(['claim']);
      chmodSync(claims, 0o700);
    });

    it('are removed by several servers at once', async () => {
      const pid = deadPid();
      for (let n = 0; n < 20; n += 1) leaveDirectory(pid, `0000000${n.toString(16)}`.slice(-8));
      await Promise.all(Array.from({ length: 8 }, () => create()));
      expect(readdirSync(parent).filter((name) => name.startsWith(`esr-${pid}-`))).to.deep.equal([]);
      expect(readdirSync(parent)).to.have.length(8);
    });
  });

  describe('isSocketGone()', () => {
    it('is true where nothing is and where nobody listens any more, and false where somebody listens', async () => {
      await leaveSocket(join(parent, 'dead.sock'));
      await listen(join(parent, 'live.sock'));
      const names = ['none.sock', 'dead.sock', 'live.sock'];
      const gone = await Promise.all(names.map((name) => isSocketGone(join(parent, name))));
      expect(gone).to.deep.equal([true, true, false]);
    });

    it('is false for a stopped process whose backlog is full', async () => {
      const path = join(parent, 'full.sock');
      const program = `require('node:net').createServer().listen({ path: ${JSON.stringify(path)}, backlog: 1 }, () => {
        console.log('listening');
        process.kill(process.pid, 'SIGSTOP');
      })`;
      const child = spawn(process.execPath, ['-e', program], { stdio: ['ignore', 'pipe', 'inherit'] });
      const waiting: Socket[] = [];
      try {
        await once(child.stdout, 'data');
        let isFull = false;
        while (!isFull) {
          const socket = connect(path);
          waiting.push(socket);
          await once(socket, 'connect').catch(() => (isFull = true));
        }
        expect(await isSocketGone(path)).to.equal(false);
      } finally {
        for (const socket of waiting) socket.destroy();
        child.kill('SIGKILL');
        await once(child, 'close');
      }
    });
  });

  describe('checkRuntimeDirectory()', () => {
    const refusals: Record<string, [() => string, RegExp]> = {
      'a relative path': [() => 'esr-1-01234567', /is not an absolute path/],
      'a path that does not exist': [() => join(parent, 'none'), /does not exist.*createRuntimeDirectory\(\)/],
      'a symbolic link': [() => link(''), /is a symbolic link/],
      'a symbolic link that ends in a slash': [() => link('/'), /is a symbolic link/],
      'a file': [() => file(), /is not a directory/],
      'a directory that the group may enter': [() => directory(0o710), /has mode 0710.*must be 0700/],
      'a directory that others may read': [() => directory(0o704), /has mode 0704.*must be 0700/],
      "another user's directory": [() => foreign(), /belongs to user \d+, and this process runs as user \d+/],
    };

    function directory(mode: number): string {
      const path = join(parent, 'directory');
      mkdirSync(path);
      chmodSync(path, mode);
      return path;
    }

    function link(ending: string): string {
      symlinkSync(directory(0o700), join(parent, 'link'));
      return join(parent, 'link') + ending;
    }

    function file(): string {
      writeFileSync(join(parent, 'file'), '', { mode: 0o600 });
      return join(parent, 'file');
    }

    function foreign(): string {
      if (!isRoot) return '/';
      const path = directory(0o700);
      chownSync(path, nobody, nobody);
      return path;
    }

    for (const [what, [make, message]] of Object.entries(refusals)) {
      it(`refuses ${what}`, () => {
        const path = make();
        expect(() => checkRuntimeDirectory(path))
          .to.throw(Error, message)
          .with.property('message')
          .that.includes(path);
      });
    }

    it('accepts a directory of this user with mode 0700', () => {
      checkRuntimeDirectory(directory(0o700));
    });
  });

  describe('socketPath()', () => {
    it('is short: the first 16 digits of the worker ID name the socket', () => {
      expect(socketPath('/run/esr', '0123456789abcdef'.repeat(2))).to.equal('/run/esr/0123456789abcdef.sock');
    });
  });

  describe('checkSocketPath()', () => {
    const limit = process.platform === 'linux' ? 107 : 103;

    it('accepts what the platform allows, and a socket is there under that very name', async () => {
      const path = join(parent, 'x'.repeat(limit - parent.length - 1));
      checkSocketPath(path);
      await listen(path);
      expect(statSync(path).isSocket()).to.equal(true);
    });

    it('refuses a byte more, and counts bytes rather than characters', () => {
      for (const path of ['/'.padEnd(limit + 1, 'x'), '/é'.padEnd(limit, 'x')]) {
        expect(() => checkSocketPath(path)).to.throw(`has ${limit + 1} bytes, and this platform allows ${limit}`);
      }
    });
  });

  describe('sweep()', () => {
    const dead = 'd'.repeat(32);
    const living = 'e'.repeat(32);

    /** What a worker with so many claims leaves in the directory, in two identity files. */
    function leaveClaims(path: string, workerId: string, count: number): void {
      for (const folder of ['session-claims', 'identities']) mkdirSync(join(path, folder), { recursive: true });
      for (let n = 0; n < count; n += 1) {
        const identity = join(path, 'identities', `${workerId}.${n % 2}`);
        if (!existsSync(identity)) writeFileSync(identity, workerId);
        linkSync(identity, join(path, 'session-claims', `${workerId.slice(0, 4)}-${n}`));
      }
    }

    function claims(path: string): { dead: number; living: number } {
      const names = readdirSync(join(path, 'session-claims'));
      const count = (workerId: string) => names.filter((name) => name.startsWith(workerId.slice(0, 4))).length;
      return { dead: count(dead), living: count(living) };
    }

    it("removes a dead worker's claims claimsExpireSeconds after it was seen gone, and nobody else's", async () => {
      const { path, sweep } = await create();
      leaveClaims(path, dead, 50);
      leaveClaims(path, living, 50);
      for (const workerId of [dead, living]) recordWorker(path, workerId, { claimsExpireSeconds: 60 });
      await leaveSocket(socketPath(path, dead));
      await listen(socketPath(path, living));

      await sweep(1_000);
      await sweep(1_059.9);
      expect(claims(path)).to.deep.equal({ dead: 50, living: 50 });
      await sweep(1_060);
      expect(claims(path)).to.deep.equal({ dead: 0, living: 50 });
      expect(readdirSync(join(path, 'workers'))).to.deep.equal([`${living}.json`]);
      expect(readdirSync(join(path, 'identities'))).to.have.length(4);
      await sweep(100_000);
      expect(claims(path)).to.deep.equal({ dead: 0, living: 50 });
    });

    it('finds the claims that SessionClaims makes', async () => {
      const { path, sweep } = await create();
      const [deadClaims, livingClaims] = [dead, living].map(
        (workerId) => new SessionClaims({ directory: path, workerId, holds: () => true }),
      );
      deadClaims!.claim('a');
      livingClaims!.claim('b');
      for (const workerId of [dead, living]) recordWorker(path, workerId, { claimsExpireSeconds: 0 });
      await listen(socketPath(path, living));
      await sweep(0);
      expect(livingClaims!.claimant('a')).to.equal(undefined);
      expect(deadClaims!.claimant('b')).to.equal(living);
    });

    it('is called by a timer', async () => {
      const { path } = await create({ sweepSeconds: 0.02 });
      leaveClaims(path, dead, 3);
      const watcher = watch(join(path, 'session-claims'));
      recordWorker(path, dead, { claimsExpireSeconds: 0.01 });
      while (claims(path).dead > 0) await once(watcher, 'change');
      watcher.close();
    });

    it('counts from the death, not from when the worker was recorded', async () => {
      const { path, sweep } = await create();
      leaveClaims(path, dead, 3);
      recordWorker(path, dead, { claimsExpireSeconds: 60 });
      const server = await listen(socketPath(path, dead));
      await sweep(1_000);
      await once(server.close(), 'close');
      await sweep(2_000);
      expect(claims(path).dead).to.equal(3);
      await sweep(2_060);
      expect(claims(path).dead).to.equal(0);
    });

    it('counts anew for a worker that was recorded before it listened', async () => {
      const { path, sweep } = await create();
      leaveClaims(path, living, 3);
      recordWorker(path, living, { claimsExpireSeconds: 60 });
      await sweep(1_000);
      const server = await listen(socketPath(path, living));
      await sweep(1_060);
      await once(server.close(), 'close');
      await sweep(1_070);
      expect(claims(path).living).to.equal(3);
    });

    it('leaves the claims of a dead worker that gave no time', async () => {
      const { path, sweep } = await create();
      leaveClaims(path, dead, 3);
      recordWorker(path, dead, {});
      await sweep(0);
      await sweep(1e9);
      expect(claims(path).dead).to.equal(3);
    });

    it('does not hold up the process while it removes many claims', async () => {
      const { path, sweep } = await create();
      leaveClaims(path, dead, 2_000);
      recordWorker(path, dead, { claimsExpireSeconds: 0 });
      let turns = 0;
      let isSwept = false;
      const swept = sweep(0).finally(() => (isSwept = true));
      while (!isSwept) {
        await new Promise(setImmediate);
        turns += 1;
      }
      await swept;
      expect(claims(path).dead).to.equal(0);
      expect(turns).to.be.greaterThan(2_000);
    });

    it('stops when the directory is removed', async () => {
      const { path, sweep, remove } = await create();
      leaveClaims(path, dead, 100);
      recordWorker(path, dead, { claimsExpireSeconds: 0 });
      const swept = sweep(0);
      remove();
      await swept;
      await sweep(1);
      expect(existsSync(path)).to.equal(false);
    });

    it('finds nothing to do in a new directory', async () => {
      const { sweep } = await create();
      await sweep(0);
    });
  });
});
