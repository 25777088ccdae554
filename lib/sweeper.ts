import { AsyncResource } from 'node:async_hooks';
import { monotonicSeconds, type Clock } from './seconds.ts';
import { warn } from './warn.ts';

/** How a {@link Sweeper} sweeps. */
export interface SweeperOptions {
  /** When something expires next, by `clock`; undefined when nothing does. */
  readonly next: () => number | undefined;
  /** Drops what has expired at `now`, or a part of it: true means that more is left, and it is called again soon. */
  readonly sweep: (now: number) => boolean | void;
  /** Seconds; default {@link monotonicSeconds}. */
  readonly clock?: Clock;
  /** The longest time between two wakes; default 30. */
  readonly maximumSeconds?: number;
  /** The shortest time between two wakes, unless a sweep has more left; default 0.05. */
  readonly minimumSeconds?: number;
  /** How long sweeps may keep the event loop before requests have their turn again; default 0.002. */
  readonly sliceSeconds?: number;
  /** Whether to wake every `maximumSeconds` though nothing expires, from the start on; default false. */
  readonly ticksWhenIdle?: boolean;
}

/**
 * Sweeps when something expires, without keeping the process alive.
 *
 * One timer wakes at the next expiry, but no sooner than `minimumSeconds` and no later than `maximumSeconds` from now.
 * (Node fires a timer at once that is set further ahead than 24 days.)
 */
export class Sweeper {
  readonly #options: Required<SweeperOptions>;
  /** Whoever made the sweeper: a sweep is not to run in the asynchronous context of the request that it was planned in. */
  readonly #context = new AsyncResource('Sweeper');
  #timer: NodeJS.Timeout | undefined;
  #wakesAt = Infinity;
  #stopped = false;

  constructor(options: SweeperOptions) {
    this.#options = {
      clock: monotonicSeconds,
      maximumSeconds: 30,
      minimumSeconds: 0.05,
      sliceSeconds: 0.002,
      ticksWhenIdle: false,
      ...options,
    };
    this.#plan();
  }

  /** Says that something expires at `at`. Costs next to nothing unless that is sooner than the planned wake. */
  due(at: number): void {
    if (at >= this.#wakesAt || this.#stopped) return;
    const { clock, maximumSeconds, minimumSeconds } = this.#options;
    const now = clock();
    const wakesAt = Math.min(Math.max(at, now + minimumSeconds), now + maximumSeconds);
    // Whatever is due already must not put off, time and again, a wake that is as near as wakes may be.
    if (wakesAt < this.#wakesAt) this.#wakeAt(wakesAt, now);
  }

  /** Ends the sweeping for good. */
  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  #run(): void {
    this.#wakesAt = Infinity;
    const { clock, maximumSeconds, sweep, sliceSeconds } = this.#options;
    try {
      const sliceEnds = monotonicSeconds() + sliceSeconds;
      let more: boolean;
      do more = sweep(clock()) === true;
      while (more && !this.#stopped && monotonicSeconds() < sliceEnds);
      // A timer, not setImmediate: an unref'ed immediate waits until something else wakes the event loop.
      if (more) this.#wakeAt(-Infinity, clock());
      else this.#plan();
    } catch (error) {
      warn(`A sweep of sessions failed; the next is in ${maximumSeconds} s at the latest.`, error, 'SWEEP_FAILED');
      this.due(clock() + maximumSeconds);
    }
  }

  #plan(): void {
    const { next, ticksWhenIdle } = this.#options;
    const at = next() ?? Infinity;
    // `due` takes nothing for the end of time, and plans what is finite no further ahead than `maximumSeconds`.
    this.due(ticksWhenIdle ? Math.min(at, Number.MAX_VALUE) : at);
  }

  #wakeAt(at: number, now: number): void {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    this.#wakesAt = at;
    const milliseconds = Math.ceil(Math.max(0, at - now) * 1000);
    this.#timer = this.#context.runInAsyncScope(() => setTimeout(() => this.#run(), milliseconds).unref());
  }
}
