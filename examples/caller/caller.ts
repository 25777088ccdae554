import { Agent } from 'node:http';
import { CookieJar } from 'express-session-routing/client';
import fetch from 'node-fetch';

/** A reply whose body has arrived whole. */
export interface Reply {
  readonly ok: boolean;
  readonly status: number;
  readonly text: string;
  readonly headers: Awaited<ReturnType<typeof fetch>>['headers'];
}

/** A call that got no reply, or one that says no. */
export class CallFailed extends Error {}

export interface CallerOptions {
  readonly jar?: CookieJar;
  /** Opens the connections. Default: a new one for each request, so that any worker may get it. */
  readonly agent?: Agent;
  /** Stops what is under way. */
  readonly signal?: AbortSignal | undefined;
  /** How long a request may take, with the wait for a connection. Default: 60. */
  readonly requestSeconds?: number;
}

/** Connections at once: fewer than a listening socket lets wait. */
const mostConnections = 256;

/** Makes an `http.Agent` that opens a new connection for each request. */
export const newConnections = (): Agent => new Agent({ keepAlive: false, maxSockets: mostConnections });

/** Posts JSON to one server, and keeps the cookies. Sessions of one's own are better driven by the package's client. */
export class Caller {
  readonly url: string;
  readonly jar: CookieJar;
  readonly #options: CallerOptions;

  constructor(url: string, options: CallerOptions = {}) {
    this.url = url;
    this.jar = options.jar ?? new CookieJar();
    this.#options = options;
  }

  /**
   * Posts JSON, and merges the cookies of the reply.
   *
   * @throws CallFailed if there is no reply; the signal's reason if it is aborted already
   */
  async send(path: string, body: unknown, headers: Readonly<Record<string, string>> = {}): Promise<Reply> {
    const { agent = newConnections(), signal, requestSeconds = 60 } = this.#options;
    signal?.throwIfAborted(); // node-fetch would let that error end the process
    const timeout = AbortSignal.timeout(requestSeconds * 1_000);
    const cookie = this.jar.header;
    try {
      const response = await fetch(this.url + path, {
        method: 'POST',
        headers: {
          ...headers,
          'Content-Type': 'application/json',
          ...(cookie !== undefined && { Cookie: cookie }),
          // Or the agent would hand a connection on to a request that waits for one.
          ...(!(agent as { keepAlive?: boolean }).keepAlive && { Connection: 'close' }),
        },
        body: JSON.stringify(body),
        redirect: 'manual',
        agent,
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      });
      const { ok, status, headers: fields } = response;
      const text = await response.text();
      this.jar.merge(fields.raw()['set-cookie'] ?? []);
      return { ok, status, headers: fields, text };
    } catch (error) {
      const { message } = timeout.aborted ? new Error(`no reply in ${requestSeconds} s`) : (error as Error);
      throw new CallFailed(`POST ${path}: ${message}`, { cause: error });
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
    if (!ok) throw new CallFailed(`POST ${path}: status ${status}, ${text.slice(0, 200)}`);
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new CallFailed(`POST ${path}: ${(error as Error).message}`, { cause: error });
    }
  }
}
