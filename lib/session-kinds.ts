import { z } from 'zod';
import { ResourcesSessionLifetimes, WebSessionLifetimes, type SessionLifetimes } from './lifetimes.ts';
import { AgentSessionLifetimes, type AgentSessionHolder } from './agent-lifetimes.ts';
import { checked } from './checked.ts';
import { agentSessionPaths } from './protocol.ts';
import { routePattern } from './route-pattern.ts';
import type { Clock } from './seconds.ts';

/** Where the requests of one kind of server name their session, and how long its sessions live. */
export interface SessionKind {
  /** `resources`, `agent` or `web`; it names the cookie where `sessionRouting()` is given no name. */
  readonly kind: string;
  /** Name of the session cookie where `sessionRouting()` is given none. */
  readonly cookieName: string;
  /**
   * Who decides on session cookies. `router`: a reply carries the cookie if and only if it starts or used a new
   * session, and a cookie's ID is kept even if the store does not know it. `express-session`: its own rules hold.
   */
  readonly cookies: 'router' | 'express-session';
  /**
   * Whether a session that express-session makes is routed. Otherwise it is an ordinary session, which is served where it
   * lands; and the reply to a request whose body alone names a session names it if, and only if, the app asks for that.
   */
  readonly routesNewSessions: boolean;
  /** The express-session ID that a session has. */
  expressIdOf(sessionId: string): string;
  /** The session that an express-session ID names, perhaps by nothing (`''`); undefined for an ordinary session. */
  sessionIdOf(expressId: string): string | undefined;
  /** What a client is told whose cookie and body name different sessions. */
  readonly mismatch: string;
  /** Path below which the app's routes are mounted, without a trailing slash: `''` for the root. */
  readonly basePath: string;
  /** The member of the JSON body that names the session on the routes that `namesSessionInBody` tells. */
  readonly bodyField: string;
  /** Whether a request on this path, taken below `basePath`, names its session in its body. */
  namesSessionInBody(method: string, path: string): boolean;
  /** New records of how long sessions live, for one worker. */
  createLifetimes(clock: Clock): SessionLifetimes;
  /** The records that decide on the sessions of an agent server, which need to know of claims. */
  readonly agentSessions?: AgentSessionHolder;
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

/** Sessions whose ID is that of their express-session. */
const unmarked: Pick<SessionKind, 'routesNewSessions' | 'expressIdOf' | 'sessionIdOf' | 'mismatch'> = {
  routesNewSessions: true,
  expressIdOf: (sessionId) => sessionId,
  sessionIdOf: (expressId) => expressId,
  mismatch:
    'The session cookie names another session than the body. Send the request with the cookie of its own session, ' +
    'or without one.',
};

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
    ...unmarked,
    basePath,
    bodyField: 'resources_session_id',
    namesSessionInBody: routePattern([lifetimes.seedPath, lifetimes.closePath]),
    createLifetimes: (clock) => new ResourcesSessionLifetimes({ ...lifetimes, clock }),
  };
}

/** What `agent()` takes. */
export interface AgentOptions {
  /** The records of the sessions: an `AgentSessions`, or whatever else keeps them. */
  sessions: AgentSessionHolder;
  /** Path below which the app's routes are mounted. Default: the root. */
  basePath?: string;
}

const agentSchema = z.strictObject({
  sessions: z.custom<AgentSessionHolder>(
    (value) =>
      ['holdsAgentSession', 'expireAgentSessionRecords', 'useAgentSessionClaims'].every((name) => has(value, name)),
    'must hold the records of agent sessions, as an AgentSessions does',
  ),
  basePath: basePath.default(''),
});

function has(value: unknown, method: string): boolean {
  return (
    typeof value === 'object' && value !== null && typeof (value as Record<string, unknown>)[method] === 'function'
  );
}

/** What the express-session ID of an agent session begins with. */
const agentMarker = 'agent:';

/**
 * The kind of a server that opens, serves and closes agent sessions.
 *
 * A session is named by the body's `agent_session_id` on `POST /v1/agent_sessions` and `POST /v1/agent_sessions/close`, bare
 * or under a rollout prefix (`/ng-rollout/<id>`), and by the cookie everywhere. Its express-session ID is
 * `agent:<agent_session_id>`. A cookie without this marker names an ordinary session, which is not routed.
 *
 * @throws TypeError for an option that is refused or unknown
 */
export function agent(options: AgentOptions): SessionKind {
  const { sessions, basePath } = checked('agent()', agentSchema, options);
  return {
    kind: 'agent',
    cookieName: 'agent.sid',
    cookies: 'router',
    routesNewSessions: false,
    expressIdOf: (sessionId) => agentMarker + sessionId,
    sessionIdOf: (id) => (id.startsWith(agentMarker) ? id.slice(agentMarker.length) : undefined),
    mismatch: 'agent_session_id does not match the session cookie',
    basePath,
    bodyField: 'agent_session_id',
    namesSessionInBody: routePattern(Object.values(agentSessionPaths)),
    createLifetimes: () => new AgentSessionLifetimes(sessions),
    agentSessions: sessions,
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
    ...unmarked,
    basePath: '',
    bodyField: '',
    namesSessionInBody: () => false,
    createLifetimes: (clock) => new WebSessionLifetimes({ idleSeconds, clock }),
    claimsExpireSeconds: idleSeconds,
  };
}
