import express, { type Request, type Response } from 'express';
import type { IncomingMessage } from 'node:http';
import { z } from 'zod';
import { checked, functionSchema, headerField, path as pathSchema, routes as routesSchema } from './checked.ts';
import { SessionRoutingError } from './errors.ts';
import { jsonPointer } from './json-pointer.ts';
import { pathPattern, routePattern, slashed } from './route-pattern.ts';
import type { BodyReader } from './session-kind.ts';
import { warn } from './warn.ts';

/** A request whose session is to be found. */
export interface SourceRequest {
  readonly request: IncomingMessage;
  /** The path below the kind's `basePath`, without the query. */
  readonly path: string;
  /** The session that the signed cookie names, if it does. */
  readonly cookieId: string | undefined;
}

/** A place where a request may name its session. */
export interface SessionIdSource {
  /** What the place is called in refusals, such as `the header field x-game-id`. */
  readonly place: string;
  /**
   * Whether an ID that is read here was signed, or checked otherwise, so that only whoever was given a session can name
   * it. Whoever guesses or overhears an ID of an unverified source has the session, and may choose the ID of a new one.
   */
  readonly isVerified: boolean;
  /**
   * The session that the head of a request names, or undefined for none.
   *
   * @throws SessionRoutingError `SESSION_ID_INVALID` for what cannot be an ID, `SESSION_MISMATCH` for two that differ
   */
  readHead(request: SourceRequest): string | undefined;
  /** As {@link SessionKind.bodyReader} has it, for a source that reads bodies. */
  bodyReader?(method: string, path: string, isNamed: boolean): BodyReader | undefined;
  /** Whether the session cookie is among what is read. */
  readonly readsCookie?: boolean;
}

/**
 * The session cookie, signed as express-session signs it: a **verified** source. With it, the app mounts
 * `routing.session()`, and `sessionRouting()` needs a secret.
 */
export function fromCookie(): SessionIdSource {
  return { place: 'the session cookie', isVerified: true, readsCookie: true, readHead: ({ cookieId }) => cookieId };
}

/**
 * A header field, whose value is the session ID as it stands. An empty one names no session.
 *
 * **Unverified:** any client may name any session. Its IDs have to be unguessable where sessions are not to be shared.
 *
 * @param name the field's name, in any case
 * @throws TypeError for what is no field name (RFC 9110, section 5.1)
 */
export function fromHeader(name: string): SessionIdSource {
  const field = checked('fromHeader()', z.strictObject({ name: headerField }), { name }).name.toLowerCase();
  return {
    place: `the header field ${field}`,
    isVerified: false,
    readHead: ({ request: { headers } }) => (Object.hasOwn(headers, field) ? one(headers[field]) : undefined),
  };
}

/** What `fromQuery()` takes. */
export interface QuerySourceOptions {
  /**
   * The path, below the kind's `basePath`, on which and below which the parameter names a session, in any case; elsewhere
   * it means something else, and is the app's. Default: every path.
   */
  path?: string;
}

/**
 * A parameter of the query. An empty one names no session; two of different values are refused with 409.
 *
 * **Unverified:** any client may name any session, and whoever sends somebody a link chooses the session that he uses.
 *
 * @param name the parameter's name
 * @throws TypeError for an empty name, or an option that is refused or unknown
 */
export function fromQuery(name: string, options: QuerySourceOptions = {}): SessionIdSource {
  const schema = z.strictObject({ name: z.string().min(1), path: pathSchema.default('/') });
  const { name: parameter, path } = checked('fromQuery()', schema, { ...options, name });
  const place = `the query parameter ${parameter}`;
  const isRead = path === '/' ? () => true : pathPattern(path);
  return {
    place,
    isVerified: false,
    readHead({ request: { url = '' }, path: requested }) {
      const [target = ''] = url.split('#', 1); // a fragment may hold a question mark, too
      const start = target.indexOf('?');
      if (start < 0 || !isRead(requested)) return undefined;
      const values = new URLSearchParams(target.slice(start + 1)).getAll(parameter);
      return agreed(values.map((value) => ({ place, sessionId: value === '' ? undefined : value })));
    },
  };
}

/**
 * A parameter of the path: `fromPath('/games/:game')` reads the ID of `/games/7` and of every path below it. The pattern
 * is Express's, matched by the Express that the app uses, in any case.
 *
 * **Unverified:** any client may name any session.
 *
 * @param pattern a path as `app.use()` takes it, below the kind's `basePath`
 * @param parameter which of its parameters names the session. Default: the only one.
 * @throws TypeError for a pattern that Express refuses, that lacks the parameter, or that has several and none is said
 */
export function fromPath(pattern: string, parameter?: string): SessionIdSource {
  const schema = z.strictObject({
    pattern: z.string().startsWith('/', 'must begin with a slash'),
    parameter: z.string().min(1).optional(),
  });
  checked('fromPath()', schema, { pattern, parameter });
  const names = [...pattern.matchAll(/:([\p{ID_Start}$_][\p{ID_Continue}$]*)/gu)].map(([, name]) => name);
  const chosen = parameter ?? (names.length === 1 ? names[0] : undefined);
  if (chosen === undefined || !names.includes(chosen)) {
    throw new TypeError(
      `fromPath(): the path ${pattern} has ${names.length === 0 ? 'no parameter' : `the parameters ${names.join(', ')}`}; ` +
        'say which of them names the session, as in fromPath("/games/:game/players/:player", "game").',
    );
  }
  const routes = express.Router();
  try {
    routes.use(pattern, (request: Request & { found?: string }, _response, done) => {
      const value: unknown = request.params[chosen];
      if (typeof value === 'string' && value !== '') request.found = value;
      done('router');
    });
  } catch (error) {
    throw new TypeError(`fromPath(): Express refuses the path ${pattern}`, { cause: error });
  }
  const place = `the path parameter ${chosen}`;
  return {
    place,
    isVerified: false,
    readHead({ request: { url = '' }, path }) {
      const at = hasPlainBackslashes(url) ? path : slashed(path);
      const seen = { method: 'GET', url: at } as Request & { found?: string };
      // A path that Express cannot decode is the app's to answer: it names no session.
      routes(seen, {} as Response, () => undefined);
      return seen.found;
    },
  };
}

/** What `fromBody()` takes. */
export interface BodySourceOptions {
  /** The routes whose bodies are read, as `'/join'` (POST) or `'PUT /join'`: no other body is touched. */
  routes: readonly string[];
}

/**
 * A member of the JSON body, on the routes named and on no other: `fromBody('/game/id', { routes: ['/join'] })`. The body
 * is read whole, up to the routing's `bodyLimit`, and put back for the app. A string or an integer is an ID; null, an empty
 * string, or nothing in that place, names no session.
 *
 * **Unverified:** any client may name any session.
 *
 * @param pointer a JSON pointer (RFC 6901)
 * @throws TypeError for a pointer, a route or an option that is refused
 */
export function fromBody(pointer: string, options: BodySourceOptions): SessionIdSource {
  const schema = z.strictObject({ routes: routesSchema.min(1) });
  const { routes } = checked('fromBody()', schema, options);
  const isRead = routePattern(routes);
  const find = jsonPointer(pointer);
  const read: BodyReader = (body) => idOf(find(body));
  return {
    place: `the member ${pointer} of the body`,
    isVerified: false,
    readHead: () => undefined,
    bodyReader: (method, path) => (isRead(method, path) ? read : undefined),
  };
}

/** What `fromFunction()` takes. */
export interface FunctionSourceOptions {
  /** Whether the function checks who may name a session, a signature for instance. Default: `false`. */
  verified?: boolean;
}

/**
 * Whatever a function finds in the head of a request. It must return the same ID in every worker, and is called before any
 * middleware: there is nothing of Express or of a body parser on the request yet.
 *
 * **Unverified**, unless `verified` says that the function checks it.
 *
 * @param read gets Node's request, and returns a session ID; undefined, null or an empty string for none. What it throws is
 *   a 500 `SESSION_SOURCE_FAILED` and a warning; a `SessionRoutingError` is answered as it is.
 * @throws TypeError for what is no function
 */
export function fromFunction(
  read: (request: IncomingMessage) => string | null | undefined,
  options: FunctionSourceOptions = {},
): SessionIdSource {
  const schema = z.strictObject({ read: functionSchema<typeof read>(), verified: z.boolean().default(false) });
  const { verified } = checked('fromFunction()', schema, { ...options, read });
  return {
    place: `the function ${read.name || 'of fromFunction()'}`,
    isVerified: verified,
    readHead({ request }) {
      try {
        return idOf(atOnce(read(request)));
      } catch (error) {
        if (error instanceof SessionRoutingError) throw error;
        warn('A function that reads session IDs failed.', error);
        throw new SessionRoutingError('SESSION_SOURCE_FAILED', 'The session of this request could not be told.', {
          cause: error,
        });
      }
    },
  };
}

/**
 * Several sources, of which the first that names a session counts, whatever the others say. Bodies are read only where no
 * head does.
 *
 * @throws TypeError for no sources
 */
export function firstOf(...sources: readonly SessionIdSource[]): SessionIdSource {
  checkSources('firstOf()', sources);
  return {
    place: sources.map(({ place }) => place).join(' or '),
    isVerified: sources.every(({ isVerified }) => isVerified),
    readsCookie: sources.some(({ readsCookie }) => readsCookie),
    readHead: (request) => firstFound(sources, (each) => each.readHead(request)),
    bodyReader(method, path, isNamed) {
      if (isNamed) return undefined;
      const readers = sources.flatMap((each) => each.bodyReader?.(method, path, isNamed) ?? []);
      return readers.length === 0 ? undefined : (body) => firstFound(readers, (read) => read(body));
    },
  };
}

/** @throws TypeError for what is no list of sources */
export function checkSources(caller: string, sources: unknown): asserts sources is readonly SessionIdSource[] {
  const source = z.custom(
    (value) => typeof value === 'object' && value !== null && 'readHead' in value,
    'must be a source, such as fromHeader("x-game-id")',
  );
  checked(caller, z.strictObject({ from: z.array(source).min(1, 'must name at least one source') }), { from: sources });
}

/** What one place says, in a request that may name its session in several. */
export interface Named {
  readonly place: string;
  readonly sessionId: string | undefined;
}

/**
 * The session that several places name.
 *
 * @throws SessionRoutingError `SESSION_MISMATCH` if two of them name different ones
 */
export function agreed(named: readonly Named[]): string | undefined {
  let first: Named | undefined;
  for (const each of named) {
    if (each.sessionId === undefined) continue;
    first ??= each;
    if (each.sessionId === first.sessionId) continue;
    const both = first.place === each.place ? `Two values of ${each.place}` : `${first.place} and ${each.place}`;
    throw new SessionRoutingError(
      'SESSION_MISMATCH',
      `${both.charAt(0).toUpperCase()}${both.slice(1)} name different sessions. Send what belongs to one of them.`,
    );
  }
  return first?.sessionId;
}

/**
 * Whether Express takes the backslashes in the path of a target for themselves: it does, unless the target holds what makes
 * it use Node's own parser, which takes them for slashes.
 */
function hasPlainBackslashes(target: string): boolean {
  return target.startsWith('/') && !/[\t\n\f\r #\u00a0\ufeff]/.test(target);
}

/** A field as Node gives it: a few come as lists. */
function one(value: string | string[] | undefined): string | undefined {
  const text = Array.isArray(value) ? value.join(', ') : value;
  return text === '' ? undefined : text;
}

/**
 * The ID that a value is: a string, or an integer in decimal digits.
 *
 * @throws SessionRoutingError `SESSION_ID_INVALID` for any other value but null, undefined and the empty string
 */
export function idOf(value: unknown): string | undefined {
  if (value === undefined || value === null || value === '') return undefined;
  if (typeof value === 'string') return value;
  if (Number.isSafeInteger(value)) return String(value);
  throw new SessionRoutingError('SESSION_ID_INVALID', `A session ID is a string or an integer, not ${nameOf(value)}.`);
}

/** @throws TypeError for a promise, whose own failure would end the worker */
function atOnce(value: unknown): unknown {
  if (!(value instanceof Promise)) return value;
  value.catch(() => undefined);
  throw new TypeError('It returned a promise: a session ID has to be told at once.');
}

function nameOf(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  return typeof value === 'number' ? 'another number' : `of type ${typeof value}`;
}

function firstFound<Item, Found>(items: readonly Item[], find: (item: Item) => Found | undefined): Found | undefined {
  for (const item of items) {
    const found = find(item);
    if (found !== undefined) return found;
  }
  return undefined;
}
