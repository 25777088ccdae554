import { lstatSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

/** What a process of the server says of itself, after garbage was collected. */
interface ProcessSample {
  readonly heapBytes: number;
  readonly rssBytes: number;
  /** Node's names of what keeps it busy: connections, timers and so on. */
  readonly handles: readonly string[];
}

export interface WorkerSample extends ProcessSample {
  readonly pid: number;
  readonly workerId: string;
  /** The sessions that the app has a counter for. */
  readonly counters: number;
  /** The closed sessions that the app remembers. */
  readonly closed: number;
}

export interface PrimarySample extends ProcessSample {
  /** The workers' process IDs, each in its slot. */
  readonly slots: readonly number[];
  /** The workers that answered. */
  readonly workers: readonly WorkerSample[];
}

/** What is in the runtime directory. */
export interface Files {
  readonly sockets: number;
  readonly identities: number;
  /** By worker ID. */
  readonly claims: ReadonlyMap<string, number>;
}

/** Counts the files of a runtime directory. A claim is a hard link to an identity file, which its worker is named in. */
export function filesOf(directory: string): Files {
  const workerOfInode = new Map<number, string>();
  const identities = join(directory, 'identities');
  for (const name of readdirSync(identities)) {
    const found = lstatSync(join(identities, name), { throwIfNoEntry: false });
    if (found !== undefined) workerOfInode.set(found.ino, name.slice(0, 32));
  }
  const claims = new Map<string, number>();
  const folder = join(directory, 'session-claims');
  for (const name of readdirSync(folder)) {
    const found = lstatSync(join(folder, name), { throwIfNoEntry: false });
    if (found === undefined) continue;
    const worker = workerOfInode.get(found.ino) ?? 'unknown';
    claims.set(worker, (claims.get(worker) ?? 0) + 1);
  }
  const sockets = readdirSync(directory, { withFileTypes: true }).filter((entry) => entry.isSocket()).length;
  return { sockets, identities: workerOfInode.size, claims };
}

/** How many descriptors a process has open; undefined if it is gone. */
export function descriptorsOf(pid: number): number | undefined {
  try {
    return readdirSync(`/proc/${pid}/fd`).length;
  } catch {
    return undefined;
  }
}

/** Values of one measure, with when they were taken: 0 is the beginning of the run, 1 its end. */
export type Series = { readonly at: number; readonly value: number }[];

export interface Flatness {
  readonly measure: string;
  /** Medians of the second and of the last quarter of the run. */
  readonly second: number;
  readonly last: number;
  readonly limit: number;
  readonly isFlat: boolean;
}

/**
 * Judges whether a measure grew from the second quarter of the run to the last. The first is for code to be compiled and
 * caches to fill. The same traffic makes a measure vary, so the median of the last quarter may reach whatever the second
 * one reached, and the margin more: what is still filling after a short run's second quarter.
 */
export function flatness(measure: string, series: Series, margin: number): Flatness {
  const between = (from: number, to: number): number[] =>
    series.filter(({ at }) => at >= from && at < to).map(({ value }) => value);
  const second = between(0.25, 0.5);
  const last = between(0.75, 1.01);
  const limit = Math.max(...second) + margin;
  return { measure, second: median(second), last: median(last), limit, isFlat: median(last) <= limit };
}

export function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN;
}
