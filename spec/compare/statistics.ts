/** The value that a share of the values does not exceed, by the nearest rank. NaN of no values. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? NaN;
}

export function median(values: readonly number[]): number {
  return percentile(values, 0.5);
}

/** The median of the ratios, pair by pair: what drifts in between two rounds falls on both of a pair. */
export function medianRatio(values: readonly number[], references: readonly number[]): number {
  return median(values.map((value, round) => value / (references[round] ?? NaN)));
}

/** How values are distributed, in a number of steps that does not depend on how many there are. */
export function distribution(values: readonly number[], steps: number): { share: number; value: number }[] {
  const sorted = values.toSorted((a, b) => a - b);
  return Array.from({ length: steps + 1 }, (_, step) => {
    const share = step / steps;
    // The very last value is an accident of the machine, which would take up half of a chart.
    return { share, value: percentile(sorted, Math.min(share, 0.995)) };
  });
}

/** What one round measured of one arrangement. */
export interface Measured {
  readonly callsPerSecond: number;
  readonly p50Milliseconds: number;
  readonly p99Milliseconds: number;
}

/** What calls cost, divided by what they cost the reference in the same rounds. */
export interface Ratios {
  readonly callsPerSecond: number;
  readonly p50: number;
  readonly p99: number;
}

/** Sums up the calls of one round, of which each took some milliseconds, on some connections. */
export function measured(milliseconds: readonly number[], seconds: number): Measured {
  return {
    callsPerSecond: milliseconds.length / seconds,
    p50Milliseconds: percentile(milliseconds, 0.5),
    p99Milliseconds: percentile(milliseconds, 0.99),
  };
}

export function ratios(rounds: readonly Measured[], references: readonly Measured[]): Ratios {
  const of = (key: keyof Measured): number =>
    medianRatio(
      rounds.map((round) => round[key]),
      references.map((round) => round[key]),
    );
  return { callsPerSecond: of('callsPerSecond'), p50: of('p50Milliseconds'), p99: of('p99Milliseconds') };
}
