import { chmodSync, renameSync, writeFileSync } from 'node:fs';
import { lstat, opendir, readdir, readFile, rm, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { hasCode, ifMissing, makePrivate } from './files.ts';
import { isSocketGone, socketPath } from './socket-path.ts';

export const claimsFolder = 'session-claims';
const identitiesFolder = 'identities';
const workersFolder = 'workers';

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

/** Knows since when each recorded worker is gone, and removes its claims when their time has come. */
export class DeadWorkers {
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
