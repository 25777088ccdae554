import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath, pathToFileURL } from 'node:url';

const tsx = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
const childFile = fileURLToPath(new URL('child.ts', import.meta.url));

export interface ServerProcessOptions {
  /** The file, below `examples/`. One that is called `server.ts` has workers. */
  readonly file: string;
  /** What it is told by its environment, besides that it is to listen on a free port. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Stops the server once it is aborted. */
  readonly signal: AbortSignal;
}

/** A server of the examples, in a process tree of its own. */
export interface ServerProcess {
  readonly url: string;
  /** How many sessions are claimed at this moment. */
  claims(): Promise<number>;
  /** Ends the processes, and with them the runtime directory. */
  stop(): Promise<void>;
  /** Resolves when the server has ended, for whatever reason. */
  readonly ended: Promise<unknown>;
}

/**
 * Starts a server of the examples on a free port.
 *
 * @returns when it, or every worker of it, listens
 * @throws Error if the server exits before
 */
export async function startServer({ file, env = {}, signal: abortion }: ServerProcessOptions): Promise<ServerProcess> {
  const hasWorkers = file.endsWith('/server.ts');
  const child = spawn(process.execPath, ['--import', tsx, childFile, file], {
    env: { ...process.env, ...env, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
    detached: true, // Ctrl-C is for this process, which stops the server in order
  });
  const kill = () => void (child.killed || child.kill()); // once: a second signal would cut the first one short
  abortion.addEventListener('abort', kill, { once: true });
  const exited = once(child, 'exit').finally(() => abortion.removeEventListener('abort', kill));

  let url: string | undefined;
  let directory: string | undefined;
  // Read to the end of the output, or a full pipe would stop the server.
  const lines = createInterface({ input: child.stdout! });
  const ready = new Promise<void>((resolve) => {
    lines.on('line', (line) => {
      url ??= / listens on (http:\S+)$/.exec(line)?.[1];
      directory ??= / Runtime directory: (.+)$/.exec(line)?.[1];
      if (url !== undefined && (directory !== undefined || !hasWorkers)) resolve();
    });
  });
  await Promise.race([
    ready,
    exited.then(([code, signal]) => {
      const name = `${dirname(file)} server`;
      throw new Error(`The ${name} ended before it listened (${signal ?? `exit status ${code}`}).`);
    }),
  ]);

  return {
    url: url ?? '',
    async claims() {
      if (directory === undefined) return 0;
      // Workers that route nothing make no folder for claims. That the directory itself is missing would be a fault.
      const files = await readdir(directory, { recursive: true });
      return files.filter((found) => dirname(found) === 'session-claims').length;
    },
    async stop() {
      kill();
      await exited;
    },
    ended: exited,
  };
}
