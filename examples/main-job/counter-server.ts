import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const serverFile = fileURLToPath(new URL('server.ts', import.meta.url));

export interface CounterServerOptions {
  readonly workers: number;
  /** Whether the workers route sessions. */
  readonly routed: boolean;
  /** How long the server remembers a session that is not open. */
  readonly windowSeconds: number;
  /** Stops the server once it is aborted. */
  readonly signal: AbortSignal;
}

/** The server of examples/counter, in a process tree of its own. */
export interface CounterServer {
  readonly url: string;
  /** How many sessions are claimed at this moment. */
  claims(): Promise<number>;
  /** Ends the processes, and with them the runtime directory. */
  stop(): Promise<void>;
}

/**
 * Starts the server on a free port.
 *
 * @returns when every worker listens
 * @throws Error if the server exits before
 */
export async function startCounterServer(options: CounterServerOptions): Promise<CounterServer> {
  const { workers, routed, windowSeconds, signal: abortion } = options;
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), serverFile], {
    env: {
      ...process.env,
      PORT: '0',
      WORKERS: `${workers}`,
      WINDOW_SECONDS: `${windowSeconds}`,
      ROUTING: routed ? 'on' : 'off',
    },
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
      if (url !== undefined && directory !== undefined) resolve();
    });
  });
  await Promise.race([
    ready,
    exited.then(([code, signal]) => {
      throw new Error(`The counter server ended before it listened (${signal ?? `exit status ${code}`}).`);
    }),
  ]);

  return {
    url: url ?? '',
    async claims() {
      // Workers that route nothing make no folder for claims. That the directory itself is missing would be a fault.
      const files = await readdir(directory ?? '', { recursive: true });
      return files.filter((file) => dirname(file) === 'session-claims').length;
    },
    async stop() {
      kill();
      await exited;
    },
  };
}
