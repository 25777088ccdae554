import { ExpiryQueue } from './expiry-queue.ts';
import type { SessionLifetimes, SessionRequest } from './lifetimes.ts';
import { monotonicSeconds, type Clock } from './seconds.ts';
import { warn } from './warn.ts';

/** How often the app is asked of a session that no request comes for. */
const checkSeconds = 30;

/** How many sessions the app is asked of before others have their turn. */
const checkBatch = 1_000;

/** Options of {@link NamedSessionLifetimes}. */
export interface NamedSessionLifetimesOptions {
  /** Whether a request that succeeds opens its session. Default: none does. */
  readonly isStart?: (request: SessionRequest) => boolean;
  /** Whether a request that gets this status ends its session. Default: none does. */
  readonly isEnd?: (request: SessionRequest, status: number) => boolean;
  /** Seconds for which a session that nothing has opened is held after its last request. Default: 300; 0 for not at all. */
  readonly idleSeconds?: number;
  /** The app's own word on whether a session is open, which then decides alone. Default: the other options decide. */
  readonly isOpen?: ((sessionId: string) => boolean) | undefined;
  readonly clock?: Clock;
}

/**
 * Holds a session from when the app opens it until it ends, and one that nothing has opened for a while after its last
 * request that the app did not refuse (4xx).
 *
 * Where the app says itself which sessions are open, it is asked after each request of a session, and every 30 seconds.
 */
export class NamedSessionLifetimes implements SessionLifetimes {
  readonly #isStart: (request: SessionRequest) => boolean;
  readonly #isEnd: (request: SessionRequest, status: number) => boolean;
  readonly #idleSeconds: number;
  readonly #isOpen: ((sessionId: string) => boolean) | undefined;
  readonly #clock: Clock;
  readonly #open = new Set<string>();
  /** When sessions that are not open expire. */
  readonly #expiring = new ExpiryQueue();
  /** When the app is to be asked of sessions that are open. */
  readonly #checks = new ExpiryQueue();

  constructor({
    isStart = () => false,
    isEnd = () => false,
    idleSeconds = 300,
    isOpen,
    clock = monotonicSeconds,
  }: NamedSessionLifetimesOptions = {}) {
    this.#isStart = isStart;
    this.#isEnd = isEnd;
    this.#idleSeconds = idleSeconds;
    this.#isOpen = isOpen;
    this.#clock = clock;
  }

  get nextExpiry(): number | undefined {
    const next = Math.min(this.#expiring.next ?? Infinity, this.#checks.next ?? Infinity);
    return next === Infinity ? undefined : next;
  }

  get size(): number {
    return this.#open.size + this.#expiring.size;
  }

  starts(request: SessionRequest): boolean {
    return this.#isStart(request);
  }

  /** Asks the app. A session that it cannot tell of is open, since its state may be there. */
  isOpen(sessionId: string): boolean {
    try {
      return this.#isOpen?.(sessionId) ?? false;
    } catch (error) {
      warn('The function isOpen of a kind of session failed.', error);
      return true;
    }
  }

  /** Opens a session: it is held until it ends. */
  opened(sessionId: string): void {
    this.#expiring.delete(sessionId);
    this.#open.add(sessionId);
    if (this.#isOpen !== undefined) this.#checks.set(sessionId, this.#clock() + checkSeconds);
  }

  served(sessionId: string, request: SessionRequest, status: number | undefined): void {
    if (this.#isOpen !== undefined) {
      if (this.isOpen(sessionId)) this.opened(sessionId);
      else this.ended(sessionId);
    } else if (status !== undefined && this.#isEnd(request, status)) {
      this.ended(sessionId);
    } else if (status !== undefined && status >= 200 && status < 300 && this.#isStart(request)) {
      this.opened(sessionId);
    } else if (!this.#open.has(sessionId) && this.#idleSeconds > 0 && !isRefusal(status)) {
      this.#expiring.set(sessionId, this.#clock() + this.#idleSeconds);
    }
  }

  holds(sessionId: string): boolean {
    return this.#open.has(sessionId) || this.#expiring.has(sessionId);
  }

  /** Ends a session: nothing of it is held any longer. */
  ended(sessionId: string): void {
    this.#open.delete(sessionId);
    this.#expiring.delete(sessionId);
    this.#checks.delete(sessionId);
  }

  sweep(now: number, limit?: number): string[] {
    const closed = this.#checks.take(now, checkBatch).filter((sessionId) => {
      if (this.isOpen(sessionId)) {
        this.#checks.set(sessionId, now + checkSeconds);
        return false;
      }
      this.ended(sessionId);
      return true;
    });
    return [...closed, ...this.#expiring.take(now, limit)];
  }
}

/** Whether the app has refused a request, so that it keeps nothing of a session that it did not have before. */
function isRefusal(status: number | undefined): boolean {
  return status !== undefined && status >= 400 && status < 500;
}
