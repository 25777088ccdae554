import type { ServerResponse } from 'node:http';
import type { CookieOptions } from 'express-session';

/** How many folders of a request's path are tried while the path of the cookie is unknown. */
const mostPaths = 8;

/**
 * Makes clients forget the cookie of a session whose worker is gone, or they could not log in again.
 *
 * A client takes a cookie for the same one only where its name, path and domain are the same, and some names only with
 * `Secure` (RFC 6265bis, section 4.1.3). So the attributes are learned from the app: from the options of its
 * express-session, where the routing has them, and from the cookies that its replies set.
 */
export class CookieExpiry {
  readonly #name: string;
  /** As in a `Set-Cookie` field, without those that say how long the cookie lives; undefined until learned. */
  #attributes: string | undefined;

  constructor(name: string) {
    this.#name = name;
  }

  /** Learns from express-session's option of that name. */
  learnOptions({ path = '/', domain, secure }: CookieOptions): void {
    const domainPart = domain === undefined ? '' : `; Domain=${domain}`;
    this.#attributes = `Path=${path}${domainPart}${secure === true ? '; Secure' : ''}; HttpOnly`;
  }

  /** Learns from a `Set-Cookie` field that sets the cookie. */
  learnField(field: string): void {
    const [, ...attributes] = field.split(';').map((each) => each.trim());
    this.#attributes = attributes.filter((each) => !/^(expires|max-age)=/i.test(each)).join('; ');
  }

  /** Adds to a reply the fields that let its client forget the cookie. */
  expire(response: ServerResponse): void {
    const all = this.#attributes === undefined ? this.#guesses(response.req.url ?? '/') : [this.#attributes];
    for (const attributes of all) {
      const expires = 'Expires=Thu, 01 Jan 1970 00:00:00 GMT';
      response.appendHeader('Set-Cookie', `${this.#name}=; ${attributes}${attributes ? '; ' : ''}${expires}`);
    }
  }

  /** Every path that the cookie may have to come with this request, while nothing is learned. */
  #guesses(target: string): string[] {
    const isPrefixed = /^__(Host|Secure)-/i.test(this.#name);
    const [path = ''] = target.split(/[?#;,\s]/, 1);
    const folders = path.split('/').filter(Boolean).slice(0, mostPaths);
    const paths = folders.map((_, index) => `/${folders.slice(0, index + 1).join('/')}`);
    return ['/', ...paths].map((each) => `Path=${each}${isPrefixed ? '; Secure' : ''}; HttpOnly`);
  }
}
