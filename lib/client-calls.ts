import { Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import fetch, { type HeadersInit } from 'node-fetch';
import type { z } from 'zod';
import type { ClientOptions } from './client-options.ts';
import {
  connectionError,
  replyError,
  statusError,
  type FailedCall,
  type SessionServer,
  type SessionStage,
} from './client-errors.ts';
import { delay } from './client-retries.ts';
import { CookieJar } from './cookie-jar.ts';

/** A POST to a session's server. */
export interface Call<Reply> {
  readonly stage: SessionStage;
  /** Below the server's URL. */
  readonly path: string;
  /** As JSON: so that a repeat is the same to the byte, whatever happens meanwhile to the objects that it was made of. */
  readonly body: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** What the body of a success has to be. */
  readonly reply: z.ZodType<Reply>;
  /** Whether the reply has to leave a cookie. */
  readonly needsCookie?: boolean;
  /** Whether the server takes the call for the same one when it arrives again. */
  readonly mayRepeat: boolean;
  readonly signal?: AbortSignal | undefined;
  /** How long an attempt may take; default: the options'. */
  readonly requestSeconds?: number | undefined;
  /** Whether the call goes on after the options' signal, as one that cleans up does. */
  readonly outlivesSignal?: boolean;
}

interface RawReply {
  readonly status: number;
  readonly text: string;
  /** Of the body, where it is not plain. */
  readonly encoding: string | null;
  readonly setCookies: readonly string[];
}

/** The calls of one session to its server, with the cookies that they share. */
export class Calls {
  readonly jar = new CookieJar();
  readonly server: SessionServer;
  readonly #options: ClientOptions;

  constructor(server: SessionServer, options: ClientOptions) {
    this.server = server;
    this.#options = options;
  }

  get url(): string {
    return this.#options.url;
  }

  get requestSeconds(): number {
    return this.#options.requestSeconds;
  }

  /**
   * Sends a call until it gets a complete reply, and gives the reply's body.
   *
   * Only a complete reply changes the cookies, and any does, whatever its status.
   *
   * @throws SessionClientError if there was no complete reply, its status is no success or its body is refused; the reason of
   * a signal that was aborted before a complete reply
   */
  async post<Reply>(call: Call<Reply>): Promise<Reply> {
    const failing = { server: this.server, stage: call.stage, path: call.path };
    const { status, text, encoding, setCookies } = await this.#complete(call, failing);
    this.jar.merge(setCookies);
    if (status < 200 || status > 299) throw statusError(failing, status, text);
    if (encoding !== null)
      throw replyError(failing, status, `the reply is encoded (${encoding}), which was not asked for`);
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch (error) {
      throw replyError(failing, status, 'the reply is not JSON', error);
    }
    const { success, data, error } = call.reply.safeParse(body);
    if (success && call.needsCookie && this.jar.size === 0)
      throw replyError(failing, status, 'the reply sets no cookie');
    if (success) return data;
    const [issue] = error.issues;
    const where = issue?.path.length ? ` at ${issue.path.join('.')}` : '';
    throw replyError(failing, status, `the reply is refused${where}: ${issue?.message}`, error);
  }

  /** The first complete reply to a call. */
  async #complete(call: Call<unknown>, failing: FailedCall): Promise<RawReply> {
    const { retries, signal: ownSignal } = this.#options;
    const signals = [call.signal, call.outlivesSignal ? undefined : ownSignal].filter((signal) => signal !== undefined);
    const signal = AbortSignal.any(signals);
    signal.throwIfAborted();
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#attempt(call, signal, attempt);
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof ConnectionFailure)) throw error;
        if (!call.mayRepeat || attempt > retries.limit) throw connectionError(failing, attempt, error.cause);
      }
      await delay(retries, attempt - 1, signal);
    }
  }

  /** @throws ConnectionFailure if there was no complete reply, which is also the case after an abort */
  async #attempt(call: Call<unknown>, signal: AbortSignal, attempt: number): Promise<RawReply> {
    const { url, onReply, requestSeconds: ownSeconds } = this.#options;
    const { stage, path, headers, body, requestSeconds = ownSeconds } = call;
    const cookie = this.jar.header;
    const fields: HeadersInit = {
      'Content-Type': 'application/json',
      Accept: 'application/json',
      'Accept-Encoding': 'identity',
      ...headers,
    };
    if (cookie !== undefined) fields['Cookie'] = cookie;
    // A connection of the request's own. node-fetch would take one that is kept by Node's global agent: a server may close that at
    // any time, so that a tool call fails which nobody can tell from one that was executed.
    const ownAgent = new (/^https:/i.test(url) ? HttpsAgent : HttpAgent)({ keepAlive: false });
    const { agent = ownAgent } = this.#options;
    // An agent that keeps none, but opens so many at most, would hand one on to a request that waits.
    if (!(agent as { keepAlive?: boolean }).keepAlive) fields['Connection'] ??= 'close';
    const leaving = new AbortController();
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      leaving.abort();
    }, requestSeconds * 1_000);
    /** Waits for a part of the exchange, in which anything but a mistake in the request is the connection's failure. */
    const exchanged = async <Value>(part: Promise<Value>): Promise<Value> => {
      try {
        return await part;
      } catch (error) {
        if (error instanceof TypeError) throw error;
        throw new ConnectionFailure(isLate ? new Error(`no complete reply in ${requestSeconds} s`) : (error as Error));
      }
    };
    try {
      const response = await exchanged(
        fetch(url + path, {
          method: 'POST',
          // node-fetch takes some complete compressed replies for cut ones, by how the end of their last chunk was cut into packets.
          compress: false,
          // A redirected POST would lose its body, and its cookies would go elsewhere.
          redirect: 'manual',
          headers: fields,
          body,
          signal: AbortSignal.any([signal, leaving.signal]),
          agent,
        }),
      );
      const { status, headers: received } = response;
      await onReply?.({ server: this.server, stage, status, attempt, headers: received });
      const text = await exchanged(response.text());
      const coding = received.get('content-encoding');
      const encoding = coding === null || /^(identity)?$/i.test(coding.trim()) ? null : coding;
      return { status, text, encoding, setCookies: received.raw()['set-cookie'] ?? [] };
    } finally {
      clearTimeout(timer);
      leaving.abort(); // closes the connection of a reply that is not read to its end
      ownAgent.destroy(); // and of one that came before the request was sent to its end
    }
  }
}

/** No complete reply: nobody can tell whether the server has executed the request. */
class ConnectionFailure extends Error {
  override readonly cause: Error;

  constructor(cause: Error) {
    super(cause.message);
    this.cause = cause;
  }
}
