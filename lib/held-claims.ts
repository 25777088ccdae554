/** The claims that a request holds until its reply has ended: almost always one, for which a map would be dear. */
export class HeldClaims {
  readonly #first: string;
  readonly #end: () => void;
  #others: Map<string, () => void> | undefined;

  /** @param end lets the claim go, unless something else holds it */
  constructor(sessionId: string, end: () => void) {
    this.#first = sessionId;
    this.#end = end;
  }

  has(sessionId: string): boolean {
    return sessionId === this.#first || (this.#others?.has(sessionId) ?? false);
  }

  add(sessionId: string, end: () => void): void {
    this.#others ??= new Map();
    this.#others.set(sessionId, end);
  }

  /** Lets all of them go, in the order in which they were made; each is told before. */
  end(onEnding: (sessionId: string) => void): void {
    onEnding(this.#first);
    this.#end();
    for (const [sessionId, end] of this.#others ?? []) {
      onEnding(sessionId);
      end();
    }
  }
}
