import { utimesSync } from 'node:fs';
import type { Store } from 'express-session';
import { SessionClaims, UnsharedClaims, type Claims, type ClaimsOptions } from './claims.ts';
import { ExpiryQueue } from './expiry-queue.ts';
import type { SessionLifetimes } from './lifetimes.ts';
import type { Clock } from './seconds.ts';
import type { SessionKind } from './session-kind.ts';
import { SessionStores } from './session-stores.ts';
import { Sweeper } from './sweeper.ts';

/** How long a claim stays that a request made and did not use, so that the client's next requests find it. */
const lingerSeconds = 1;

/** How many sessions are released before the sweep looks at the time. */
const sweepBatch = 100;

/** Options of {@link SessionKeeper}. */
export interface SessionKeeperOptions {
  readonly workerId: string;
  /** The runtime directory; undefined for one worker. */
  readonly directory: string | undefined;
  readonly lifetimes: SessionLifetimes;
  readonly kind: Pick<SessionKind, 'expressIdOf' | 'sessionIdOf' | 'released'>;
  readonly clock: Clock;
}

/** Keeps the sessions of one worker for as long as they live: their claims, and what their stores remember. */
export class SessionKeeper {
  readonly claims: Claims;
  readonly lifetimes: SessionLifetimes;
  readonly #clock: Clock;
  readonly #directory: string | undefined;
  readonly #lingering = new ExpiryQueue();
  /** Sessions that have ended and are claimed still, by requests that are under way for one. */
  readonly #ended = new Set<string>();
  readonly #stores: SessionStores;
  readonly #sweeper: Sweeper;

  /** @throws Error if the runtime directory cannot hold claims */
  constructor({ workerId, directory, lifetimes, kind, clock }: SessionKeeperOptions) {
    this.lifetimes = lifetimes;
    this.#stores = new SessionStores((expressId) => {
      const sessionId = kind.sessionIdOf(expressId);
      if (sessionId !== undefined) this.end(sessionId);
    });
    this.#clock = clock;
    this.#directory = directory;
    const options: ClaimsOptions = {
      workerId,
      holds: (sessionId) => lifetimes.holds(sessionId) || this.#lingering.has(sessionId),
      released: (sessionId) => {
        this.#ended.delete(sessionId);
        this.#stores.forget(kind.expressIdOf(sessionId));
        kind.released?.(sessionId);
      },
    };
    this.claims = directory === undefined ? new UnsharedClaims(options) : new SessionClaims({ ...options, directory });
    this.#sweeper = new Sweeper({
      clock,
      next: () => this.#nextExpiry,
      sweep: (now) => this.#sweep(now),
      ticksWhenIdle: directory !== undefined,
    });
  }

  /** Watches a store for sessions that end, and for which of them are this worker's alone. */
  watchStore(store: Store): void {
    this.#stores.watch(store);
  }

  /** Keeps a session that no request has used until no client can be about to use it. */
  linger(sessionId: string): void {
    this.#lingering.set(sessionId, this.#clock() + lingerSeconds);
  }

  /**
   * Claims a session that the app has opened, until it ends.
   *
   * @returns whether this worker claims it, and not another
   */
  open(sessionId: string): boolean {
    const claimant = this.claims.claimant(sessionId) ?? this.claims.claim(sessionId);
    if (claimant !== this.claims.workerId) return false;
    this.#ended.delete(sessionId);
    this.lifetimes.opened?.(sessionId);
    this.settled();
    return true;
  }

  /** Ends a session. */
  end(sessionId: string): void {
    if (!this.claims.isMine(sessionId)) return;
    this.#ended.add(sessionId);
    this.lifetimes.ended(sessionId);
    this.letGo(sessionId);
  }

  /** Releases a session of which nothing is held any longer, once no request can be on the way for it. */
  letGo(sessionId: string): void {
    if (!this.claims.isMine(sessionId)) return;
    this.linger(sessionId);
    this.settled();
  }

  /** Whether a session has ended, though its claim is still there. */
  hasEnded(sessionId: string): boolean {
    return this.#ended.has(sessionId);
  }

  /** Forgets that a session has ended. */
  renew(sessionId: string): void {
    this.#ended.delete(sessionId);
  }

  /** To be called when lifetimes have changed, so that the sweep wakes in time. */
  settled(): void {
    this.#sweeper.due(this.#nextExpiry);
  }

  /** Stops sweeping, and leaves the stores as they were. The claims stay. */
  close(): void {
    this.#sweeper.stop();
    this.#stores.close();
  }

  get #nextExpiry(): number {
    return Math.min(this.lifetimes.nextExpiry ?? Infinity, this.#lingering.next ?? Infinity);
  }

  /** Releases claims whose time has passed. Returns whether there are more. */
  #sweep(now: number): boolean {
    const expired = [...this.#lingering.take(now, sweepBatch), ...this.lifetimes.sweep(now, sweepBatch)];
    for (const sessionId of expired) this.claims.release(sessionId);
    const isDone = expired.length < sweepBatch;
    if (isDone && this.#directory !== undefined) touch(this.#directory);
    return !isDone;
  }
}

/** Marks the runtime directory as in use, so that cleaners of temporary files leave it. */
function touch(directory: string): void {
  const now = new Date();
  try {
    utimesSync(directory, now, now);
  } catch {
    // It is gone: claims say so to whoever asks for a session.
  }
}
