/** What Node can send in a field, without the characters that would end a name or a value. */
const sendableName = /^[\x20-\x3a\x3c\x3e-\x7e\x80-\xff]+$/;
const sendableValue = /^[\t\x20-\x3a\x3c-\x7e\x80-\xff]*$/;

/**
 * The cookies of one client of one server: names and values, without the rules by which a browser keeps servers and paths
 * apart.
 *
 * A value goes back byte for byte as it came, with its quotes and escapes: a signature may cover them.
 */
export class CookieJar {
  readonly #values = new Map<string, string>();

  get size(): number {
    return this.#values.size;
  }

  /** What to send as `Cookie`; undefined for an empty jar. */
  get header(): string | undefined {
    if (this.#values.size === 0) return undefined;
    return [...this.#values].map(([name, value]) => `${name}=${value}`).join('; ');
  }

  /**
   * Takes over what a reply's `Set-Cookie` fields say. Of those with one name the last counts; one that has expired at `now`
   * (milliseconds since 1970) removes the cookie. A reply that sets none changes nothing: many do not, so a jar must never be
   * replaced by the cookies of the last reply.
   */
  merge(setCookies: readonly string[], now = Date.now()): void {
    for (const setCookie of setCookies) {
      const [pair = '', ...attributes] = setCookie.split(';');
      const [name, value] = halvesOf(pair);
      if (name === '' || value === undefined) continue;
      if (hasExpired(attributes, now)) this.#values.delete(name);
      else this.#values.set(name, value);
    }
  }

  /**
   * Throws all cookies away and takes others, which came by another way than a reply's fields.
   *
   * @throws TypeError if one cannot be sent; the jar is unchanged then
   */
  replace(cookies: Readonly<Record<string, string>>): void {
    const entries = Object.entries(cookies);
    for (const [name, value] of entries) {
      if (!sendableName.test(name)) throw new TypeError(`${JSON.stringify(name)} cannot be the name of a cookie`);
      if (!sendableValue.test(value)) throw new TypeError(`The value of cookie ${JSON.stringify(name)} cannot be sent`);
    }
    this.clear();
    for (const [name, value] of entries) this.#values.set(name, value);
  }

  clear(): void {
    this.#values.clear();
  }

  /** The cookies by name, as {@link replace} takes them. */
  toRecord(): Record<string, string> {
    return Object.fromEntries(this.#values);
  }
}

/** Whether `Max-Age`, or without one `Expires`, has passed (RFC 6265, 5.3); one that cannot be read counts as none. */
function hasExpired(attributes: readonly string[], now: number): boolean {
  let maximumAge: string | undefined;
  let expires = NaN;
  for (const attribute of attributes) {
    const [name, value = ''] = halvesOf(attribute);
    if (name.toLowerCase() === 'max-age' && /^-?\d+$/.test(value)) maximumAge = value;
    // What `Date.parse` takes for a year, such as 0, is no date here.
    if (name.toLowerCase() === 'expires' && /[a-z]{3}.*\d:\d\d/i.test(value) && !Number.isNaN(Date.parse(value))) {
      expires = Date.parse(value);
    }
  }
  return maximumAge === undefined ? expires <= now : Number(maximumAge) <= 0;
}

/** What stands on both sides of the first `=`. */
function halvesOf(text: string): [name: string, value: string | undefined] {
  const at = text.indexOf('=');
  return at === -1 ? [trimmed(text), undefined] : [trimmed(text.slice(0, at)), trimmed(text.slice(at + 1))];
}

/** Text without the space and tabs around it. (`trim()` would take the last byte of some UTF-8 characters, too.) */
function trimmed(text: string): string {
  let [from, to] = [0, text.length];
  while (from < to && isBlank(text[from])) from++;
  while (from < to && isBlank(text[to - 1])) to--;
  return text.slice(from, to);
}

function isBlank(character: string | undefined): boolean {
  return character === ' ' || character === '\t';
}
