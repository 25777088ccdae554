// The primary of the soak. It tells the process that started it how it and its workers are, and ends with it.
import cluster, { type Worker } from 'node:cluster';
import { runWorkers } from '../../lib/workers.ts';
import type { PrimarySample, WorkerSample } from './samples.ts';

const [port = '', parent = '', workers = '', windowSeconds = ''] = process.argv.slice(2);

/** A worker that is stopped, or dies, does not answer. */
function sampleOf(worker: Worker): Promise<WorkerSample | undefined> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => done(undefined), 2_000);
    const onExit = (): void => done(undefined);
    const done = (sample: WorkerSample | undefined): void => {
      clearTimeout(timer);
      worker.off('message', done).off('exit', onExit);
      resolve(sample);
    };
    worker.on('message', done).once('exit', onExit);
    worker.send('sample');
  });
}

const running = await runWorkers({
  exec: new URL('app.ts', import.meta.url),
  workers: Number(workers),
  parent,
  env: { PORT: port, WINDOW_SECONDS: windowSeconds },
  log: (log) => void (process.connected && process.send?.({ log })),
});

process.on('message', async () => {
  const all = Object.values(cluster.workers ?? {}).filter((worker) => worker?.isConnected());
  const samples = await Promise.all(all.map((worker) => sampleOf(worker!)));
  globalThis.gc?.();
  globalThis.gc?.();
  const { heapUsed, rss } = process.memoryUsage();
  const sample: PrimarySample = {
    heapBytes: heapUsed,
    rssBytes: rss,
    handles: process.getActiveResourcesInfo(),
    slots: running.pids,
    workers: samples.filter((each) => each !== undefined),
  };
  if (process.connected) process.send?.({ sample });
});
process.once('disconnect', () => void running.stop());
process.send?.({ started: { runtimeDirectory: running.runtimeDirectory, pids: running.pids } });
