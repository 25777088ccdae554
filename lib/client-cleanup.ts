import { z } from 'zod';
import { checked, functionSchema } from './checked.ts';
import { secondsSchema } from './client-retries.ts';
import { monotonicSeconds, type Clock } from './seconds.ts';

/** What a clean-up does. It should stop once `signal` is aborted, which happens after `seconds`. */
export type CleanupWork = (signal: AbortSignal, seconds: number) => unknown;

/** A step of a {@link Cleanup}. */
export interface CleanupStep {
  /** Takes the step off: nothing is left to be cleaned up. */
  remove(): void;
  /** Runs the step now, unless it was removed; once, however often it is called. Never rejects: a failure is reported. */
  run(): Promise<void>;
}

/** A clean-up that failed, or was not done in time; `cause` is why. */
export class CleanupError extends Error {
  override readonly name = 'CleanupError';
}

export interface CleanupOptions {
  /** How long all steps together may take; default 30. */
  readonly seconds?: number;
  /** Told of each failure; by default it becomes a warning of the process. */
  readonly onFailure?: (error: CleanupError) => void;
  readonly clock?: Clock;
}

const optionsSchema = z.strictObject({
  seconds: secondsSchema.default(30),
  onFailure: functionSchema<(error: CleanupError) => void>().default(() => warnOfCleanup),
  clock: functionSchema<Clock>().default(() => monotonicSeconds),
});

interface Entry {
  readonly what: string;
  readonly work: CleanupWork;
  run?: Promise<void>;
}

/**
 * What has to be given back at the end, however it comes: the last that was added goes first, and all have one deadline.
 *
 * A step gets an equal share of the time that is left, so that a server which does not answer does not take the time of those
 * after it. A step that fails does not keep the others from running.
 */
export class Cleanup {
  readonly #seconds: number;
  readonly #onFailure: (error: CleanupError) => void;
  readonly #clock: Clock;
  readonly #entries: Entry[] = [];
  readonly #failures: CleanupError[] = [];
  #run: Promise<CleanupError[]> | undefined;
  #hasEnded = false;

  /** @throws TypeError for an option that is refused or unknown */
  constructor(options: CleanupOptions = {}) {
    const { seconds, onFailure, clock } = checked('Cleanup', optionsSchema, options);
    this.#seconds = seconds;
    this.#onFailure = onFailure;
    this.#clock = clock;
  }

  /**
   * Adds a step: to be called before what it undoes is begun.
   *
   * @param what names it in errors, such as `close of resources session r-1`
   * @throws Error if the clean-up has been run: nothing would ever run the step
   */
  add(what: string, work: CleanupWork): CleanupStep {
    if (this.#hasEnded) throw new Error(`The clean-up is over, so nothing may begin that needs this: ${what}`);
    const entry: Entry = { what, work };
    this.#entries.push(entry);
    return {
      remove: () => this.#remove(entry),
      run: async () => {
        if (!this.#entries.includes(entry)) return entry.run;
        await this.#perform(entry, this.#seconds);
        this.#remove(entry);
      },
    };
  }

  /** Runs all steps, those included that are added meanwhile. Never rejects: it gives the failures, which it also reports. */
  run(): Promise<CleanupError[]> {
    return (this.#run ??= this.#performAll());
  }

  async #performAll(): Promise<CleanupError[]> {
    const deadline = this.#clock() + this.#seconds;
    for (let entry = this.#entries.at(-1); entry !== undefined; entry = this.#entries.at(-1)) {
      const secondsLeft = Math.max(0, deadline - this.#clock());
      await this.#perform(entry, secondsLeft / this.#entries.length);
      this.#remove(entry);
    }
    this.#hasEnded = true;
    return this.#failures;
  }

  #perform(entry: Entry, seconds: number): Promise<void> {
    return (entry.run ??= within(seconds, entry.work).catch((cause: unknown) => this.#report(entry, cause)));
  }

  #report({ what }: Entry, cause: unknown): void {
    const error = new CleanupError(`${what} failed: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    });
    this.#failures.push(error);
    try {
      // Its type lets it be an async one.
      void Promise.resolve(this.#onFailure(error) as unknown).catch(() => warnOfCleanup(error));
    } catch {
      warnOfCleanup(error);
    }
  }

  #remove(entry: Entry): void {
    const index = this.#entries.indexOf(entry);
    if (index !== -1) this.#entries.splice(index, 1);
  }
}

/** Waits for work for so long and no longer, whether or not it stops then. */
async function within(seconds: number, work: CleanupWork): Promise<void> {
  const controller = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const error = new Error(`it was not done in ${Number(seconds.toFixed(3))} s`);
      controller.abort(error);
      reject(error);
    }, seconds * 1_000);
  });
  try {
    await Promise.race([(async () => work(controller.signal, seconds))(), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Makes a warning of the process of a clean-up that failed. */
export function warnOfCleanup(error: CleanupError): void {
  const { message, stack = message } = error;
  process.emitWarning(message, { type: 'SessionRoutingWarning', code: 'SESSION_CLEANUP_FAILED', detail: stack });
}
