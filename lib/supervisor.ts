import cluster, { type Worker } from 'node:cluster';
import { constants } from 'node:os';
import { closeLostConnection } from './lost-connections.ts';
import type { RuntimeDirectory } from './runtime-directory.ts';
import { monotonicSeconds } from './seconds.ts';

const handledSignals = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const;
/** A terminal signals its whole foreground group, and npm passes the signal on once more: that asks only once. */
const echoSeconds = 0.5;
/** After so long, a start that is not done says what it waits for. */
const hintSeconds = 10;
const firstDelaySeconds = 0.1;
const longestDelaySeconds = 30;
/** A worker that lived so long is replaced as if it were the first to die. */
const steadySeconds = 10;
const failedReplacementsInARow = 5;

/** Workers that `runWorkers()` keeps running. */
export interface RunningWorkers {
  /** Path of the directory that the workers share. */
  readonly runtimeDirectory: string;
  /** Process IDs of the workers that run at this moment. */
  readonly pids: number[];
  /**
   * Sends the workers a signal, waits until all have exited, kills those that take longer than `stopSeconds`, and
   * removes the runtime directory. Where they are being stopped already, `'SIGKILL'` kills them at once.
   *
   * @param signal default: SIGTERM
   */
  stop(signal?: NodeJS.Signals): Promise<void>;
  /**
   * Resolves when the workers have been stopped. Rejects when no worker could be kept running; if nobody handles that,
   * this process ends with the error, as with any rejection.
   */
  readonly stopped: Promise<void>;
}

/** The place of one worker and of those that take its place. */
interface Slot {
  worker: Worker | undefined;
  bornSeconds: number;
  isListening: boolean;
  hasListened: boolean;
  delaySeconds: number;
  replacement?: NodeJS.Timeout;
}

/** What a {@link Supervisor} is to run: the options of `runWorkers()` with every default filled in. */
export interface SupervisorOptions {
  readonly exec: string;
  readonly workers: number;
  readonly args: string[];
  readonly env: Record<string, string>;
  readonly stopSeconds: number;
  readonly signals: boolean;
  readonly log: (line: string) => void;
}

/** Keeps workers running, until it is told to stop or has to give up. */
export class Supervisor {
  readonly #options: SupervisorOptions;
  readonly #directory: RuntimeDirectory;
  readonly #ended: () => void;
  readonly #slots: Slot[];
  readonly #started = deferred();
  readonly #stopped = deferred();
  #failedReplacements = 0;
  #isEnding = false;
  #failure: Error | undefined;
  /** The first signal that this process got. */
  #signal: { readonly name: NodeJS.Signals; readonly atSeconds: number } | undefined;
  #killTimer: NodeJS.Timeout | undefined;

  /** @param ended called when nothing of the workers is left but the directory */
  constructor(options: SupervisorOptions, directory: RuntimeDirectory, ended: () => void) {
    this.#options = options;
    this.#directory = directory;
    this.#ended = ended;
    this.#slots = Array.from({ length: options.workers }, () => ({
      worker: undefined,
      bornSeconds: 0,
      isListening: false,
      hasListened: false,
      delaySeconds: 0,
    }));
  }

  async start(): Promise<RunningWorkers> {
    const { exec, args, signals } = this.#options;
    if (signals) for (const signal of handledSignals) process.on(signal, this.#onSignal);
    cluster.setupPrimary({ exec, args });
    for (const slot of this.#slots) this.#fork(slot);
    const stopped = this.#stopped.promise;
    const early = stopped.then(() => {
      throw new Error('The workers were stopped before every one of them listened.');
    });
    const hint = setTimeout(() => this.#hint(), hintSeconds * 1_000);
    await Promise.race([this.#started.promise, early]).finally(() => clearTimeout(hint));
    const pids = () => this.#pids;
    return {
      runtimeDirectory: this.#directory.path,
      get pids() {
        return pids();
      },
      stop: (signal = 'SIGTERM') => {
        this.#end(signal);
        return stopped;
      },
      // A promise of its own, because the race above has handled the rejection of the other.
      stopped: stopped.then(),
    };
  }

  get #pids(): number[] {
    return this.#slots.flatMap(({ worker }) => worker?.process.pid ?? []);
  }

  #fork(slot: Slot): void {
    if (this.#isEnding) return;
    slot.bornSeconds = monotonicSeconds();
    try {
      const worker = (slot.worker = cluster.fork({ ...this.#options.env, ...this.#directory.env }));
      closeLostConnection(worker);
      worker.once('listening', () => {
        // The message may be read after the worker has died.
        if (slot.worker === worker) this.#listens(slot);
      });
      worker.once('exit', (code, signal) => {
        this.#died(slot, signal ? `was killed by ${signal}` : `exited with code ${code}`);
      });
      // Where no process could be made there is no exit. Any other error is of a message to a worker that is dying.
      worker.on('error', (error) => {
        if (worker.process.pid === undefined && slot.worker === worker) this.#died(slot, unmade(error));
      });
    } catch (error) {
      this.#died(slot, unmade(error));
    }
  }

  /** Says what a start waits for: an app that never listens would else keep its user waiting in silence. */
  #hint(): void {
    const silent = this.#slots.filter(({ isListening }) => !isListening);
    const pids = silent.flatMap(({ worker }) => worker?.process.pid ?? []);
    this.#options.log(`Still waiting for workers to listen on a port: ${pids.join(', ')}. Each has to call listen().`);
  }

  #listens(slot: Slot): void {
    slot.isListening = slot.hasListened = true;
    this.#failedReplacements = 0;
    if (this.#slots.every(({ isListening }) => isListening)) this.#started.resolve();
  }

  #died(slot: Slot, how: string): void {
    const { isListening, worker } = slot;
    slot.worker = undefined;
    slot.isListening = false;
    if (this.#isEnding) return this.#finish();
    if (!slot.hasListened) return this.#giveUp(`a worker ${how} before it listened on a port, which every worker must`);
    if (!isListening) {
      this.#failedReplacements += 1;
      if (this.#failedReplacements >= failedReplacementsInARow && !this.#slots.some((other) => other.isListening)) {
        const inARow = `${this.#failedReplacements} in a row died before they listened`;
        return this.#giveUp(`no worker is left, and ${inARow}; the last one ${how}`);
      }
    }
    const isSteady = monotonicSeconds() - slot.bornSeconds >= steadySeconds;
    const doubled = Math.min(2 * slot.delaySeconds, longestDelaySeconds);
    slot.delaySeconds = isSteady ? firstDelaySeconds : Math.max(firstDelaySeconds, doubled);
    const { pid = '(no process)' } = worker?.process ?? {};
    this.#options.log(`Worker ${pid} ${how}. Another takes its place in ${slot.delaySeconds} s.`);
    slot.replacement = setTimeout(() => this.#fork(slot), slot.delaySeconds * 1_000);
  }

  #giveUp(reason: string): void {
    this.#end('SIGTERM', new Error(`Gave up on ${this.#options.exec}: ${reason}. What it printed may say why.`));
  }

  readonly #onSignal = (name: NodeJS.Signals): void => {
    const atSeconds = monotonicSeconds();
    if (this.#signal === undefined) {
      this.#signal = { name, atSeconds };
      if (this.#isEnding) this.#kill(name);
      else this.#end(name);
    } else if (name !== this.#signal.name || atSeconds - this.#signal.atSeconds >= echoSeconds) {
      this.#kill('SIGKILL');
    }
  };

  #end(signal: NodeJS.Signals, failure?: Error): void {
    if (this.#isEnding) {
      if (signal === 'SIGKILL') this.#kill(signal);
      return;
    }
    this.#isEnding = true;
    this.#failure = failure;
    const { stopSeconds, log } = this.#options;
    this.#killTimer = setTimeout(() => {
      log(`Killing what has not exited within ${stopSeconds} s of ${signal}: ${this.#pids.join(', ')}.`);
      this.#kill('SIGKILL');
    }, stopSeconds * 1_000);
    for (const { replacement } of this.#slots) clearTimeout(replacement);
    this.#kill(signal);
    this.#finish();
  }

  #kill(signal: NodeJS.Signals): void {
    for (const { worker } of this.#slots) {
      // Where no process could be made, Node would signal process 0, which means all processes of this one's group.
      if (worker?.process.pid !== undefined) worker.process.kill(signal);
    }
  }

  /** Once no worker is left, nothing of the server stays: no listener, no directory, and no process if a signal said so. */
  #finish(): void {
    if (this.#slots.some(({ worker }) => worker !== undefined)) return;
    clearTimeout(this.#killTimer);
    this.#ended();
    try {
      this.#directory.remove();
    } catch (error) {
      this.#stopped.reject(this.#failure ?? error);
    }
    // Not sooner, or one more signal would end this process with the directory half removed.
    for (const signal of handledSignals) process.off(signal, this.#onSignal);
    if (this.#signal !== undefined) endProcess(this.#signal.name);
    if (this.#failure === undefined) this.#stopped.resolve();
    else this.#stopped.reject(this.#failure);
  }
}

/** Dies of a signal, so that the exit status tells, unless others in this process listen for it and decide themselves. */
function endProcess(signal: NodeJS.Signals): void {
  if (process.listenerCount(signal) > 0) return;
  process.kill(process.pid, signal);
  // Only reached by process 1 of a container, to which the kernel delivers no signal that it does not listen for.
  process.exit(128 + constants.signals[signal]);
}

function unmade(error: unknown): string {
  return `could not be made (${error instanceof Error ? error.message : String(error)})`;
}

/** What `Promise.withResolvers()` is from Node 22 on. */
function deferred() {
  let resolve!: () => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<void>((...settle) => ([resolve, reject] = settle));
  return { promise, resolve, reject };
}
