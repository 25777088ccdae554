import { z } from 'zod';
import { ResourcesSessionLifetimes, WebSessionLifetimes, type SessionLifetimes } from './lifetimes.ts';
import { checked } from './checked.ts';
import { routePattern } from './route-pattern.ts';
import type { Clock } from './seconds.ts';

/** Where the requests of one kind of server name their session, and how long its sessions live. */
export interface SessionKind {
  /** `resources` or `web`; it names the cookie where `sessionRouting()` is given no name. */
  readonly kind: string;
  /** Name of the session cookie where `sessionRouting()` is given none. */
  readonly cookieName: string;
  /**
   * Who decides on session cookies. `router`: a reply carries the cookie if and only if it starts or used a new
   * session, and a cookie's ID is kept even if the store does not know it. `express-session`: its own rules hold.
   */
  readonly cookies: 'router' | 'express-session';
  /** Path below which the app's routes are mounted, without a trailing slash: `''` for the root. */
  readonly basePath: string;
  /** The member of the JSON body that names the session on the routes that `namesSessionInBody` tells. */
  readonly bodyField: string;
  /** Whether a request on this path, taken below `basePath`, names its session in its body. */
  namesSessionInBody(method: string, path: string): boolean;
  /** New records of how long sessions live, for one worker. */
  createLifetimes(clock: Clock): SessionLifetimes;
  /** Seconds after the death of a worker until its claims may go. None: they stay until the server exits. */
  readonly claimsExpireSeconds?: number;
}

/** What `resources()` takes. A path is matched in any case, with or without a trailing slash, and for POST. */
export interface ResourcesOptions {
  /** Opens a session; its body may name it as `resources_session_id`. Default: `/seed_session`. */
  seedPath?: string;
  /** Closes a session; its body may name it as `resources_session_id`. Default: `/close_session`. */
  closePath?: string;
  /** More routes that open a session, as `'/reset'` or, for another method than POST, `'GET /reset'`. Default: none. */
  starts?: readonly string[];
  /** Routes that end a session unless the request says that a close follows. Default: `['/verify']`. */
  ends?: readonly string[];
  /** Header field by which an ending request says that a close follows. Default: `x-ng-checkpoint-close-follows`. */
  closeFollowsHeader?: string;
  /** Seconds for which a session that is not open is still remembered after its last request. Default: 300. */
  closeRetryWindowSeconds?: number;
  /** Path below which the app's routes are mounted. Default: the root. */
  basePath?: string;
}

const path = z
  .string()
  .startsWith('/', 'must begin with a slash')
  .regex(/^[^\s?#]*$/, 'must be a path without a query');
const seconds = z.number().positive().finite();
const basePath = z
  .string()
  .regex(/^(\/[^?#]*)?$/, 'must be a path that begins with a slash')
  .transform((value) => value.replace(/\/+$/, ''));
const routes = z.array(z.string().regex(/^([A-Za-z]+ )?\/[^\s?#]*$/, 'must be "/path" or "METHOD /path"'));

const resourcesSchema = z.strictObject({
  seedPath: path.default('/seed_session'),
  closePath: path.default('/close_session'),
  starts: routes.readonly().default([]),
  ends: routes.readonly().default(['/verify']),
  closeFollowsHeader: z.string().min(1).default('x-ng-checkpoint-close-follows'),
  closeRetryWindowSeconds: seconds.default(300),
  basePath: basePath.default(''),
});

/**
 * The kind of a server that callers seed, use and close: a sandbox, a REPL, a counter, a browser.
 *
 * The session is named by the cookie, and in a seed or close by the body's `resources_session_id`, bare or under
 * a rollout prefix (`/ng-rollout/<id>`).
 *
 * @throws TypeError for an option that is refused or unknown
 */
export function resources(options: ResourcesOptions = {}): SessionKind {
  const { basePath, ...lifetimes } = checked('resources()', resourcesSchema, options);
  return {
    kind: 'resources',
    cookieName: 'resources.sid',
    cookies: 'router',
    basePath,
    bodyField: 'resources_session_id',
    namesSessionInBody: routePattern([lifetimes.seedPath, lifetimes.closePath]),
    createLifetimes: (clock) => new ResourcesSessionLifetimes({ ...lifetimes, clock }),
  };
}

/** What `web()` takes. */
export interface WebOptions {
  /** Seconds for which a session lives after its last request, where its cookie has no `maxAge`. Default: a day. */
  idleSeconds?: number;
}

const webSchema = z.strictObject({ idleSeconds: seconds.default(86_400) });

/**
 * The kind of any other app with express-session, a login for one: the session is named by the cookie alone, and
 * lives as long as its cookie.
 *
 * @throws TypeError for an option that is refused or unknown
 */
export function web(options: WebOptions = {}): SessionKind {
  const { idleSeconds } = checked('web()', webSchema, options);
  return {
    kind: 'web',
    cookieName: 'connect.sid',
    cookies: 'express-session',
    basePath: '',
    bodyField: '',
    namesSessionInBody: () => false,
    createLifetimes: (clock) => new WebSessionLifetimes({ idleSeconds, clock }),
    claimsExpireSeconds: idleSeconds,
  };
}
