/** A map that holds so many entries at most: another takes the place of the oldest. */
export class BoundedMap<Key, Value> extends Map<Key, Value> {
  readonly #maximum: number;

  constructor(maximum: number) {
    super();
    this.#maximum = maximum;
  }

  override set(key: Key, value: Value): this {
    if (this.size >= this.#maximum && !this.has(key)) {
      for (const oldest of this.keys()) {
        this.delete(oldest);
        break;
      }
    }
    return super.set(key, value);
  }
}
