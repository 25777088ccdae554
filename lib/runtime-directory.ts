import cluster from 'node:cluster';
import { randomBytes } from 'node:crypto';
import { chmodSync, lstatSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { lstat, opendir, readdir, readFile, rm, unlink } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { debuglog } from 'node:util';

/** The environment variable in which the workers of a server find their runtime directory. */
export const runtimeDirectoryVariable = 'SESSION_ROUTING_DIR';

const debug = debuglog('session-routing');
const claimsFolder = 'session-claims';
const identitiesFolder = 'identities';
const workersFolder = 'workers';

/** `sun_path` holds 108 bytes on Linux and 104 on macOS and the BSDs, the closing zero byte among them. */
const socketPathBytes = process.platform === 'linux' ? 107 : 103;
/** A socket that neither takes nor refuses a connection for so long has a full backlog: its process is stuck, not gone. */
const connectMilliseconds = 1_000;

/** The runtime directory of one running server, as its primary process holds it. */
export interface RuntimeDirectory {
  readonly path: string;
  /** To be spread into the environment of every worker. */
  readonly env: { readonly [runtimeDirectoryVariable]: string };
  /**
   * Removes the claims of workers that were seen gone `claimsExpireSeconds` ago or longer (see {@link recordWorker}).
   * A timer calls it.
   *
   * @param nowSeconds the time of a monotonic clock
   */
  sweep(nowSeconds: number): Promise<void>;
  /** Removes the directory with all that is in it. Also done when the process exits. May be called again. */
  remove(): void;
}

/** Where a worker listens for requests that its siblings forward: short, because the length of such paths is limited. */
export function socketPath(directory: string, workerId: string): string {
  return join(directory, `${workerId.slice(0, 16)}.sock`);
}

/**
 * Checks that a Unix socket can have this path. Node itself cuts a longer one and listens under another name.
 *
 * @throws Error when the path is longer than the platform allows: 107 bytes on Linux, 103 on macOS and the BSDs
 */
export function checkSocketPath(path: string): void {
  const bytes = Buffer.byteLength(path);
  if (bytes <= socketPathBytes) return;
  throw new Error(
    `The socket path "${path}" has ${bytes} bytes, and this platform allows ${socketPathBytes}. ` +
      'Use a runtime directory with a shorter path.',
  );
}

/**
 * Checks that nobody but this user can have put anything into a runtime directory.
 *
 * @throws Error unless the path is absolute and that of a directory (no symbolic link) which this user owns and no
 *   other user may enter
 */
export function checkRuntimeDirectory(path: string): void {
  const refuse = (seen: string) => new Error(`The runtime directory "${path}" ${seen}`);
  if (!isAbsolute(path)) throw refuse('is not an absolute path. Give the whole path.');
  // Resolved, because lstat() follows a link whose path ends in a slash.
  const stats = lstatSync(resolve(path), { throwIfNoEntry: false });
  if (stats === undefined) {
    throw refuse('does not exist. The primary makes it with createRuntimeDirectory() or runWorkers(), and removes it.');
  }
  if (stats.isSymbolicLink()) throw refuse('is a symbolic link. Give the path of the directory itself.');
  if (!stats.isDirectory()) throw refuse('is not a directory.');
  const user = currentUser();
  if (stats.uid !== user) {
    throw refuse(`belongs to user ${stats.uid}, and this process runs as user ${user}. Make it as the same user.`);
  }
  if ((stats.mode & 0o077) !== 0) {
    const mode = (stats.mode & 0o777).toString(8).padStart(4, '0');
    throw refuse(`has mode ${mode}, so other users may enter it. Its mode must be 0700.`);
  }
}

/**
 * Makes a runtime directory for the workers of this process, `<parent>/esr-<pid>-<8 hex digits>` with mode 0700, and
 * removes those that servers of this user left behind when they were killed.
 *
 * @param options.parent default: the system's folder for temporary files
 * @param options.sweepSeconds seconds between two sweeps of the claims of dead workers; default: 30
 * @throws Error in a cluster worker, and when the directory cannot be made there
 */
export async function createRuntimeDirectory({
  parent = tmpdir(),
  sweepSeconds = 30,
}: { parent?: string; sweepSeconds?: number } = {}): Promise<RuntimeDirectory> {
  if (cluster.isWorker) {
    throw new Error(
      'createRuntimeDirectory() was called in a cluster worker. Call it once in the primary, which hands the path ' +
        `to all its workers in ${runtimeDirectoryVariable}; with a directory each they could not find one another.`,
    );
  }
  const folder = resolve(parent);
  const path = join(folder, `esr-${process.pid}-${randomBytes(4).toString('hex')}`);
  checkSocketPath(socketPath(path, '0'.repeat(32)));
  await removeStaleDirectories(folder);
  makePrivate(path);

  const deadWorkers = new DeadWorkers(path);
  const timer = setInterval(() => {
    deadWorkers.sweep(performance.now() / 1_000).catch((error: unknown) => debug('sweep of %s: %O', path, error));
  }, sweepSeconds * 1_000).unref();
  const remove = () => {
    clearInterval(timer);
    deadWorkers.stop();
    process.off('exit', remove);
    // Retried, because workers that have not exited yet may be adding files.
    rmSync(path, { recursive: true, force: true, maxRetries: 3 });
  };
  process.on('exit', remove);
  return {
    path,
    env: { [runtimeDirectoryVariable]: path },
    sweep: (nowSeconds) => deadWorkers.sweep(nowSeconds),
    remove,
  };
}

/**
 * Tells the primary of a worker, so that it can remove the worker's claims some time after the worker's death.
 * To be called once the worker listens on its private socket.
 *
 * @param options.claimsExpireSeconds how long after its death its claims go; without it they stay until the server exits
 */
export function recordWorker(
  directory: string,
  workerId: string,
  { claimsExpireSeconds }: { claimsExpireSeconds?: number },
): void {
  const folder = join(directory, workersFolder);
  try {
    makePrivate(folder);
  } catch (error) {
    if (!hasCode(error, 'EEXIST')) throw error;
  }
  const path = join(folder, `${workerId}.json`);
  writeFileSync(`${path}.new`, JSON.stringify({ pid: process.pid, claimsExpireSeconds }), { mode: 0o600 });
  chmodSync(`${path}.new`, 0o600);
  renameSync(`${path}.new`, path);
}

/** Whether nobody listens on a Unix socket any more. A busy, stopped or stuck process is not gone. */
export function isSocketGone(path: string): Promise<boolean> {
  return new Promise((settle) => {
    const socket = connect({ path, timeout: connectMilliseconds });
    const end = (gone: boolean) => {
      socket.destroy();
      settle(gone);
    };
    socket.once('connect', () => end(false));
    socket.once('timeout', () => end(false));
    socket.once('error', (error) => end(hasCode(error, 'ECONNREFUSED', 'ENOENT')));
  });
}

/** Knows since when each recorded worker is gone, and removes its claims when their time has come. */
class DeadWorkers {
  readonly #directory: string;
  /** By worker ID. Records do not change, so each is read once. */
  readonly #claimsExpireSeconds = new Map<string, number>();
  readonly #goneSinceSeconds = new Map<string, number>();
  #sweeping: Promise<void> | undefined;
  #stopped = false;

  constructor(directory: string) {
    this.#directory = directory;
  }

  stop(): void {
    this.#stopped = true;
  }

  /** One at a time: where a sweep is still under way, it is what the next call gets. */
  sweep(nowSeconds: number): Promise<void> {
    this.#sweeping ??= this.#sweep(nowSeconds)
      .catch((error: unknown) => {
        // When the directory has been removed, so has what was about to be swept.
        if (!this.#stopped) throw error;
      })
      .finally(() => (this.#sweeping = undefined));
    return this.#sweeping;
  }

  async #sweep(nowSeconds: number): Promise<void> {
    await this.#readRecords();
    for (const [workerId, claimsExpireSeconds] of this.#claimsExpireSeconds) {
      if (this.#stopped) return;
      if (!(await isSocketGone(socketPath(this.#directory, workerId)))) {
        this.#goneSinceSeconds.delete(workerId);
        continue;
      }
      const goneSinceSeconds = this.#goneSinceSeconds.get(workerId) ?? nowSeconds;
      this.#goneSinceSeconds.set(workerId, goneSinceSeconds);
      if (nowSeconds - goneSinceSeconds < claimsExpireSeconds) continue;
      await this.#removeClaims(workerId);
      await rm(join(this.#directory, workersFolder, `${workerId}.json`), { force: true });
      this.#claimsExpireSeconds.delete(workerId);
      this.#goneSinceSeconds.delete(workerId);
    }
  }

  async #readRecords(): Promise<void> {
    const folder = join(this.#directory, workersFolder);
    for (const file of await readdir(folder).catch(ifMissing([]))) {
      const workerId = /^([0-9a-f]{32})\.json$/.exec(file)?.[1];
      if (workerId === undefined || this.#claimsExpireSeconds.has(workerId)) continue;
      const { claimsExpireSeconds = Infinity } = JSON.parse(await readFile(join(folder, file), 'utf8'));
      this.#claimsExpireSeconds.set(workerId, claimsExpireSeconds);
    }
  }

  /**
   * A claim is a hard link to one of the worker's identity files, so their inodes tell its claims from all others, and
   * how many there are. The identity files stay: an inode number that came back would name another worker.
   */
  async #removeClaims(workerId: string): Promise<void> {
    const identities = join(this.#directory, identitiesFolder);
    const inodes = new Set<bigint>();
    let left = 0;
    for (const file of await readdir(identities).catch(ifMissing([]))) {
      if (!file.startsWith(`${workerId}.`)) continue;
      const { ino, nlink } = await lstat(join(identities, file), { bigint: true });
      inodes.add(ino);
      left += Number(nlink) - 1;
    }
    if (left === 0) return;
    const claims = join(this.#directory, claimsFolder);
    // One file after the other, so that neither this process nor its thread pool is held up.
    for await (const { name } of await opendir(claims)) {
      if (this.#stopped || left === 0) return;
      const claim = await lstat(join(claims, name), { bigint: true }).catch(ifMissing(undefined));
      if (claim === undefined || !inodes.has(claim.ino)) continue;
      await unlink(join(claims, name));
      left -= 1;
    }
  }
}

/** Removes what this user's servers left in `parent` when they were killed. Others may be doing the same right now. */
async function removeStaleDirectories(parent: string): Promise<void> {
  for (const name of await readdir(parent).catch(ifMissing([]))) {
    const pid = /^esr-(\d{1,10})-[0-9a-f]{8}$/.exec(name)?.[1];
    const path = join(parent, name);
    try {
      if (pid !== undefined && (await isStale(path, Number(pid)))) await rm(path, { recursive: true, force: true });
    } catch (error) {
      // What cannot be looked at or removed is no reason not to start.
      debug('stale directory %s: %O', path, error);
    }
  }
}

async function isStale(path: string, pid: number): Promise<boolean> {
  const stats = await lstat(path);
  if (!stats.isDirectory() || stats.uid !== currentUser()) return false;
  // In a container a restarted server often has the process ID of the one that was killed.
  const isOfEarlierProcess = pid === process.pid && stats.mtimeMs < performance.timeOrigin;
  if (isAlive(pid) && !isOfEarlierProcess) return false;
  for (const entry of await readdir(path, { withFileTypes: true })) {
    if (entry.isSocket() && !(await isSocketGone(join(path, entry.name)))) return false;
  }
  return true;
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return !hasCode(error, 'ESRCH');
  }
}

/** Makes a directory that is this user's alone, whatever the umask. */
function makePrivate(path: string): void {
  mkdirSync(path, { mode: 0o700 });
  chmodSync(path, 0o700);
}

/** New files belong to the effective user. */
function currentUser(): number {
  if (process.geteuid === undefined) throw new Error('Session routing needs Unix sockets, which this platform lacks.');
  return process.geteuid();
}

function hasCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && codes.includes((error as NodeJS.ErrnoException).code ?? '');
}

function ifMissing<T>(value: T): (error: unknown) => T {
  return (error) => {
    if (hasCode(error, 'ENOENT')) return value;
    throw error;
  };
}
