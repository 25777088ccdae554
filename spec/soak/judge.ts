import type { Outcome } from './client.ts';

/** A worker that was killed, and when, by `performance.now()`. */
export interface Kill {
  readonly pid: number;
  readonly at: number;
}

/**
 * For so long a connection may still be given to a worker that has been killed: until its primary learns of its death,
 * on a machine that is busy.
 */
const newsMs = 2_000;
const printedFaults = 20;

/** Keeps count of what happened, and of what should not have. */
export class Judge {
  readonly kills: Kill[] = [];
  readonly #outcomes = new Map<string, number>();
  readonly #faults = new Map<string, number>();
  readonly #touches: number[] = [];
  #faultCount = 0;

  count(what: string): void {
    this.#outcomes.set(what, (this.#outcomes.get(what) ?? 0) + 1);
  }

  fault(what: string): void {
    this.#faultCount += 1;
    if (this.#faults.has(what) || this.#faults.size < printedFaults) {
      this.#faults.set(what, (this.#faults.get(what) ?? 0) + 1);
    }
  }

  get outcomes(): Record<string, number> {
    return Object.fromEntries([...this.#outcomes].toSorted(([one], [other]) => one.localeCompare(other)));
  }

  /** Notes that a session, or what may have become one, was used for the last time. */
  touched(): void {
    this.#touches.push(performance.now());
  }

  /** How many sessions were used for the last time so lately. */
  touchedWithin(seconds: number): number {
    const since = performance.now() - seconds * 1_000;
    const first = this.#touches.findIndex((at) => at >= since);
    this.#touches.splice(0, first === -1 ? this.#touches.length : first);
    return this.#touches.length;
  }

  /** The first of them, each with how often it was seen. */
  get faults(): string[] {
    return [...this.#faults].map(([what, times]) => (times === 1 ? what : `${what} (${times} times)`));
  }

  get faultCount(): number {
    return this.#faultCount;
  }

  isKilled(pid: number): boolean {
    return this.kills.some((kill) => kill.pid === pid);
  }

  /** Whether a worker died so late that it can have cut an exchange short. */
  hasKilledDuring({ begin, end }: { begin: number; end: number }): boolean {
    return this.kills.some(({ at }) => at >= begin - newsMs && at <= end);
  }
}

/** Whether an increment was executed, as far as its client knows. */
type Execution = 'once' | 'not at all' | 'perhaps';

/**
 * What a client knows of its increments. The n-th of them adds 4ⁿ, so that the count, written to the base of 4, tells
 * how often each one was executed.
 */
export class Ledger {
  readonly #executions: Execution[] = [];

  /** How many increments a number still tells apart. */
  static readonly capacity = 25;

  /** What the next increment is to add. */
  get nextAmount(): number {
    return 4 ** this.#executions.length;
  }

  enter(execution: Execution): void {
    this.#executions.push(execution);
  }

  /** What is wrong with a count; undefined if nothing is. */
  faultIn(count: unknown): string | undefined {
    if (!Number.isSafeInteger(count)) return `the count is ${JSON.stringify(count)}`;
    const times = [...(count as number).toString(4)].toReversed().map(Number);
    for (let index = 0; index < Math.max(times.length, this.#executions.length); index++) {
      const executed = times[index] ?? 0;
      const known = this.#executions[index] ?? 'not at all';
      const isRight = known === 'perhaps' ? executed <= 1 : executed === (known === 'once' ? 1 : 0);
      if (!isRight) return `an increment that was executed ${known} was counted ${executed} times`;
    }
    return undefined;
  }
}

/** What a reply may be that is not the answer: the session is gone with its worker, or may be, or its worker is busy. */
const refusals = [410, 502, 503];

/** What one client knows of one session. */
export class Session {
  readonly ledger = new Ledger();
  readonly #judge: Judge;
  readonly #began = performance.now();
  #worker: number | undefined;
  /** Whether a 410 said so. */
  isGone = false;

  constructor(judge: Judge) {
    this.#judge = judge;
  }

  /**
   * Judges how a call went.
   *
   * @param call its name, for the table
   * @param read takes what matters from a reply that is no refusal: the worker, and whatever the call is for
   * @returns what was read; `'refused'` if the call was certainly not executed; undefined if it may have been
   */
  judge<Answer extends { readonly worker?: number }>(
    call: string,
    outcome: Outcome,
    read: (body: string) => Answer | undefined,
  ): Answer | 'refused' | undefined {
    if (outcome.status === undefined) return void this.#judgeEnd(call, outcome.isOwnDoing, outcome.reason, outcome);
    const { status, body } = outcome;
    this.#judge.count(`${call}: ${status}`);
    if (refusals.includes(status)) {
      // Another worker than the session's may refuse, and only since the session's has been killed or stopped.
      if (!this.#hasLostWorker(outcome)) this.#judge.fault(`${call}: ${status}, though no worker was killed: ${body}`);
      if (status === 410) this.isGone = true;
      return status === 502 ? undefined : 'refused';
    }
    const answer = status === 200 ? this.#read(read, body) : undefined;
    if (answer === undefined) return void this.#judge.fault(`${call}: ${status} ${body.slice(0, 200)}`);
    this.judgeWorker(call, answer.worker);
    return answer;
  }

  /** Judges which worker answered. */
  judgeWorker(call: string, worker: number | undefined): void {
    if (this.isGone) this.#judge.fault(`${call}: answered by worker ${worker} after the session was gone`);
    if (worker === undefined) return;
    this.#worker ??= worker;
    if (worker !== this.#worker) this.#judge.fault(`${call}: answered by worker ${worker}, not by ${this.#worker}`);
  }

  judgeCount(call: string, count: unknown): void {
    const fault = this.ledger.faultIn(count);
    if (fault !== undefined) this.#judge.fault(`${call}: ${fault}`);
  }

  #judgeEnd(call: string, isOwnDoing: boolean, reason: string, times: { begin: number; end: number }): void {
    this.#judge.count(`${call}: ${isOwnDoing ? 'left by the client' : 'connection ended'}`);
    if (isOwnDoing || this.#judge.hasKilledDuring(times)) return;
    const { begin, end } = times;
    const took = `after ${Math.round(end - begin)} ms`;
    const last = `${Math.round(begin - (this.#judge.kills.at(-1)?.at ?? NaN))} ms behind the last kill`;
    this.#judge.fault(`${call}: ${reason} ${took}, begun ${last}, though no worker was killed`);
  }

  #hasLostWorker(times: { begin: number; end: number }): boolean {
    if (this.#worker !== undefined) return this.#judge.isKilled(this.#worker);
    // Whose it is was never learned: of a seed, no reply has come.
    return this.#judge.hasKilledDuring({ begin: this.#began, end: times.end });
  }

  #read<Answer>(read: (body: string) => Answer | undefined, body: string): Answer | undefined {
    try {
      return read(body);
    } catch {
      return undefined;
    }
  }
}
