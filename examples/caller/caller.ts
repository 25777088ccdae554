import { Agent } from 'node:http';
import fetch from 'node-fetch';
import { CookieJar } from './cookie-jar.ts';

/** A reply whose body has arrived whole. */
export interface Reply {
  readonly ok: boolean;
  readonly status: number;
  readonly text: string;
  readonly headers: Headers;
}

type Headers = Awaited<ReturnType<typeof fetch>>['headers'];

/** A call that got no reply, or one that says no. */
export class CallFailed extends Error {
  /** The status of the reply; undefined if there was none. */
  readonly replyStatus: number | undefined;

  constructor(message: string, replyStatus?: number, options?: ErrorOptions) {
    super(message, options);
    this.replyStatus = replyStatus;
  }

  /** Whether the same request may go well later. */
  get mayBeTriedAgain(): boolean {
    const { replyStatus } = this;
    return replyStatus === undefined || [408, 425, 429].includes(replyStatus) || replyStatus >= 500;
  }
}

export interface CallerOptions {
  readonly jar?: CookieJar;
  /** Opens the connections. Default: a new one for each request, so that any worker may get it. */
  readonly agent?: Agent;
  /** Stops what is under way. */
  readonly signal?: AbortSignal | undefined;
  /** How long a request may take, with the wait for a connection. Default: 60. */
  readonly requestSeconds?: number;
  /** Told of each reply that begins, and of which worker served the request, where the server says so. */
  readonly onHead?: (path: string, servedBy: string | null) => void;
}

/** Connections at once: fewer than a listening socket lets wait. */
const mostConnections = 256;

/** Makes an `http.Agent` that opens a new connection for each request. */
export const newConnections = (): Agent => new Agent({ keepAlive: false, maxSockets: mostConnections });

/** A client of one server: posts JSON, and keeps the cookies. */
export class Caller {
  readonly url: string;
  jar: CookieJar;
  readonly #options: CallerOptions;

  constructor(url: string, options: CallerOptions = {}) {
    this.url = url;
    this.jar = options.jar ?? new CookieJar();
    this.#options = options;
  }

  /** The same client, with the same cookies, and other options. */
  with(options: Omit<CallerOptions, 'jar'>): Caller {
    return new Caller(this.url, { ...this.#options, ...options, jar: this.jar });
  }

  /**
   * Posts JSON, and merges the cookies of the reply.
   *
   * @throws CallFailed if there is no reply
   */
  async send(path: string, body: unknown, headers: Readonly<Record<string, string>> = {}): Promise<Reply> {
    const { agent = newConnections(), signal, requestSeconds = 60, onHead } = this.#options;
    const timeout = AbortSignal.timeout(requestSeconds * 1_000);
    try {
      const response = await fetch(this.url + path, {
        method: 'POST',
        headers: {
          ...headers,
          'Content-Type': 'application/json',
          ...(this.jar.header && { Cookie: this.jar.header }),
        },
        body: JSON.stringify(body),
        redirect: 'manual',
        agent,
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      });
      const { ok, status, headers: fields } = response;
      onHead?.(path, fields.get('x-served-by'));
      const text = await response.text();
      this.jar.merge(fields.raw()['set-cookie'] ?? []); // not those of a reply that was cut off: to its sender it is as if it had been lost
      return { ok, status, headers: fields, text };
    } catch (error) {
      const { message } = timeout.aborted ? new Error(`no reply in ${requestSeconds} s`) : (error as Error);
      throw new CallFailed(`POST ${path}: ${message}`, undefined, { cause: error });
    }
  }

  /**
   * Posts JSON.
   *
   * @returns the JSON of the reply
   * @throws CallFailed if there is no reply, if it is none of success, or if it is no JSON
   */
  async post(path: string, body: unknown, headers?: Readonly<Record<string, string>>): Promise<unknown> {
    const { ok, status, text } = await this.send(path, body, headers);
    if (!ok) throw new CallFailed(`POST ${path}: status ${status}, ${text.slice(0, 200)}`, status);
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new CallFailed(`POST ${path}: ${(error as Error).message}`, status, { cause: error });
    }
  }
}
