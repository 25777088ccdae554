import { setTimeout as wait } from 'node:timers/promises';
import { z } from 'zod';

/** How often and when a call is repeated whose connection failed. */
export interface RetryOptions {
  /** How many times it is repeated at most; default 5. 0 turns repeats off. */
  readonly limit?: number;
  /** The delay before the first repeat; default 0.2. Each further one is twice as long. */
  readonly firstDelaySeconds?: number;
  /** No delay is longer; default 5. */
  readonly maximumDelaySeconds?: number;
}

/** What a timer can wait for. */
export const secondsSchema = z.number().positive().max(2_147_483);

export const retriesSchema = z.strictObject({
  limit: z.int().min(0).default(5),
  firstDelaySeconds: secondsSchema.default(0.2),
  maximumDelaySeconds: secondsSchema.default(5),
});

export type Retries = z.output<typeof retriesSchema>;

/**
 * How long to wait before a repeat, in seconds; the first is number 0.
 *
 * @param random from 0 up to 1: takes up to half of the delay off, so that callers that failed together do not return together
 */
export function delaySeconds(retries: Retries, number: number, random = Math.random()): number {
  const { firstDelaySeconds, maximumDelaySeconds } = retries;
  return Math.min(maximumDelaySeconds, firstDelaySeconds * 2 ** number) * (1 - random / 2);
}

/** Waits before a repeat. Rejects with the signal's reason once that is aborted. */
export async function delay(retries: Retries, number: number, signal: AbortSignal): Promise<void> {
  try {
    await wait(delaySeconds(retries, number) * 1_000, undefined, { signal });
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  }
}
