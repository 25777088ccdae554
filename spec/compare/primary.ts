// Starts one arrangement of `arrangements.ts`, and replaces its workers when they die, until a signal ends it.
import { fork, type ChildProcess } from 'node:child_process';
import cluster from 'node:cluster';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { setupMaster } from '@socket.io/sticky';
import { runWorkers } from 'express-session-routing/cluster';
import { arrangements, type Arrangement } from './arrangements.ts';
import { startProxy, type Proxy } from './proxies.ts';

/** How soon a worker is replaced: as systemd's `RestartSec` has it by default, and as this package has it. */
const replaceMilliseconds = 100;
const mostReplacements = 20;

const exec = fileURLToPath(new URL('app.ts', import.meta.url));
const workers = Number(process.env['WORKERS'] ?? 4);
const port = await freePort();

const running = new Set<ChildProcess>();
const folders: string[] = [];
let isStopping = false;
let replacements = 0;

/** Runs a worker, and others after it. Resolves when it listens. */
async function run(startWorker: () => ChildProcess): Promise<void> {
  const child = startWorker();
  running.add(child);
  const exited = once(child, 'exit').then(() => {
    running.delete(child);
    if (isStopping || ++replacements > mostReplacements) return;
    setTimeout(() => void run(startWorker).catch(() => undefined), replaceMilliseconds);
  });
  const listens = new Promise<void>((resolve) => child.once('message', () => resolve()));
  await Promise.race([listens, exited.then(() => Promise.reject(new Error('A worker ended before it listened.')))]);
}

const times = <Result>(count: number, make: () => Result): Result[] => Array.from({ length: count }, make);

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port: free } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return free;
}

async function runCluster(env: NodeJS.ProcessEnv): Promise<void> {
  await Promise.all(times(workers, () => run(() => cluster.fork(env).process)));
}

async function runProcesses(env: NodeJS.ProcessEnv, proxy: Proxy): Promise<void> {
  const processPorts = await Promise.all(times(workers, freePort));
  await Promise.all(
    processPorts.map((each) => run(() => fork(exec, { env: { ...process.env, ...env, PORT: `${each}` } }))),
  );
  const folder = mkdtempSync(join(tmpdir(), 'esr-compare-'));
  folders.push(folder);
  running.add(await startProxy(proxy, { port, processPorts, folder }));
}

async function start({ start: way, loadBalancingMethod, proxy }: Arrangement): Promise<void> {
  const env = { START: way, PORT: `${port}` };
  if (way === 'alone') {
    Object.assign(process.env, env);
    await import('./app.ts');
  } else if (way === 'cluster') {
    cluster.setupPrimary({ exec });
    await runCluster(env);
  } else if (way === 'sticky') {
    const server = createHttpServer();
    setupMaster(server, loadBalancingMethod === undefined ? {} : { loadBalancingMethod });
    cluster.setupPrimary({ exec, serialization: 'advanced' });
    await runCluster(env);
    await once(server.listen(port, '127.0.0.1'), 'listening');
  } else if (way === 'processes') {
    if (proxy === undefined) throw new Error('Processes need a proxy in front of them.');
    await runProcesses(env, proxy);
  } else {
    await runWorkers({ exec, workers, env, log: () => undefined });
  }
}

async function stop(): Promise<void> {
  isStopping = true;
  await Promise.all(
    [...running].map(async (child) => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const exited = once(child, 'exit');
      child.kill();
      await exited;
    }),
  );
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
}

const arrangement = arrangements.find(({ name }) => name === process.env['ARRANGEMENT']);
if (arrangement === undefined) throw new Error(`There is no arrangement ${process.env['ARRANGEMENT']}.`);
if (arrangement.start !== 'routed') {
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
    process.on(signal, () => void stop().finally(() => process.exit()));
  }
}
try {
  await start(arrangement);
} catch (error) {
  await stop();
  throw error;
}
console.log(`The arrangement listens on http://127.0.0.1:${port}`);
