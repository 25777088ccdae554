import { hash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { BoundedMap } from './bounded-map.ts';
import { SessionRoutingError } from './errors.ts';

/** Makes a hard link, as `linkSync` does. */
export type LinkFile = (existingPath: string, newPath: string) => void;

const WORKER_ID = /^[0-9a-f]{32}$/;
const WORKER_ID_BYTES = 32n;

/** How often a claim is tried that is there when it is to be made and gone when it is looked up. */
const ATTEMPTS = 100;

/** How many paths of claims are remembered, and for session IDs of what length: some 3 MB at the most. */
const REMEMBERED_PATHS = 10_000;
const REMEMBERED_LENGTH = 128;

/** What `link` answers where there are no hard links, or only one to a file. */
const NO_HARD_LINKS = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EXDEV', 'EMLINK']);

/** No link is followed, so that a claim is what it is, and no pipe in its place is waited for. */
const READ_CLAIM = fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK;

/**
 * The claims of a server's workers: files in its runtime directory that are complete from their first moment.
 *
 * A worker writes its worker ID to an identity file, once. A claim is a hard link to that file, named by a hash of the
 * session ID: making one is a single system call, which fails if the name exists. File systems bound how many links
 * a file may have (65,000 on ext4), so a worker with more claims has more identity files. They stay for as long as the
 * runtime directory does, so that no inode among them ever comes to mean another worker.
 */
export class ClaimFiles {
  readonly #workerId: string;
  readonly #link: LinkFile;
  readonly #identityDirectory: string;
  readonly #claimDirectory: string;
  /** This worker's identity files are numbered from 0; `#identity` takes the links. */
  #identities = 0;
  #identity = 0;
  /** Who a claim names, for the inodes of identity files that have been read. The claims themselves are not remembered. */
  readonly #workerOfInode = new Map<bigint, string>();
  /** The paths of claims: to hash a session ID costs as much as half of looking its claim up. */
  readonly #paths = new BoundedMap<string, string>(REMEMBERED_PATHS);
  readonly #reported = new Set<string>();

  /** @throws Error if the file system of `directory` has no hard links or the files cannot be made there. */
  constructor({ directory, workerId, link = fs.linkSync }: { directory: string; workerId: string; link?: LinkFile }) {
    if (!WORKER_ID.test(workerId)) throw new TypeError(`workerId must be 32 lower-case hex digits, not ${workerId}`);
    this.#workerId = workerId;
    this.#link = link;
    this.#identityDirectory = join(directory, 'identities');
    this.#claimDirectory = join(directory, 'session-claims');
    makeDirectory(this.#identityDirectory);
    makeDirectory(this.#claimDirectory);
    this.#addIdentity();
    this.#tryLink(directory);
  }

  /** Claims the session for this worker, unless there is a claim. Returns the claimant. */
  make(sessionId: string): string {
    const path = this.#pathOf(sessionId);
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      if (this.#makeLink(path)) return this.#workerId;
      const claimant = this.#read(path);
      if (claimant !== undefined) return claimant;
    }
    throw new SessionRoutingError(
      'CLAIM_UNREADABLE',
      'The claim of the session comes and goes faster than it is read.',
    );
  }

  /** The claimant of the session, or undefined if there is no claim. */
  find(sessionId: string): string | undefined {
    return this.#read(this.#pathOf(sessionId));
  }

  /** Removes the session's claim, which must be this worker's. Returns whether it is gone. */
  remove(sessionId: string): boolean {
    try {
      fs.unlinkSync(this.#pathOf(sessionId));
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') {
        this.#warnOnce(`remove ${codeOf(error)}`, `A claim that ended cannot be removed: ${reasonOf(error)}.`);
        return false;
      }
    }
    return true;
  }

  #pathOf(sessionId: string): string {
    const known = this.#paths.get(sessionId);
    if (known !== undefined) return known;
    const path = `${this.#claimDirectory}/${hash('sha256', sessionId, 'base64url')}`;
    if (sessionId.length > REMEMBERED_LENGTH) return path;
    this.#paths.set(sessionId, path);
    return path;
  }

  #identityPath(number: number): string {
    return `${this.#identityDirectory}/${this.#workerId}.${number}`;
  }

  /** Writes another identity file, to which nothing links before it is complete. */
  #addIdentity(): void {
    const path = this.#identityPath(this.#identities);
    try {
      fs.writeFileSync(path, this.#workerId, { mode: 0o600, flag: 'wx' });
    } catch (error) {
      if (codeOf(error) !== 'EEXIST') fs.rmSync(path, { force: true });
      throw error;
    }
    this.#identity = this.#identities++;
  }

  #tryLink(directory: string): void {
    const trial = `${this.#identityDirectory}/${this.#workerId}.trial`;
    try {
      this.#link(this.#identityPath(0), trial);
      fs.unlinkSync(trial);
    } catch (error) {
      fs.rmSync(this.#identityPath(0), { force: true });
      if (!NO_HARD_LINKS.has(codeOf(error))) throw error;
      throw new Error(
        `The file system of the runtime directory ${directory} has no hard links (${codeOf(error)}), ` +
          'and session claims are made of them. Choose a runtime directory on another file system.',
        { cause: error },
      );
    }
  }

  /** Makes a claim, or returns false if its name is taken. */
  #makeLink(path: string): boolean {
    // A full identity file has room again when claims have gone, so another is written only when all are full.
    const written = this.#identities;
    try {
      for (let full = 0; full < written; full++) {
        if (this.#linked(path)) return true;
        this.#identity = (this.#identity + 1) % written;
      }
      this.#addIdentity();
      this.#link(this.#identityPath(this.#identity), path);
      return true;
    } catch (error) {
      if (codeOf(error) === 'EEXIST') return false;
      if (codeOf(error) === 'ENOENT') {
        throw this.#failure('The runtime directory of the server is gone. The server must be started again.', error);
      }
      throw this.#failure(`The claim of the session cannot be made: ${reasonOf(error)}.`, error);
    }
  }

  /** Links the current identity file, or returns false if it is full. */
  #linked(path: string): boolean {
    try {
      this.#link(this.#identityPath(this.#identity), path);
      return true;
    } catch (error) {
      if (codeOf(error) === 'EMLINK') return false;
      throw error;
    }
  }

  /** The worker that a claim names, or undefined if there is no claim. */
  #read(path: string): string | undefined {
    try {
      const found = fs.lstatSync(path, { bigint: true, throwIfNoEntry: false });
      if (found === undefined) return undefined;
      const known = this.#workerOfInode.get(found.ino);
      if (known !== undefined) return known;
      const workerId = this.#readContent(path);
      if (WORKER_ID.test(workerId)) return workerId;
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return undefined;
      this.#warnOnce(path, `The claim ${path} cannot be read: ${reasonOf(error)}.`);
      throw new SessionRoutingError(
        'CLAIM_UNREADABLE',
        `The claim of the session cannot be read: ${reasonOf(error)}.`,
        {
          cause: error,
        },
      );
    }
    this.#warnOnce(path, `The claim ${path} names no valid worker. Its session is refused until it is removed.`);
    throw new SessionRoutingError('CLAIM_UNREADABLE', 'The claim of the session names no valid worker.');
  }

  /** What a claim file holds, or nothing if that can be no worker ID. */
  #readContent(path: string): string {
    // The inode and the content are those of one open file: the claim may become another worker's at any time.
    const file = fs.openSync(path, READ_CLAIM);
    try {
      const { ino, nlink, size } = fs.fstatSync(file, { bigint: true });
      if (size !== WORKER_ID_BYTES) return '';
      const workerId = fs.readFileSync(file, 'latin1');
      // A file with no other name is no link to an identity file, and its inode may mean anything once it is removed.
      if (nlink > 1n && WORKER_ID.test(workerId)) this.#workerOfInode.set(ino, workerId);
      return workerId;
    } finally {
      fs.closeSync(file);
    }
  }

  #failure(detail: string, cause: unknown): SessionRoutingError {
    this.#warnOnce(detail, detail);
    return new SessionRoutingError('CLAIM_UNREADABLE', detail, { cause });
  }

  /** A warning rather than a line on stderr, so that an app can listen for it; one for each thing that is wrong. */
  #warnOnce(key: string, message: string): void {
    if (this.#reported.has(key)) return;
    this.#reported.add(key);
    process.emitWarning(message, { type: 'SessionRoutingWarning', code: 'CLAIM_UNREADABLE' });
  }
}

function makeDirectory(path: string): void {
  try {
    fs.mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error;
  }
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : '';
}

/** `ENOSPC: no space left on device`, without the paths that follow: a client may read it. */
function reasonOf(error: unknown): string {
  return String(error instanceof Error ? error.message : error).split(',', 1)[0] ?? '';
}
