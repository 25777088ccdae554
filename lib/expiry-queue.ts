interface Entry {
  readonly id: string;
  at: number;
  /** Where the entry stands in the heap. */
  index: number;
}

/**
 * When each of many IDs expires, soonest first.
 *
 * A binary heap whose entries know their own place, so a time that changes moves its entry instead of leaving a stale
 * one behind: {@link next} is exact, and no call costs more than the logarithm of what is queued.
 */
export class ExpiryQueue {
  readonly #entries = new Map<string, Entry>();
  readonly #heap: Entry[] = [];

  /** How many IDs are queued. */
  get size(): number {
    return this.#heap.length;
  }

  /** The soonest time, or undefined when nothing is queued. */
  get next(): number | undefined {
    return this.#heap[0]?.at;
  }

  /** Lets the ID expire at `at`, whatever time it had before. */
  set(id: string, at: number): void {
    const known = this.#entries.get(id);
    if (known === undefined) {
      const entry = { id, at, index: this.#heap.length };
      this.#entries.set(id, entry);
      this.#heap.push(entry);
      this.#rise(entry);
    } else {
      const later = at > known.at;
      known.at = at;
      if (later) this.#sink(known);
      else this.#rise(known);
    }
  }

  /** Forgets the ID. Returns whether it was queued. */
  delete(id: string): boolean {
    const entry = this.#entries.get(id);
    if (entry === undefined) return false;
    this.#remove(entry);
    return true;
  }

  has(id: string): boolean {
    return this.#entries.has(id);
  }

  /** When the ID expires, or undefined if it is not queued. */
  get(id: string): number | undefined {
    return this.#entries.get(id)?.at;
  }

  /** Removes and returns at most `limit` of the IDs whose time is `now` or earlier, soonest first. */
  take(now: number, limit = Infinity): string[] {
    const taken: string[] = [];
    for (let first = this.#heap[0]; first !== undefined && first.at <= now; first = this.#heap[0]) {
      if (taken.length >= limit) break;
      this.#remove(first);
      taken.push(first.id);
    }
    return taken;
  }

  /** Forgets every ID. */
  clear(): void {
    this.#entries.clear();
    this.#heap.length = 0;
  }

  #remove(entry: Entry): void {
    this.#entries.delete(entry.id);
    const last = this.#heap.pop();
    if (last === undefined || last === entry) return;
    last.index = entry.index;
    this.#heap[last.index] = last;
    this.#rise(last);
    this.#sink(last);
  }

  /** Moves the entry up while it is sooner than what stands above it. */
  #rise(entry: Entry): void {
    while (entry.index > 0) {
      const above = this.#heap[(entry.index - 1) >> 1];
      if (above === undefined || above.at <= entry.at) return;
      this.#swap(above, entry);
    }
  }

  /** Moves the entry down while something below it is sooner. */
  #sink(entry: Entry): void {
    for (;;) {
      const left = this.#heap[2 * entry.index + 1];
      const right = this.#heap[2 * entry.index + 2];
      const sooner = right !== undefined && left !== undefined && right.at < left.at ? right : left;
      if (sooner === undefined || sooner.at >= entry.at) return;
      this.#swap(entry, sooner);
    }
  }

  #swap(upper: Entry, lower: Entry): void {
    const index = upper.index;
    upper.index = lower.index;
    lower.index = index;
    this.#heap[upper.index] = upper;
    this.#heap[lower.index] = lower;
  }
}
