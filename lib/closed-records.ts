import { ExpiryQueue } from './expiry-queue.ts';
import { monotonicSeconds, positiveSeconds, type Clock } from './seconds.ts';
import { Sweeper } from './sweeper.ts';

/** How many records the timer drops before it looks at the time again. */
const RECORDS_A_STEP = 500;

/**
 * Remembers closed resources sessions, so that a retried close gets its answer again and a delayed seed is refused.
 *
 * A record stays for `closeRetryWindowSeconds` (default 300) from the session's first close. The session's claim runs
 * from its last request, so no record outlives its claim. An unref'ed timer drops what has expired, with no further call.
 *
 * @throws TypeError or RangeError if `closeRetryWindowSeconds` is no finite number above zero.
 */
export class ClosedResourcesSessionRecords<T> {
  readonly #windowSeconds: number;
  readonly #clock: Clock;
  readonly #records = new Map<string, T>();
  readonly #expiring = new ExpiryQueue();
  readonly #sweeper: Sweeper;

  constructor({
    closeRetryWindowSeconds = 300,
    clock = monotonicSeconds,
  }: { readonly closeRetryWindowSeconds?: number; readonly clock?: Clock } = {}) {
    this.#windowSeconds = positiveSeconds('closeRetryWindowSeconds', closeRetryWindowSeconds);
    this.#clock = clock;
    this.#sweeper = new Sweeper({
      clock,
      next: () => this.#expiring.next,
      sweep: (now) => this.#drop(now, RECORDS_A_STEP),
    });
  }

  /** How many records are held, those included that have expired since the last sweep. */
  get size(): number {
    return this.#records.size;
  }

  /** Records the close of a session. Returns the record that stands: the first close's, if the session has one. */
  close(sessionId: string, record: T): T {
    if (this.#stands(sessionId)) return this.#records.get(sessionId) as T;
    const expiresAt = this.#clock() + this.#windowSeconds;
    this.#records.set(sessionId, record);
    this.#expiring.set(sessionId, expiresAt);
    this.#sweeper.due(expiresAt);
    return record;
  }

  /** The record of a session's close, or undefined if there was none or its window has passed. */
  get(sessionId: string): T | undefined {
    return this.#stands(sessionId) ? this.#records.get(sessionId) : undefined;
  }

  /** Drops the records whose window has passed at `now`, in seconds of the clock. */
  sweep(now: number): void {
    this.#drop(now, Infinity);
  }

  #stands(sessionId: string): boolean {
    const expiresAt = this.#expiring.get(sessionId);
    return expiresAt !== undefined && expiresAt > this.#clock();
  }

  #drop(now: number, limit: number): boolean {
    const expired = this.#expiring.take(now, limit);
    for (const sessionId of expired) this.#records.delete(sessionId);
    return expired.length === limit;
  }
}
