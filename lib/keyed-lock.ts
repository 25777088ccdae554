/**
 * Lets one task at a time have a key, in the order in which they asked.
 *
 * A task that had to wait goes on in its own asynchronous context, not in that of the task before it.
 */
export class KeyedLock {
  /** When the last task that asked for a key will have ended. */
  readonly #ends = new Map<string, Promise<void>>();

  /** Whether a task has the key, or waits for it. */
  isTaken(key: string): boolean {
    return this.#ends.has(key);
  }

  /** Runs a task once every earlier one for the key has ended. Resolves or rejects with it. */
  async run<Result>(key: string, task: () => Promise<Result>): Promise<Result> {
    const earlier = this.#ends.get(key);
    let end!: () => void;
    const ended = new Promise<void>((resolve) => (end = resolve));
    this.#ends.set(key, ended);
    await earlier;
    try {
      return await task();
    } finally {
      if (this.#ends.get(key) === ended) this.#ends.delete(key);
      end();
    }
  }
}
