import type { Call, Calls } from './client-calls.ts';
import { Cleanup, type CleanupStep } from './client-cleanup.ts';
import { SessionClientError } from './client-errors.ts';
import type { CallOptions, ClientOptions } from './client-options.ts';

/** What the close of a session is sent with. */
export interface CloseOptions extends CallOptions {
  /** Whether the close goes on after the session's signal. */
  readonly outlivesSignal?: boolean;
}

/** The beginning and the end of a session: a seed whose clean-up is registered before it is sent, and one close. */
export class SessionLifecycle<Receipt> {
  readonly #calls: Calls;
  readonly #what: string;
  readonly #sendClose: (options: CloseOptions) => Promise<Receipt>;
  readonly #cleanup: Cleanup;
  readonly #ownsCleanup: boolean;
  #step: CleanupStep | undefined;
  #close: Promise<Receipt> | undefined;
  /** Ends a close that gets no answer, when the clean-up sends another. */
  #replacing = new AbortController();

  /** @param what names the session in errors, such as `resources session r-1` */
  constructor(
    calls: Calls,
    options: ClientOptions,
    what: string,
    sendClose: (options: CloseOptions) => Promise<Receipt>,
  ) {
    const { cleanup, cleanupSeconds, onCleanupFailure } = options;
    this.#calls = calls;
    this.#what = what;
    this.#sendClose = sendClose;
    this.#ownsCleanup = cleanup === undefined;
    this.#cleanup =
      cleanup ??
      new Cleanup({
        ...(cleanupSeconds !== undefined && { seconds: cleanupSeconds }),
        ...(onCleanupFailure && { onFailure: onCleanupFailure }),
      });
  }

  /**
   * Seeds the session. If that fails, it is closed: by its own clean-up at once, else by the one that it was registered with.
   *
   * @throws what the seed throws, whatever comes of the close
   */
  async open<Reply>(seed: Call<Reply>): Promise<Reply> {
    this.#step = this.#cleanup.add(`The close of ${this.#what}`, (signal, seconds) => this.#cleanUp(signal, seconds));
    try {
      return await this.#calls.post(seed);
    } catch (error) {
      // The reply may name another session, or one that the server does not keep. The ID alone finds what there is.
      this.#calls.jar.clear();
      if (this.#ownsCleanup) await this.#cleanup.run();
      throw error;
    }
  }

  /** Closes the session once: called again, it gives the same receipt, or tries again where the last close failed. */
  close(options: CloseOptions): Promise<Receipt> {
    const { signal: replaced } = this.#replacing;
    const signal = options.signal === undefined ? replaced : AbortSignal.any([options.signal, replaced]);
    return (this.#close ??= this.#closeOnce({ ...options, signal }));
  }

  /** Closes the session unless it is closed. Never rejects: a failure is reported. */
  async dispose(): Promise<void> {
    await this.#step?.run();
  }

  async #closeOnce(options: CloseOptions): Promise<Receipt> {
    try {
      const receipt = await this.#sendClose(options);
      this.#step?.remove();
      return receipt;
    } catch (error) {
      this.#close = undefined;
      // Another try would be refused the same way, and the caller is told of this one.
      if (error instanceof SessionClientError && error.isOver) this.#step?.remove();
      throw error;
    }
  }

  /** What comes of a close that is under way, in so many seconds. It may have been cancelled, or be so yet. */
  async #outcomeOfClose(seconds: number): Promise<'closed' | 'refused' | undefined> {
    if (this.#close === undefined) return undefined;
    const close = this.#close.then(
      () => 'closed' as const,
      (error: unknown) => (error instanceof SessionClientError && error.isOver ? ('refused' as const) : undefined),
    );
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, seconds * 1_000, undefined)));
    try {
      return await Promise.race([close, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  async #cleanUp(signal: AbortSignal, seconds: number): Promise<void> {
    // One attempt that gets no answer leaves time for another.
    const requestSeconds = Math.min(this.#calls.requestSeconds, seconds / 2);
    const underWay = await this.#outcomeOfClose(requestSeconds);
    if (underWay === 'closed' || underWay === 'refused') return;
    if (this.#close !== undefined) {
      this.#replacing.abort(new Error('The close got no answer, and the clean-up sends another.'));
      this.#replacing = new AbortController();
    }
    await (this.#close = this.#closeOnce({ signal, requestSeconds, outlivesSignal: true }));
  }
}
