import { setMaxListeners } from 'node:events';
import { z } from 'zod';
import { checked, functionSchema } from './checked.ts';
import { warnOfCleanup, type CleanupError } from './client-cleanup.ts';
import { runEpisode, type Episode, type EpisodeOutcome } from './client-episode.ts';
import { secondsSchema } from './client-retries.ts';

/** How far {@link runEpisodes} has come. */
export interface EpisodesProgress {
  readonly total: number;
  /** Episodes that have ended and are cleaned up. */
  readonly ended: number;
  /** How many of these were rejected. */
  readonly rejected: number;
}

/** Options of {@link runEpisodes}. */
export interface RunEpisodesOptions {
  /** How many episodes run at once; default 16. */
  readonly concurrency?: number | undefined;
  /** Ends the episodes that run, and lets no more begin. */
  readonly signal?: AbortSignal | undefined;
  /** Told after each episode. If it throws, that ends the episodes like an aborted signal. */
  readonly onProgress?: ((progress: EpisodesProgress) => void) | undefined;
  /** How long the clean-up of one episode may take; default 30. */
  readonly cleanupSeconds?: number | undefined;
  /**
   * Told of each clean-up that fails. By default its episode's outcome tells of it and, where no outcomes are given because the
   * episodes were aborted, a warning of the process.
   */
  readonly onCleanupFailure?: ((error: CleanupError) => void) | undefined;
}

const optionsSchema = z.strictObject({
  concurrency: z.int().min(1).default(16),
  signal: z.instanceof(AbortSignal).optional(),
  onProgress: functionSchema<(progress: EpisodesProgress) => void>().optional(),
  cleanupSeconds: secondsSchema.default(30),
  onCleanupFailure: functionSchema<(error: CleanupError) => void>().optional(),
});

/**
 * Runs an episode for each item, several at once, and cleans up after each.
 *
 * @param run an episode. What it throws is its outcome, and ends no other
 * @returns how each ended, in the order of the items
 * @throws TypeError for a refused option; once the signal is aborted its reason, when every episode that had begun has ended and
 * is cleaned up
 */
export async function runEpisodes<Item, Value>(
  items: Iterable<Item>,
  run: (item: Item, episode: Episode) => Value | Promise<Value>,
  options: RunEpisodesOptions = {},
): Promise<EpisodeOutcome<Value>[]> {
  if (typeof run !== 'function') throw new TypeError('runEpisodes(): the episode must be a function');
  const { concurrency, onProgress, ...rest } = checked('runEpisodes()', optionsSchema, options);
  const failure = new AbortController();
  const signal = rest.signal === undefined ? failure.signal : AbortSignal.any([rest.signal, failure.signal]);
  setMaxListeners(0, signal); // every episode that runs listens to it
  const onCleanupFailure =
    rest.onCleanupFailure ?? ((error: CleanupError) => void (signal.aborted && warnOfCleanup(error)));
  const all = [...items];
  const queue = all.entries(); // shared: each entry is taken once
  const outcomes: EpisodeOutcome<Value>[] = [];
  let [ended, rejected] = [0, 0];

  async function runInTurn(): Promise<void> {
    for (const [index, item] of queue) {
      if (signal.aborted) return;
      const outcome = await runEpisode((episode) => run(item, episode), {
        index,
        signal,
        cleanupSeconds: rest.cleanupSeconds,
        onCleanupFailure,
      });
      outcomes[index] = outcome;
      ended += 1;
      if (outcome.status === 'rejected') rejected += 1;
      try {
        await onProgress?.({ total: all.length, ended, rejected }); // its type lets it be an async one
      } catch (error) {
        failure.abort(error);
      }
    }
  }

  await Promise.all(Array.from({ length: Math.min(concurrency, all.length) }, runInTurn));
  signal.throwIfAborted();
  return outcomes;
}
