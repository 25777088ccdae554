import { z } from 'zod';
import { ResourcesSessionLifetimes, WebSessionLifetimes } from './lifetimes.ts';
import { AgentSessionLifetimes, type AgentSessionHolder } from './agent-lifetimes.ts';
import { basePath, checked, headerField, path, routes, seconds } from './checked.ts';
import { agentSessionPaths } from './protocol.ts';
import { mountWarning } from './misplaced.ts';
import { pathPattern, routePattern } from './route-pattern.ts';
import type { BodyReader, SessionKind } from './session-kind.ts';
import { SessionTokens } from './session-token.ts';

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
  /** Header field that carries a session token. Default: `X-NeMo-Gym-Session-Token`. */
  sessionTokenHeader?: string;
  /** Path of the MCP endpoint, on which a token counts and not a cookie. Default: `/mcp`. */
  mcpPath?: string;
  /** Path below which the app's routes are mounted. Default: the root. */
  basePath?: string;
}

/** Sessions whose ID is that of their express-session. */
export const unmarked: Pick<SessionKind, 'routesNewSessions' | 'expressIdOf' | 'sessionIdOf' | 'mismatch'> = {
  routesNewSessions: true,
  expressIdOf: (sessionId) => sessionId,
  sessionIdOf: (expressId) => expressId,
  mismatch:
    'The session cookie, or token, names another session than the body. Send the request with that of its own ' +
    'session, or with none.',
};

/** Reads a member of the JSON objects that some routes below `basePath` get, if it is a string that is not empty. */
function memberReader(name: string, paths: readonly string[], basePath: string): SessionKind['bodyReader'] {
  const isRead = routePattern(paths);
  const warnOfMount = mountWarning(paths, basePath);
  const schema = z.object({ [name]: z.string().min(1) });
  const read: BodyReader = (body) => schema.safeParse(body).data?.[name];
  return function readsMember(method, path) {
    if (isRead(method, path)) return read;
    warnOfMount(method, path);
    return undefined;
  };
}

const resourcesSchema = z.strictObject({
  seedPath: path.default('/seed_session'),
  closePath: path.default('/close_session'),
  starts: routes.readonly().default([]),
  ends: routes.readonly().default(['/verify']),
  closeFollowsHeader: z.string().min(1).default('x-ng-checkpoint-close-follows'),
  closeRetryWindowSeconds: seconds.default(300),
  sessionTokenHeader: headerField.default('X-NeMo-Gym-Session-Token'),
  mcpPath: path.default('/mcp'),
  basePath: basePath.default(''),
});

/**
 * The kind of a server that callers seed, use and close: a sandbox, a REPL, a counter, a browser.
 *
 * The session is named by the cookie, and in a seed or close by the body's `resources_session_id`, bare or under
 * a rollout prefix (`/ng-rollout/<id>`). A session token names it too: on the path of the MCP endpoint whatever the cookie
 * says, elsewhere where there is no cookie. One that is not validly signed names none.
 *
 * @throws TypeError for an option that is refused or unknown
 */
export function resources(options: ResourcesOptions = {}): SessionKind {
  const { basePath, sessionTokenHeader, mcpPath, ...lifetimes } = checked('resources()', resourcesSchema, options);
  const { seedPath, closePath } = lifetimes;
  const field = sessionTokenHeader.toLowerCase();
  const isOnMcpPath = pathPattern(mcpPath);
  return {
    kind: 'resources',
    cookieName: 'resources.sid',
    cookies: 'router',
    ...unmarked,
    basePath,
    headReader(secrets) {
      const tokens = new SessionTokens(secrets);
      return function readToken(request, path, cookieId) {
        const token = request.headers[field];
        if (typeof token !== 'string' || (cookieId !== undefined && !isOnMcpPath(path))) return cookieId;
        return tokens.read(token)?.sid;
      };
    },
    bodyReader: memberReader('resources_session_id', [seedPath, closePath], basePath),
    tokens: { header: sessionTokenHeader, mcpPath, seedPath, closePath },
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
    bodyReader: memberReader('agent_session_id', Object.values(agentSessionPaths), basePath),
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
    bodyReader: () => undefined,
    createLifetimes: (clock) => new WebSessionLifetimes({ idleSeconds, clock }),
    claimsExpireSeconds: idleSeconds,
  };
}
