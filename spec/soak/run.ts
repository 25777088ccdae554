/**
 * Mixed traffic for a while against four workers, of which one is killed every so often. Every answer has to be right or
 * a plain refusal, no increment may be executed twice, and what the processes hold has to stay flat.
 *
 *     node --import tsx spec/soak/run.ts [--minutes 20] [--kill-seconds 30] [--json] [--sabotage]
 *
 * With `--sabotage`, a claim is looked up wrongly once in 300 times, which the run has to notice.
 * Linux only: the descriptors are counted in /proc. Exits with 1 if anything was wrong.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { connect, createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Judge } from './judge.ts';
import { descriptorsOf, filesOf, flatness, type Flatness, type PrimarySample, type Series } from './samples.ts';
import { clientCount, drive } from './traffic.ts';

const workerCount = 4;
const windowSeconds = 5;
const sampleSeconds = 10;
const stoppedSeconds = 3;
const mebibyte = 2 ** 20;

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '20' },
    'kill-seconds': { type: 'string', default: '30' },
    json: { type: 'boolean', default: false },
    sabotage: { type: 'boolean', default: false },
  },
});
const runSeconds = positive('--minutes', values.minutes) * 60;
const killSeconds = positive('--kill-seconds', values['kill-seconds']);
if (runSeconds < 120) throw new RangeError('--minutes must be 2 or more, so that each quarter has its samples');
if (!existsSync('/proc/self/fd')) throw new Error('The soak counts descriptors in /proc, which this system lacks');

function positive(option: string, text: string): number {
  const value = Number(text);
  if (!(value > 0 && value <= 10_000)) throw new RangeError(`${option} must be a number above 0, not ${text}`);
  return value;
}

interface FromServer {
  readonly started?: { readonly runtimeDirectory: string; readonly pids: readonly number[] };
  readonly sample?: PrimarySample;
  readonly log?: string;
}

/**
 * What each measure may grow by, besides what it varies by in the second quarter. Code goes on being compiled for longer
 * than a short run's first quarter. Memory that was freed goes back to the system late and in large pieces. Handles,
 * descriptors and counters are counted in the middle of traffic of `clientCount` clients, of which each may add one.
 * Claims grow with the speed of the machine, so each count of them has its own bound.
 */
const margins = {
  heap: 2 * mebibyte,
  rss: 24 * mebibyte,
  handles: clientCount,
  descriptors: clientCount,
  claims: Infinity,
  state: clientCount,
};

const judge = new Judge();
const parent = mkdtempSync(join(tmpdir(), 'soak-'));
const port = await freePort();
const serverFile = new URL('server.ts', import.meta.url);
const execArgv = ['--import', 'tsx', '--expose-gc'];
const server: ChildProcess = fork(serverFile, [String(port), parent, String(workerCount), String(windowSeconds)], {
  execArgv,
  env: { ...process.env, SABOTAGE: values.sabotage ? '1' : '' },
  detached: true, // Ctrl-C is for this process, which ends the server in order
});
const ended = once(server, 'exit');
/** Every worker that there has been. */
const pids = new Set<number>();
const traffic = new AbortController();
let interruption: NodeJS.Signals | undefined;
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.once(signal, () => {
    interruption = signal;
    traffic.abort();
    server.kill('SIGTERM');
  });
}
server.on('message', ({ log }: FromServer) => {
  const pid = Number(/^Worker (\d+) /.exec(log ?? '')?.[1] ?? NaN);
  // A slow machine is no fault.
  if (log === undefined || log.startsWith('Still waiting ')) return;
  if (!judge.isKilled(pid)) judge.fault(`a worker died by itself: ${log}`);
});
void ended.then(([code, signal]) => {
  if (!traffic.signal.aborted) judge.fault(`the primary ended: ${signal ?? code}`);
  traffic.abort();
});

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port: found } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, 'close');
  return found;
}

/** The next message of the server that has what is asked for; undefined if it ends before. */
function told<Key extends keyof FromServer>(key: Key): Promise<NonNullable<FromServer[Key]> | undefined> {
  return new Promise((resolve) => {
    const onMessage = (message: FromServer): void => {
      if (message[key] !== undefined) done(message[key]);
    };
    const onExit = (): void => done(undefined);
    const done = (value: NonNullable<FromServer[Key]> | undefined): void => {
      server.off('message', onMessage).off('exit', onExit);
      resolve(value);
    };
    server.on('message', onMessage).on('exit', onExit);
  });
}

async function sample(): Promise<PrimarySample | undefined> {
  if (!server.connected) return undefined;
  const answer = told('sample');
  server.send('sample');
  const found = await answer;
  for (const pid of found?.slots ?? []) pids.add(pid);
  return found;
}

/** Waits, unless the traffic ends before. */
async function pause(seconds: number): Promise<void> {
  await delay(seconds * 1_000, undefined, { signal: traffic.signal }).catch(() => undefined);
}

/** Kills workers in turn but for the last, whose long life shows what grows. */
async function kill(): Promise<void> {
  for (let round = 0; ; round++) {
    await pause(killSeconds);
    if (traffic.signal.aborted) return;
    const pid = (await sample())?.slots[round % (workerCount - 1)];
    if (pid === undefined) continue;
    const how = (['SIGKILL', 'SIGSTOP', 'SIGTERM', 'SIGKILL'] as const)[round % 4]!;
    if (how === 'SIGSTOP') {
      // Nobody is killed before the traffic ends, who is stopped: what waits for it would wait for ever.
      signal(pid, 'SIGSTOP');
      await delay(stoppedSeconds * 1_000);
    }
    judge.kills.push({ pid, at: performance.now() });
    signal(pid, how === 'SIGSTOP' ? 'SIGKILL' : how);
    judge.count(`killed: ${how === 'SIGSTOP' ? 'SIGSTOP, SIGKILL' : how}`);
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    judge.fault(`worker ${pid} was gone before it was killed`);
  }
}

const series = new Map<string, Series>();

function record(at: number, measure: string, value: number | undefined): void {
  if (value === undefined) return;
  const known = series.get(measure) ?? [];
  known.push({ at, value });
  series.set(measure, known);
}

async function measure(at: number, directory: string, survivor: number): Promise<void> {
  const found = await sample();
  if (found === undefined) return;
  record(at, 'primary: heap', found.heapBytes);
  record(at, 'primary: rss', found.rssBytes);
  record(at, 'primary: handles', found.handles.length);
  record(at, 'primary: descriptors', descriptorsOf(server.pid ?? 0));
  const { claims, sockets, identities } = filesOf(directory);
  const living = found.workers.reduce((sum, { workerId }) => sum + (claims.get(workerId) ?? 0), 0);
  // One that is stopped does not answer, and what it holds is not known then.
  const isComplete = found.workers.length === workerCount;
  if (isComplete) record(at, 'all: claims of living workers', living);
  // Those of the clients, and of what ended within the window; more time, because sweeps and this count take some, too.
  const most = clientCount + judge.touchedWithin(windowSeconds + 5);
  if (isComplete && living > most)
    judge.fault(`${living} claims of living workers, which should be ${most} at the most`);
  if (isComplete)
    record(
      at,
      'all: counters',
      found.workers.reduce((sum, { counters }) => sum + counters, 0),
    );
  for (const worker of found.workers) {
    const who = worker.pid === survivor ? 'oldest worker' : 'replaced workers';
    record(at, `${who}: heap`, worker.heapBytes);
    record(at, `${who}: rss`, worker.rssBytes);
    record(at, `${who}: handles`, worker.handles.length);
    record(at, `${who}: descriptors`, descriptorsOf(worker.pid));
  }
  // By design each dead worker leaves one of both behind, which tell that it is gone, until the server exits.
  if (identities > workerCount + judge.kills.length) judge.fault(`${identities} identity files`);
  if (sockets > workerCount + judge.kills.length) judge.fault(`${sockets} sockets`);
}

/** After the window, nothing may be left but the workers. */
async function checkIdle(directory: string): Promise<Record<string, number>> {
  await delay((windowSeconds + 3) * 1_000);
  const found = await sample();
  if (found === undefined || found.workers.length < workerCount) {
    judge.fault(`${found?.workers.length} workers answer at the end`);
    return {};
  }
  const { claims } = filesOf(directory);
  const sum = (of: (worker: PrimarySample['workers'][number]) => number) =>
    found.workers.reduce((total, worker) => total + of(worker), 0);
  const left = {
    claimsOfLivingWorkers: sum(({ workerId }) => claims.get(workerId) ?? 0),
    counters: sum(({ counters }) => counters),
    closedRecords: sum(({ closed }) => closed),
  };
  for (const [what, number] of Object.entries(left))
    if (number > 0) judge.fault(`left after the window: ${number} ${what}`);
  const dead = [...claims.values()].reduce((total, number) => total + number, 0) - left.claimsOfLivingWorkers;
  // They answer 410 until the server exits.
  return { ...left, claimsOfDeadWorkers: dead };
}

/** After the server has been stopped, nothing of it may be left at all. */
async function checkEnded(): Promise<void> {
  server.kill('SIGTERM');
  await ended;
  const running = [...pids].filter((pid) => existsSync(`/proc/${pid}`));
  if (running.length > 0) judge.fault(`processes are left: ${running.join(', ')}`);
  const files = readdirSync(parent);
  if (files.length > 0) judge.fault(`files are left: ${files.join(', ')}`);
  const socket = connect(port, '127.0.0.1');
  const answer = await Promise.race([
    once(socket, 'connect').then(() => 'connected'),
    once(socket, 'close').then(() => 'refused'),
  ]).catch(() => 'refused');
  socket.destroy();
  if (answer !== 'refused') judge.fault('the port still listens');
}

async function soak(): Promise<Record<string, number>> {
  const started = await told('started');
  if (started === undefined) return {};
  for (const pid of started.pids) pids.add(pid);
  const survivor = started.pids.at(-1) ?? 0;
  const begin = performance.now();
  const at = () => (performance.now() - begin) / (runSeconds * 1_000);
  const timer = setTimeout(() => traffic.abort(), runSeconds * 1_000);
  const sampling = async (): Promise<void> => {
    for (;;) {
      await pause(sampleSeconds);
      if (traffic.signal.aborted) return;
      await measure(at(), started.runtimeDirectory, survivor);
      if (process.stderr.isTTY) process.stderr.write(`\r${Math.round(at() * 100)} %, ${judge.faultCount} faults `);
    }
  };
  await Promise.all([drive({ port, judge, signal: traffic.signal }), kill(), sampling()]);
  clearTimeout(timer);
  return interruption === undefined ? checkIdle(started.runtimeDirectory) : {};
}

function judgeFlatness(): Flatness[] {
  const all = [...series].map(([name, values]) => {
    const kind = name.endsWith('claims of living workers') ? 'claims' : name.endsWith('counters') ? 'state' : undefined;
    return flatness(name, values, margins[kind ?? (name.split(': ')[1] as keyof typeof margins)]);
  });
  for (const { measure: name, second, last, limit, isFlat } of all) {
    if (!isFlat) judge.fault(`${name} grew from ${second} to ${last}, over ${limit}`);
  }
  return all;
}

let left: Record<string, number> = {};
try {
  left = await soak();
  if (interruption === undefined) await checkEnded();
} finally {
  server.kill('SIGTERM');
  await ended;
  rmSync(parent, { recursive: true, force: true });
}
if (interruption !== undefined) process.kill(process.pid, interruption);
else {
  const flat = judgeFlatness();
  const { outcomes, faults, faultCount } = judge;
  if (values.json) {
    const all = Object.fromEntries(series);
    console.log(
      JSON.stringify({ runSeconds, killSeconds, outcomes, flatness: flat, left, faultCount, faults, series: all }),
    );
  } else {
    console.table(outcomes);
    const shown = (name: string, value: number) =>
      /heap|rss/.test(name) ? `${(value / mebibyte).toFixed(1)} MiB` : String(value);
    console.table(
      Object.fromEntries(
        flat.map(({ measure: name, second, last, limit, isFlat }) => [
          name,
          {
            'second quarter': shown(name, second),
            'last quarter': shown(name, last),
            limit: shown(name, limit),
            isFlat,
          },
        ]),
      ),
    );
    console.table(left);
    for (const fault of faults) console.log(`WRONG: ${fault}`);
    console.log(faultCount === 0 ? 'Every answer was right or a plain refusal.' : `${faultCount} faults.`);
  }
  if (faultCount > 0) process.exitCode = 1;
}
