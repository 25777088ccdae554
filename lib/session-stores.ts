import expressSession, { type Store } from 'express-session';

type Destroy = Store['destroy'];

/** How a store was before it was watched. */
interface WatchedStore {
  readonly destroy: Destroy;
  unwatch(): void;
}

/** The express-session stores of one worker's app: where sessions end, and where nothing of an ended one may stay. */
export class SessionStores {
  readonly #ended: (sessionId: string) => void;
  readonly #watched = new Map<Store, WatchedStore>();

  /** @param ended told of every session that a store has destroyed */
  constructor(ended: (sessionId: string) => void) {
    this.#ended = ended;
  }

  /** Watches a store's `destroy`, by which sessions end in every way that express-session has. */
  watch(store: Store): void {
    if (this.#watched.has(store)) return;
    let ended: ((sessionId: string) => void) | undefined = this.#ended;
    const own = Object.getOwnPropertyDescriptor(store, 'destroy');
    const { destroy } = store;
    const watchedDestroy: Destroy = function (this: Store, sessionId, callback) {
      return destroy.call(this, sessionId, (...results: [unknown?]) => {
        // A session that could not be destroyed lives on, and is claimed on.
        if (!results[0]) ended?.(sessionId);
        callback?.(...results);
      });
    };
    store.destroy = watchedDestroy;
    this.#watched.set(store, {
      destroy,
      unwatch() {
        ended = undefined;
        if (store.destroy !== watchedDestroy) return; // somebody has wrapped it since
        if (own) Object.defineProperty(store, 'destroy', own);
        else delete (store as Partial<Store>).destroy;
      },
    });
  }

  /**
   * Removes a session from the stores that live in this worker's memory: the session's next request may go to another
   * worker, which must not find it otherwise than this one would.
   */
  forget(sessionId: string): void {
    for (const [store, { destroy }] of this.#watched) {
      if (livesInMemory(store)) destroy.call(store, sessionId, () => undefined);
    }
  }

  /** Leaves the stores as they were. */
  close(): void {
    for (const { unwatch } of this.#watched.values()) unwatch();
    this.#watched.clear();
  }
}

/** Whether each worker has a store of its own: express-session's MemoryStore, or another of that name (`memorystore`). */
function livesInMemory(store: Store): boolean {
  return store instanceof expressSession.MemoryStore || store.constructor.name === 'MemoryStore';
}
