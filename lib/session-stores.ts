import expressSession, { type Store } from 'express-session';

type Destroy = Store['destroy'];

/** The express-session stores of one worker's app: where sessions end, and where nothing of an ended one may stay. */
export class SessionStores {
  readonly #ended: (sessionId: string) => void;
  /** What each store's `destroy` was before it was watched. */
  readonly #destroys = new Map<Store, Destroy>();

  /** @param ended told of every session that a store destroys */
  constructor(ended: (sessionId: string) => void) {
    this.#ended = ended;
  }

  /** Watches a store's `destroy`, by which sessions end in every way that express-session has. */
  watch(store: Store): void {
    if (this.#destroys.has(store)) return;
    const { destroy } = store;
    const ended = this.#ended;
    this.#destroys.set(store, destroy);
    store.destroy = function (this: Store, sessionId, callback) {
      ended(sessionId);
      return destroy.call(this, sessionId, callback);
    };
  }

  /**
   * Removes a session from the stores that live in this worker's memory: the session's next request may go to another
   * worker, which must not find it otherwise than this one would.
   */
  forget(sessionId: string): void {
    for (const [store, destroy] of this.#destroys) {
      if (livesInMemory(store)) destroy.call(store, sessionId, () => undefined);
    }
  }

  /** Leaves the stores as they were. */
  close(): void {
    for (const [store, destroy] of this.#destroys) store.destroy = destroy;
    this.#destroys.clear();
  }
}

/** Whether each worker has a store of its own: express-session's MemoryStore, or another of that name (`memorystore`). */
function livesInMemory(store: Store): boolean {
  return store instanceof expressSession.MemoryStore || store.constructor.name === 'MemoryStore';
}
