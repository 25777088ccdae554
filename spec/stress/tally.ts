import { runEpisodes } from 'express-session-routing/client';

/** What came of one check. */
export interface Outcome {
  readonly right: number;
  readonly of: number;
  /** How long it took, where that is told. */
  readonly seconds?: number;
  /** The first thing that went wrong. */
  readonly problem?: string;
}

/** How many sessions are under way at once: fewer than a listening socket lets wait. */
const concurrency = 256;

/**
 * Runs sessions, many at once, and counts those that went as they must.
 *
 * @param run throws, or returns what went wrong
 * @throws the signal's reason once it is aborted
 */
export async function tally(
  count: number,
  run: (number: number) => Promise<string | undefined>,
  signal: AbortSignal,
): Promise<Required<Pick<Outcome, 'seconds'>> & Outcome> {
  const began = performance.now();
  const outcomes = await runEpisodes(Array(count).keys(), run, { concurrency, signal });
  const seconds = (performance.now() - began) / 1_000;
  const problems = outcomes.flatMap((outcome) =>
    outcome.status === 'rejected' ? [String(outcome.reason)] : (outcome.value ?? []),
  );
  const [problem] = problems;
  return { right: count - problems.length, of: count, seconds, ...(problem !== undefined && { problem }) };
}

/** The outcome of looking for what must not be there. */
export function none(found: readonly string[]): Outcome {
  return { right: 0, of: 0, ...(found.length > 0 && { problem: `${found.length} found, such as ${found[0]}` }) };
}
