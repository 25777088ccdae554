/** A clock that never runs backwards, in seconds from an arbitrary start. */
export type Clock = () => number;

/** The clock that lifetimes use by default. It does not follow the time of day, which an administrator may set. */
export const monotonicSeconds: Clock = () => performance.now() / 1000;

/**
 * A duration as it came in, if it is one.
 *
 * @throws TypeError if it is not a number, RangeError if it is not finite and above zero; both name `key`.
 */
export function positiveSeconds(key: string, seconds: number): number {
  if (typeof seconds !== 'number') throw new TypeError(`${key} must be a number of seconds, not ${typeof seconds}`);
  if (!Number.isFinite(seconds) || seconds <= 0) {
    throw new RangeError(`${key} must be finite and above zero seconds, not ${seconds}`);
  }
  return seconds;
}
