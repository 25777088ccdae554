import type { IncomingMessage } from 'node:http';
import type { AgentSessionHolder } from './agent-lifetimes.ts';
import type { RefusalFormat } from './errors.ts';
import type { SessionLifetimes } from './lifetimes.ts';
import type { Clock } from './seconds.ts';

/** Where the requests of one kind of server name their session, and how long its sessions live. */
export interface SessionKind {
  /** `resources`, `agent`, `web`, or the name of a kind of one's own; it names the cookie where `sessionRouting()` is given no name. */
  readonly kind: string;
  /** Name of the session cookie where `sessionRouting()` is given none. */
  readonly cookieName: string;
  /**
   * Who decides on session cookies. `router`: a reply carries the cookie if and only if it starts or used a new
   * session, and a cookie's ID is kept even if the store does not know it. `express-session`: its own rules hold.
   * `none`: no cookie names a session of this kind, and whatever express-session the app has is its own business.
   */
  readonly cookies: 'router' | 'express-session' | 'none';
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
  /** Makes the function that finds the session in the head of a request, where it may stand in more than the cookie. */
  readonly headReader?: (secrets: readonly string[]) => HeadReader;
  /**
   * The function that finds the session in the body of a request on this path, taken below `basePath`; undefined where the
   * body names none, and is not to be read.
   *
   * @param isNamed whether the head of the request names a session
   */
  bodyReader(method: string, path: string, isNamed: boolean): BodyReader | undefined;
  /** What begins a new session in the place of one that is there no longer. */
  readonly restart?: SessionRestart;
  /** A field of replies, in lower case, by which the app names a session that it has opened. */
  readonly replyField?: string;
  /** How clients are told of refusals. Default: by problem documents. */
  readonly refusalFormat?: RefusalFormat;
  /** Told of each session whose claim went, for the app to drop what it keeps of it. */
  readonly released?: (sessionId: string) => void;
  /** Where the session tokens of a resources server are, and what they are for. */
  readonly tokens?: SessionTokenPlaces;
  /** New records of how long sessions live, for one worker. */
  createLifetimes(clock: Clock): SessionLifetimes;
  /** The records that decide on the sessions of an agent server, which need to know of claims. */
  readonly agentSessions?: AgentSessionHolder;
  /** Seconds after the death of a worker until its claims may go. None: they stay until the server exits. */
  readonly claimsExpireSeconds?: number;
}

/**
 * The session that the head of a request names: `cookieId`, which is what its cookie names, another that counts in its
 * place, or undefined for none. The path is taken below `basePath`.
 *
 * @throws SessionRoutingError for what is refused
 */
export type HeadReader = (request: IncomingMessage, path: string, cookieId: string | undefined) => string | undefined;

/**
 * The session that a body, parsed as JSON, names; undefined for none.
 *
 * @throws SessionRoutingError for what is refused
 */
export type BodyReader = (body: unknown) => string | undefined;

/** A request by which a client begins anew, though it may still name a session that is there no longer. */
export interface SessionRestart {
  /** The header field that names the session, in lower case. It is taken off the request. */
  readonly field: string;
  /** Whether a request on this path, taken below `basePath`, may be one. */
  matches(method: string, path: string): boolean;
  /** Whether a body, parsed as JSON, is one. */
  reads(body: unknown): boolean;
}

/** Where the session tokens of a resources server are. */
export interface SessionTokenPlaces {
  /** The header field that carries a token. */
  readonly header: string;
  /** The path of the MCP endpoint, below `basePath`. */
  readonly mcpPath: string;
  /** The path of the route that opens sessions, below `basePath`. */
  readonly seedPath: string;
  readonly closePath: string;
}
