import cluster from 'node:cluster';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { checked } from './checked.ts';
import { createRuntimeDirectory } from './runtime-directory.ts';
import { Supervisor, type RunningWorkers } from './supervisor.ts';

export { createRuntimeDirectory, type RuntimeDirectory } from './runtime-directory.ts';
export type { RunningWorkers } from './supervisor.ts';

/** What `runWorkers()` takes. */
export interface RunWorkersOptions {
  /** The file that every worker runs: a path, or a `file:` URL. It must listen on a port. */
  exec: string | URL;
  /** From 1 to 1,024. Default: `os.availableParallelism()`. */
  workers?: number;
  /** The workers' command line arguments. Default: none. */
  args?: string[];
  /** Added to the environment that the workers inherit. */
  env?: Record<string, string>;
  /**
   * Seconds that workers may take to exit after a signal before they are killed. Default: 10. A worker that handles the
   * signal has to end itself, with `process.exit()` or `cluster.worker.disconnect()`: its channel to the primary keeps
   * it running when its servers have closed.
   */
  stopSeconds?: number;
  /** The folder for the runtime directory. Default: the system's folder for temporary files. */
  parent?: string;
  /**
   * Whether SIGTERM, SIGINT and SIGHUP of this process stop the workers, and then this process. Default: `true`. With
   * Ctrl-C a worker gets SIGINT twice, from the terminal and from this process, so it should handle it with `on`, not
   * `once`.
   */
  signals?: boolean;
  /** Told in a line what happens to workers. Default: `console.error`. */
  log?: (line: string) => void;
}

const file = z.union(
  [
    z.string().min(1),
    z
      .instanceof(URL)
      .refine((url) => url.protocol === 'file:')
      .transform((url) => fileURLToPath(url)),
  ],
  'must be a path or a file: URL',
);

const schema = z.strictObject({
  exec: file,
  workers: z.int().min(1).max(1024).default(availableParallelism),
  args: z.array(z.string()).default([]),
  env: z.record(z.string(), z.string()).default({}),
  stopSeconds: z.number().min(0).max(86_400).default(10),
  parent: z.string().min(1).optional(),
  signals: z.boolean().default(true),
  log: z
    .custom<(line: string) => void>((value) => typeof value === 'function', 'must be a function')
    .default(() => (line: string) => console.error(line)),
});

/** On `cluster`, whose settings are shared by all that is loaded in this process, other copies of this file included. */
const running: unique symbol = Symbol.for('express-session-routing.runWorkers');
const owner = cluster as typeof cluster & { [running]?: true };

/**
 * Runs a file in several cluster workers that share a runtime directory, and replaces those that die.
 *
 * A worker that dies is replaced after 0.1 s, then after twice as long each time up to 30 s, and after 0.1 s again once
 * one has lived for 10 s. Sessions of a dead worker are gone. On SIGTERM, SIGINT or SIGHUP the workers get the same
 * signal, and once they have exited this process dies of it, unless it has other listeners for it; a second signal
 * kills the workers at once. What was set with `cluster.setupPrimary()` before stays, except `exec` and `args`.
 *
 * @returns when every worker listens
 * @throws TypeError that names an option which is refused or unknown
 * @throws Error in a cluster worker, beside another `runWorkers()`, and when a worker dies before it listens
 */
export async function runWorkers(options: RunWorkersOptions): Promise<RunningWorkers> {
  const { parent, ...complete } = checked('runWorkers()', schema, options);
  if (cluster.isWorker) {
    throw new Error('runWorkers() was called in a cluster worker. Call it in the primary, with the file of the app.');
  }
  if (owner[running]) throw new Error('runWorkers() is running in this process already. Stop those workers first.');
  owner[running] = true;
  const directory = await createRuntimeDirectory(parent === undefined ? {} : { parent }).catch((error: unknown) => {
    delete owner[running];
    throw error;
  });
  return new Supervisor(complete, directory, () => delete owner[running]).start();
}
