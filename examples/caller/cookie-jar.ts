/** The cookies of one client of one server: names and values, without the rules of a browser. */
export class CookieJar {
  readonly #values: Map<string, string>;

  /** @param cookies what the jar holds at first, by name */
  constructor(cookies: Readonly<Record<string, string>> = {}) {
    this.#values = new Map(Object.entries(cookies));
  }

  /** What a client sent as `Cookie`. */
  static of(header = ''): CookieJar {
    const jar = new CookieJar();
    jar.merge(header.split(';'));
    return jar;
  }

  /** What to send as `Cookie`. */
  get header(): string {
    return [...this.#values].map(([name, value]) => `${name}=${value}`).join('; ');
  }

  /** All cookies, by name. */
  get cookies(): Record<string, string> {
    return Object.fromEntries(this.#values);
  }

  /**
   * Merges a reply's `Set-Cookie` fields. Of those with one name the last counts. (A reply that sets none changes nothing:
   * many do not, so a jar must never be replaced by the cookies of the last reply.)
   */
  merge(setCookies: readonly string[]): void {
    for (const setCookie of setCookies) {
      const [, name, value] = /^\s*([^=;]+)=([^;]*)/.exec(setCookie) ?? [];
      if (name !== undefined && value !== undefined) this.#values.set(name, value);
    }
  }
}
