import cluster from 'node:cluster';
import { randomBytes } from 'node:crypto';
import { lstatSync, rmSync } from 'node:fs';
import { lstat, readdir, rm, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { debuglog } from 'node:util';
import { claimsFolder, DeadWorkers } from './dead-workers.ts';
import { hasCode, ifMissing, makePrivate } from './files.ts';
import { monotonicSeconds } from './seconds.ts';
import { checkSocketPath, isSocketGone, socketPath } from './socket-path.ts';

/** The environment variable in which the workers of a server find their runtime directory. */
export const runtimeDirectoryVariable = 'SESSION_ROUTING_DIR';

const debug = debuglog('express-session-routing');

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
    const swept = deadWorkers.sweep(monotonicSeconds()).then(() => touch(path));
    swept.catch((error: unknown) => debug('sweep of %s: %O', path, error));
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
 * Marks everything in a runtime directory as in use, so that cleaners of temporary files leave it. (A claim is one file
 * with the identity file that it is a link to, so the claims need not be looked at.)
 */
async function touch(directory: string): Promise<void> {
  const now = new Date();
  const folders = await readdir(directory, { withFileTypes: true });
  for (const folder of folders) {
    const path = join(directory, folder.name);
    await utimes(path, now, now).catch(ifMissing(undefined));
    if (!folder.isDirectory() || folder.name === claimsFolder) continue;
    for (const file of await readdir(path).catch(ifMissing([]))) {
      await utimes(join(path, file), now, now).catch(ifMissing(undefined));
    }
  }
  await utimes(directory, now, now);
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

/** New files belong to the effective user. */
function currentUser(): number {
  if (process.geteuid === undefined) throw new Error('Session routing needs Unix sockets, which this platform lacks.');
  return process.geteuid();
}

/**
 * The runtime directory of a worker, checked.
 *
 * @param path where the worker was told of it, other than in its environment
 * @returns undefined for one worker, which shares nothing
 * @throws Error in a cluster worker that has none, or for one that is not safe to use
 */
export function workerDirectory(path: string | undefined): string | undefined {
  const directory = path ?? (process.env[runtimeDirectoryVariable] || undefined);
  if (directory === undefined) {
    if (!cluster.isWorker) return undefined;
    throw new Error(
      'sessionRouting() runs in a cluster worker without a runtime directory, so the workers could not find one ' +
        `another's sessions. Start the workers with runWorkers() of express-session-routing/cluster, or call ` +
        `createRuntimeDirectory() in the primary and hand its path to the workers as ${runtimeDirectoryVariable}. ` +
        'For a stateless server, pass routing: false.',
    );
  }
  checkRuntimeDirectory(directory);
  return directory;
}
