import type { IncomingHttpHeaders } from 'node:http';
import { ExpiryQueue } from './expiry-queue.ts';
import { routePattern } from './route-pattern.ts';
import { monotonicSeconds, positiveSeconds, type Clock } from './seconds.ts';

/** What a lifetime may know of a request. */
export interface SessionRequest {
  readonly method: string;
  /** The path below the mount, without a query. */
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  /** express-session's session as the handler left it. */
  readonly session?: { readonly cookie?: { readonly maxAge?: number | null | undefined } } | null | undefined;
}

/** How long a worker keeps the claims of its sessions. Times are seconds of a monotonic clock. */
export interface SessionLifetimes {
  /** Whether the request starts a session, so that its session is claimed whatever its handler does. */
  starts(request: SessionRequest): boolean;
  /** Records that a request of a session was served: `status` is undefined if no reply had begun. */
  served(sessionId: string, request: SessionRequest, status: number | undefined): void;
  /** Whether anything of the session is left, so that its claim must stay. */
  holds(sessionId: string): boolean;
  /** Whether the app says that it has the session; left out where it is not asked. */
  isOpen?(sessionId: string): boolean;
  /** Opens a session, as the app asks for; left out where it cannot. */
  opened?(sessionId: string): void;
  /** Ends a session, as a terminal route asks for. */
  ended(sessionId: string): void;
  /** Forgets at most `limit` of the sessions that expired by `now`, and returns them: their claims may be released. */
  sweep(now: number, limit?: number): string[];
  /** When a session expires next; undefined while none does. */
  readonly nextExpiry: number | undefined;
  /** How many sessions are held. */
  readonly size: number;
}

/** Options of {@link ResourcesSessionLifetimes}. */
export interface ResourcesSessionLifetimesOptions {
  /** How long a session that is not open is held after its last request; default 300. */
  readonly closeRetryWindowSeconds?: number;
  /** Default `/seed_session`. Starts a session. */
  readonly seedPath?: string;
  /** Default `/close_session`. Ends a session. */
  readonly closePath?: string;
  /** Further routes that start a session, such as `/reset`; entries of {@link routePattern}. Default none. */
  readonly starts?: readonly string[];
  /** Further routes that end a session; default `/verify`. */
  readonly ends?: readonly string[];
  /** A header field by which a request to one of `ends` says that a close follows, so that the session stays open. */
  readonly closeFollowsHeader?: string;
  readonly clock?: Clock;
}

/**
 * Judges from the requests served how long a resources session is held.
 *
 * A successful (2xx) start opens a session: it is held without limit until a successful close, a successful end that
 * does not say that a close follows, or {@link ended}. A session that is not open, because it ended, its seed failed
 * or it never had one, is held for the window after its last request, whatever that was. A start, close or end
 * that fails changes nothing.
 *
 * @throws TypeError or RangeError if `closeRetryWindowSeconds` is no finite number above zero; TypeError for a bad route.
 */
export class ResourcesSessionLifetimes implements SessionLifetimes {
  readonly #windowSeconds: number;
  readonly #clock: Clock;
  readonly #isStart: (method: string, path: string) => boolean;
  readonly #isClose: (method: string, path: string) => boolean;
  readonly #isEnd: (method: string, path: string) => boolean;
  readonly #closeFollowsHeader: string;
  readonly #open = new Set<string>();
  readonly #expiring = new ExpiryQueue();

  constructor({
    closeRetryWindowSeconds = 300,
    seedPath = '/seed_session',
    closePath = '/close_session',
    starts = [],
    ends = ['/verify'],
    closeFollowsHeader = 'x-ng-checkpoint-close-follows',
    clock = monotonicSeconds,
  }: ResourcesSessionLifetimesOptions = {}) {
    this.#windowSeconds = positiveSeconds('closeRetryWindowSeconds', closeRetryWindowSeconds);
    this.#clock = clock;
    this.#isStart = routePattern([seedPath, ...starts]);
    this.#isClose = routePattern([closePath]);
    this.#isEnd = routePattern(ends);
    this.#closeFollowsHeader = closeFollowsHeader.toLowerCase();
  }

  get nextExpiry(): number | undefined {
    return this.#expiring.next;
  }

  get size(): number {
    return this.#open.size + this.#expiring.size;
  }

  starts(request: SessionRequest): boolean {
    return this.#isStart(request.method, request.path);
  }

  served(sessionId: string, request: SessionRequest, status: number | undefined): void {
    const successful = status !== undefined && status >= 200 && status < 300;
    if (successful && this.starts(request)) {
      this.opened(sessionId);
    } else if ((successful && this.#ends(request)) || !this.#open.has(sessionId)) {
      this.ended(sessionId);
    }
  }

  holds(sessionId: string): boolean {
    return this.#open.has(sessionId) || this.#expiring.has(sessionId);
  }

  /** Opens a session: it is held until it ends. */
  opened(sessionId: string): void {
    this.#expiring.delete(sessionId);
    this.#open.add(sessionId);
  }

  /** Ends a session: it is held for the window from now, so that retried and cleanup closes find it. */
  ended(sessionId: string): void {
    this.#open.delete(sessionId);
    this.#expiring.set(sessionId, this.#clock() + this.#windowSeconds);
  }

  sweep(now: number, limit?: number): string[] {
    return this.#expiring.take(now, limit);
  }

  #ends({ method, path, headers }: SessionRequest): boolean {
    if (this.#isClose(method, path)) return true;
    return this.#isEnd(method, path) && headers[this.#closeFollowsHeader] === undefined;
  }
}

/** Options of {@link WebSessionLifetimes}. */
export interface WebSessionLifetimesOptions {
  /** How long a session is held after its last request if its cookie has no lifetime; default 86,400, a day. */
  readonly idleSeconds?: number;
  readonly clock?: Clock;
}

/**
 * Holds a session for as long as its cookie would live, counted from the last reply: the `maxAge` of its
 * `session.cookie`, or `idleSeconds` for a cookie that has none. A request that leaves no session, because it was
 * destroyed or express-session did not run, changes nothing.
 *
 * @throws TypeError or RangeError if `idleSeconds` is no finite number above zero.
 */
export class WebSessionLifetimes implements SessionLifetimes {
  readonly #idleSeconds: number;
  readonly #clock: Clock;
  readonly #expiring = new ExpiryQueue();

  constructor({ idleSeconds = 86_400, clock = monotonicSeconds }: WebSessionLifetimesOptions = {}) {
    this.#idleSeconds = positiveSeconds('idleSeconds', idleSeconds);
    this.#clock = clock;
  }

  get nextExpiry(): number | undefined {
    return this.#expiring.next;
  }

  get size(): number {
    return this.#expiring.size;
  }

  /** Always false: a web session is claimed when its cookie is. */
  starts(): boolean {
    return false;
  }

  served(sessionId: string, { session }: Pick<SessionRequest, 'session'>): void {
    if (session === undefined || session === null) return;
    const seconds = this.#lifetimeSeconds(session.cookie?.maxAge);
    if (seconds > 0) this.#expiring.set(sessionId, this.#clock() + seconds);
    else this.ended(sessionId);
  }

  holds(sessionId: string): boolean {
    return this.#expiring.has(sessionId);
  }

  /** Ends a session: nothing of it is held any longer. */
  ended(sessionId: string): void {
    this.#expiring.delete(sessionId);
  }

  sweep(now: number, limit?: number): string[] {
    return this.#expiring.take(now, limit);
  }

  #lifetimeSeconds(maxAgeMilliseconds: unknown): number {
    // express-session's maxAge is null or false for a browser-session cookie, and NaN for an invalid date.
    if (typeof maxAgeMilliseconds !== 'number' || Number.isNaN(maxAgeMilliseconds)) return this.#idleSeconds;
    return Math.ceil(maxAgeMilliseconds / 1000);
  }
}
