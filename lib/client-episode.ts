import { AgentSession, type AgentSessionOptions } from './client-agent-session.ts';
import { Cleanup, type CleanupError } from './client-cleanup.ts';
import { ResourcesSession, type ResourcesSessionOptions } from './client-resources-session.ts';

/** What an episode decides about its sessions. */
type EpisodesOwn = 'cleanup' | 'cleanupSeconds' | 'onCleanupFailure';

/** What an episode works with. */
export interface Episode {
  /** Its place among the items. */
  readonly index: number;
  /** Aborted when all episodes are, and when this one has ended. */
  readonly signal: AbortSignal;
  /** What is given back at the end: the sessions that were opened here and not closed, and what else the episode adds. */
  readonly cleanup: Cleanup;
  /** {@link ResourcesSession.open}, with the episode's signal and clean-up. */
  openResources(options: Omit<ResourcesSessionOptions, EpisodesOwn>): Promise<ResourcesSession>;
  /** {@link AgentSession.open}, with the episode's signal and clean-up. */
  openAgent(options: Omit<AgentSessionOptions, EpisodesOwn>): Promise<AgentSession>;
}

/** How an episode ended, and which clean-ups failed after it. */
export type EpisodeOutcome<Value> = (
  { readonly status: 'fulfilled'; readonly value: Value } | { readonly status: 'rejected'; readonly reason: unknown }
) & { readonly cleanupFailures: readonly CleanupError[] };

export interface EpisodeOptions {
  readonly index: number;
  readonly signal: AbortSignal;
  readonly cleanupSeconds: number;
  readonly onCleanupFailure: (error: CleanupError) => void;
}

/**
 * Runs an episode and cleans up after it. Never rejects.
 *
 * One that ignores its signal is waited for as long as its clean-up may take, and no longer.
 */
export async function runEpisode<Value>(
  run: (episode: Episode) => Value | Promise<Value>,
  { index, signal: outerSignal, cleanupSeconds, onCleanupFailure }: EpisodeOptions,
): Promise<EpisodeOutcome<Value>> {
  const cleanup = new Cleanup({ seconds: cleanupSeconds, onFailure: onCleanupFailure });
  // A controller of its own, since a signal that outlives the episode would keep all that `AbortSignal.any()` made of it.
  const end = new AbortController();
  const { signal } = end;
  const follow = (): void => end.abort(outerSignal.reason);
  if (outerSignal.aborted) follow();
  outerSignal.addEventListener('abort', follow);
  const own = <Options extends { signal?: AbortSignal | undefined }>(options: Options) => ({
    ...options,
    signal: options.signal === undefined ? signal : AbortSignal.any([signal, options.signal]),
    cleanup,
  });
  const work = async (): Promise<Value> =>
    run({
      index,
      signal,
      cleanup,
      openResources: (options) => ResourcesSession.open(own(options)),
      openAgent: (options) => AgentSession.open(own(options)),
    });
  const [result] = await Promise.allSettled([leftAfter(cleanupSeconds, signal, work)]);
  // What the episode began and did not wait for stops, too.
  outerSignal.removeEventListener('abort', follow);
  end.abort(new Error('The episode has ended'));
  return { ...result, cleanupFailures: await cleanup.run() };
}

/** Waits for work, but after an abort only so long. */
async function leftAfter<Value>(seconds: number, signal: AbortSignal, work: () => Promise<Value>): Promise<Value> {
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  const left = new Promise<never>((_, reject) => {
    onAbort = () => void (timer = setTimeout(() => reject(signal.reason), seconds * 1_000));
    signal.addEventListener('abort', onAbort);
  });
  try {
    return await Promise.race([work(), left]);
  } finally {
    if (onAbort) signal.removeEventListener('abort', onAbort);
    clearTimeout(timer);
  }
}
