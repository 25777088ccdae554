import { ClaimFiles, type LinkFile } from './claim-files.ts';
import { warn } from './warn.ts';

/** Which worker holds each session: what the router needs to know of claims. */
export interface Claims {
  /** This worker: 32 lower-case hex digits. */
  readonly workerId: string;
  /** How many sessions this worker claims. */
  readonly size: number;
  /** Claims the session for this worker, unless another does. Returns the claimant: this worker or the other. */
  claim(sessionId: string): string;
  /** The worker that claims the session, or undefined if none does. */
  claimant(sessionId: string): string | undefined;
  /** Whether this worker claims the session. Never looks further than its memory. */
  isMine(sessionId: string): boolean;
  /** Gives the claim up, unless the session is being served or something of it is held. Returns whether it went. */
  release(sessionId: string): boolean;
  /**
   * Keeps a claim, made already or yet to be made, while a request or an open stream of the session is served.
   *
   * Returns the function that ends this; calling it again does nothing. When the last one ends, the claim is released
   * if nothing of the session is held.
   */
  serving(sessionId: string): () => void;
}

/** What a worker's claims are told. */
export interface ClaimsOptions {
  readonly workerId: string;
  /** Whether anything of a session is left, so that its claim must stay. */
  readonly holds: (sessionId: string) => boolean;
  /** Called after a claim went. What it throws becomes a warning, since the claim is gone all the same. */
  readonly released?: (sessionId: string) => void;
}

/** Options of {@link SessionClaims}. */
export interface SessionClaimsOptions extends ClaimsOptions {
  /** The runtime directory of the server, which its workers share. It must exist. */
  readonly directory: string;
  /** Makes a hard link; default `linkSync`. */
  readonly link?: LinkFile;
}

/** Where claims are kept for a worker that knows its own by heart. */
interface ClaimStore {
  /** Makes a claim for this worker unless there is one. Returns the claimant. */
  make(sessionId: string): string;
  find(sessionId: string): string | undefined;
  /** Removes a claim of this worker. Returns whether it is gone. */
  remove(sessionId: string): boolean;
}

/** What all kinds of claims have in common: this worker's own ones, in memory, and when they may go. */
class WorkerClaims implements Claims {
  readonly workerId: string;
  readonly #holds: (sessionId: string) => boolean;
  readonly #released: (sessionId: string) => void;
  readonly #store: ClaimStore;
  readonly #mine = new Set<string>();
  /** How many requests and streams of a session are being served. Sessions that have none are not in it. */
  readonly #serving = new Map<string, number>();

  constructor({ workerId, holds, released = () => {} }: ClaimsOptions, store: ClaimStore) {
    this.workerId = workerId;
    this.#holds = holds;
    this.#released = released;
    this.#store = store;
  }

  get size(): number {
    return this.#mine.size;
  }

  claim(sessionId: string): string {
    if (this.#mine.has(sessionId)) return this.workerId;
    const claimant = this.#store.make(sessionId);
    if (claimant === this.workerId) this.#mine.add(sessionId);
    return claimant;
  }

  claimant(sessionId: string): string | undefined {
    return this.#mine.has(sessionId) ? this.workerId : this.#store.find(sessionId);
  }

  isMine(sessionId: string): boolean {
    return this.#mine.has(sessionId);
  }

  release(sessionId: string): boolean {
    if (!this.#mine.has(sessionId) || this.#serving.has(sessionId) || this.#holds(sessionId)) return false;
    if (!this.#store.remove(sessionId)) return false;
    this.#mine.delete(sessionId);
    try {
      this.#released(sessionId);
    } catch (error) {
      warn('A session was released, but what follows from that failed.', error);
    }
    return true;
  }

  serving(sessionId: string): () => void {
    this.#serving.set(sessionId, (this.#serving.get(sessionId) ?? 0) + 1);
    let served = false;
    return () => {
      if (served) return;
      served = true;
      const others = (this.#serving.get(sessionId) ?? 1) - 1;
      if (others > 0) {
        this.#serving.set(sessionId, others);
      } else {
        this.#serving.delete(sessionId);
        this.release(sessionId);
      }
    };
  }
}

/**
 * The claims of a worker that shares its server with others, as files in the runtime directory (see `ClaimFiles`).
 *
 * A worker knows its own claims in memory; those of others are looked up each time and never remembered.
 *
 * @throws Error if the file system of `directory` has no hard links. `claim` and `claimant` throw a
 *   `SessionRoutingError` with code `CLAIM_UNREADABLE` where a claim names no valid worker or cannot be made or read.
 */
export class SessionClaims extends WorkerClaims {
  constructor(options: SessionClaimsOptions) {
    super(options, new ClaimFiles(options));
  }
}

/** The claims of a server's only worker: no files, and nobody else to ask. */
export class UnsharedClaims extends WorkerClaims {
  constructor(options: ClaimsOptions) {
    super(options, { make: () => options.workerId, find: () => undefined, remove: () => true });
  }
}
