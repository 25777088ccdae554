/** What has to be undone when an episode is over, however it went. */
export class Cleanup {
  readonly #steps: { readonly what: string; undo(signal: AbortSignal): Promise<unknown> }[] = [];

  /** To be called ahead of what it undoes: whether that was done is not known if its reply is lost. */
  add(what: string, undo: (signal: AbortSignal) => Promise<unknown>): void {
    this.#steps.push({ what, undo });
  }

  /** Undoes the last step first, all in so many seconds. Tells what failed, and goes on. */
  async run(seconds: number, onFailure: (what: string, error: unknown) => void): Promise<void> {
    const signal = AbortSignal.timeout(seconds * 1_000);
    for (const { what, undo } of this.#steps.splice(0).reverse()) {
      try {
        await undo(signal);
      } catch (error) {
        onFailure(what, error);
      }
    }
  }
}
