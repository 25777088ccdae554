import { isDeepStrictEqual } from 'node:util';
import { ClosedResourcesSessionRecords } from 'express-session-routing';
import { taskData, type Close, type TypedSeed } from './bodies.ts';

/** A call that does not fit what has happened to its session before. */
export class Conflict extends Error {}

export interface CountersOptions {
  /** Seconds for which a closed session is remembered: the window of the session's claim. Default: 300. */
  closeRetryWindowSeconds?: number;
  /** Whether a session has to be seeded before it can count. Otherwise it counts from 0. Default: `false`. */
  strict?: boolean;
}

/**
 * A counter for each session, in the memory of one worker.
 *
 * Nothing is awaited between a check and what it guards. State that takes time to make or to release needs a lock for
 * each session, so that a close waits for the seed before it.
 */
export class Counters {
  readonly #counts = new Map<string, number>();
  readonly #seeds = new Map<string, TypedSeed>();
  readonly #closes: ClosedResourcesSessionRecords<Close>;
  readonly #isStrict: boolean;

  constructor({ closeRetryWindowSeconds = 300, strict = false }: CountersOptions = {}) {
    this.#closes = new ClosedResourcesSessionRecords({ closeRetryWindowSeconds });
    this.#isStrict = strict;
  }

  /** Opens a session. One that has a counter already keeps it. */
  start(sessionId: string, initialCount: number): void {
    if (!this.#counts.has(sessionId)) this.#counts.set(sessionId, initialCount);
  }

  /**
   * Opens a session whose ID the caller chose. The caller may not have got the reply, so the same seed may come again.
   *
   * @throws Conflict if the session is closed, or was seeded otherwise; ZodError for `task_data` without a count
   */
  seed(seed: TypedSeed): void {
    const { resources_session_id: sessionId } = seed;
    this.#refuseClosed(sessionId);
    const earlier = this.#seeds.get(sessionId);
    if (earlier !== undefined) {
      if (isDeepStrictEqual(earlier, seed)) return;
      throw new Conflict('Resources session has different task data or identity');
    }
    const { initial_count: initialCount } = taskData.parse(seed.task_data);
    this.#seeds.set(sessionId, seed);
    this.start(sessionId, initialCount);
  }

  /**
   * Gives a session's state back. The close of an unknown session is recorded too: its seed may be on the way still.
   *
   * @throws Conflict if the session belongs to another episode
   */
  close(close: Close): void {
    const { resources_session_id: sessionId } = close;
    const { episode_id: episode } = this.#seeds.get(sessionId) ?? this.#closes.get(sessionId) ?? close;
    if (!isDeepStrictEqual(episode, close.episode_id)) {
      throw new Conflict('Resources session belongs to another episode');
    }
    this.#counts.delete(sessionId);
    this.#seeds.delete(sessionId);
    this.#closes.close(sessionId, close);
  }

  /** @throws Conflict if the session is closed or, in the strict form, unknown */
  add(sessionId: string, count: number): void {
    this.#counts.set(sessionId, this.read(sessionId) + count);
  }

  /**
   * The count of a session, which has one from now on.
   *
   * @throws Conflict if the session is closed or, in the strict form, unknown
   */
  read(sessionId: string): number {
    this.#refuseClosed(sessionId);
    if (this.#isStrict && !this.#counts.has(sessionId)) throw new Conflict('Resources session is not open');
    this.start(sessionId, 0);
    return this.#counts.get(sessionId) ?? 0;
  }

  /** 1 if a session counted to what was expected, else 0: also for a session that is closed or unknown. */
  reward(sessionId: string, expectedCount: number): number {
    return this.#counts.get(sessionId) === expectedCount ? 1 : 0;
  }

  #refuseClosed(sessionId: string): void {
    if (this.#closes.get(sessionId) !== undefined) throw new Conflict('Resources session is closed');
  }
}
