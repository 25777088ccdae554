import { z } from 'zod';
import { basePath, checked, functionSchema, headerField, routes } from './checked.ts';
import type { RefusalFormat } from './errors.ts';
import { NamedSessionLifetimes, type NamedSessionLifetimesOptions } from './named-lifetimes.ts';
import { routePattern } from './route-pattern.ts';
import type { HeadReader, SessionKind, SessionRestart } from './session-kind.ts';
import { unmarked } from './session-kinds.ts';
import { agreed, checkSources, type SessionIdSource } from './session-sources.ts';

/** What says how long the sessions of a kind of one's own live. */
export interface SessionRecordOptions {
  /**
   * Whether the app has a session: then this alone decides how long its claim stays. It is asked after each request of a
   * session and every 30 seconds, and has to be quick. Default: `starts`, `ends`, `routing.claim()` and `routing.ended()` decide.
   */
  isOpen?: (sessionId: string) => boolean;
  /** Told of each session whose claim went, for the app to drop what it still keeps of it. */
  released?: (sessionId: string) => void;
  /** Path below which the app's routes are mounted. Default: the root. */
  basePath?: string;
}

/** What `sessionKind()` takes. */
export interface SessionKindOptions extends SessionRecordOptions {
  /**
   * Where requests name their session: `fromCookie()`, `fromHeader()`, `fromQuery()`, `fromPath()`, `fromBody()`,
   * `fromFunction()`, or `firstOf()` some of them. All that name one must name the same, or the answer is a 409.
   */
  from: readonly SessionIdSource[];
  /** Names the kind, and its cookie: `<kind>.sid`. Default: `session`. */
  kind?: string;
  /**
   * A header field of replies by which the app names a session that it has opened. It is claimed before the head leaves;
   * for a reply that fails (from 400 on), only if `isOpen` says that the app has it. Default: none.
   */
  replyHeader?: string;
  /** Routes that open a session if they succeed, as `'/start'` (POST) or `'PUT /games'`. With `fromCookie()`, they mint an ID. */
  starts?: readonly string[];
  /** Routes that end a session if they succeed. Default: none. */
  ends?: readonly string[];
  /**
   * Seconds for which a session that nothing has opened is held after its last request that the app did not refuse (4xx).
   * What the app keeps of it must go with it: see `released`. 0 holds none. Default: 300.
   */
  idleSeconds?: number;
}

const recordOptions = {
  isOpen: functionSchema<(sessionId: string) => boolean>().optional(),
  released: functionSchema<(sessionId: string) => void>().optional(),
  basePath: basePath.default(''),
};

/** The schemas of {@link SessionRecordOptions}, and of the time that kinds of one's own have in common. */
export const recordSchemas = { ...recordOptions, idleSeconds: z.number().nonnegative().finite().default(300) };

const schema = z.strictObject({
  ...recordSchemas,
  from: z.unknown(),
  kind: z
    .string()
    .regex(/^[A-Za-z][\w-]*$/, 'must be a word')
    .default('session'),
  replyHeader: headerField.optional(),
  starts: routes.default([]),
  ends: routes.default([]),
});

/**
 * Makes a kind of one's own, of a server whose requests name their session in other places than the kinds
 * `resources()`, `agent()` and `web()` know.
 *
 * Without `fromCookie()` among its sources, the sessions have nothing to do with express-session: the app may mount
 * any, and its IDs are those that the app makes. A new session is claimed where its ID is minted, by `routing.claim(id)`
 * or by `replyHeader`, before anybody else can know it.
 *
 * @throws TypeError for an option that is refused or unknown
 */
export function sessionKind(options: SessionKindOptions): SessionKind {
  const { kind, from, basePath, replyHeader, released, isOpen, idleSeconds, ...lists } = checked(
    'sessionKind()',
    schema,
    options,
  );
  checkSources('sessionKind()', from);
  const [starts, ends] = [routePattern(lists.starts), routePattern(lists.ends)];
  return namedKind({
    kind,
    from,
    basePath,
    released,
    replyField: replyHeader?.toLowerCase(),
    lifetimes: {
      isStart: ({ method, path }) => starts(method, path),
      isEnd: ({ method, path }, status) => status >= 200 && status < 300 && ends(method, path),
      idleSeconds,
      isOpen,
    },
  });
}

/** What makes up a kind whose requests name their session in sources. */
export interface NamedKindParts {
  readonly kind: string;
  readonly from: readonly SessionIdSource[];
  readonly basePath: string;
  readonly released: ((sessionId: string) => void) | undefined;
  readonly replyField?: string | undefined;
  readonly restart?: SessionRestart;
  readonly refusalFormat?: RefusalFormat;
  readonly lifetimes: NamedSessionLifetimesOptions;
}

/** Makes a kind whose requests name their session in sources. */
export function namedKind({ kind, from, lifetimes, released, replyField, ...parts }: NamedKindParts): SessionKind {
  return {
    ...unmarked,
    ...parts,
    kind,
    cookieName: `${kind}.sid`,
    cookies: from.some(({ readsCookie }) => readsCookie) ? 'router' : 'none',
    mismatch: 'The body names another session than the head of the request. Send what belongs to one of them.',
    headReader: () => headReader(from),
    bodyReader(method, path, isNamed) {
      const readers = from.flatMap(({ place, bodyReader }) => {
        const read = bodyReader?.(method, path, isNamed);
        return read === undefined ? [] : [{ place, read }];
      });
      if (readers.length === 0) return undefined;
      return (body) => agreed(readers.map(({ place, read }) => ({ place, sessionId: read(body) })));
    },
    ...(replyField !== undefined && { replyField }),
    ...(released !== undefined && { released }),
    createLifetimes: (clock) => new NamedSessionLifetimes({ ...lifetimes, clock }),
  };
}

function headReader(sources: readonly SessionIdSource[]): HeadReader {
  return function readSources(request, path, cookieId) {
    const seen = { request, path, cookieId };
    return agreed(sources.map((source) => ({ place: source.place, sessionId: source.readHead(seen) })));
  };
}
