import { inspect, types } from 'node:util';
import { createContext, runInContext, type Context } from 'node:vm';

/** What a piece of code came to, as a REPL prints it. */
export type Evaluation = { result: string } | { error: string };

interface Repl {
  readonly context: Context;
  readonly idleTimer: NodeJS.Timeout;
}

/**
 * A JavaScript REPL for each session, whose variables live in the memory of one worker.
 *
 * The code can reach this process: `node:vm` separates names, it is no security boundary. Only run your own code in it.
 */
export class Repls {
  readonly #repls = new Map<string, Repl>();
  readonly #idleSeconds: number;

  /** @param idleSeconds for which a REPL without calls is kept: no longer than the claim of its session */
  constructor(idleSeconds: number) {
    this.#idleSeconds = idleSeconds;
  }

  /** How many REPLs there are. */
  get size(): number {
    return this.#repls.size;
  }

  /** Runs code in the session's REPL, which is made for its first call. Code that takes over a second is stopped. */
  evaluate(sessionId: string, code: string): Evaluation {
    const { context, idleTimer } = this.#repls.get(sessionId) ?? this.#create(sessionId);
    try {
      const result = runInContext(code, context, { filename: 'repl', timeout: 1_000 });
      return { result: inspect(result, { customInspect: false }) };
    } catch (error) {
      return { error: types.isNativeError(error) ? `${error.name}: ${error.message}` : inspect(error) };
    } finally {
      idleTimer.refresh();
    }
  }

  /** Gives a session's REPL back. */
  drop(sessionId: string): void {
    clearTimeout(this.#repls.get(sessionId)?.idleTimer);
    this.#repls.delete(sessionId);
  }

  #create(sessionId: string): Repl {
    const repl = {
      context: createContext({}, { microtaskMode: 'afterEvaluate' }), // so that the time limit includes promises
      idleTimer: setTimeout(() => this.#repls.delete(sessionId), this.#idleSeconds * 1_000).unref(),
    };
    this.#repls.set(sessionId, repl);
    return repl;
  }
}
