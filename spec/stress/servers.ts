import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { StartServer } from '../../examples/episode/servers.ts';
import { startServer, type ServerProcess } from '../../examples/processes/server-process.ts';

/** Seconds for which a session is remembered after its last request. */
export const windowSeconds = 5;

/** Rollouts of which the first attempt is to fail have names that begin so. */
export const failingRollouts = 'failing-';

const counterFile = '../spec/fixtures/stress-counter/server.ts';

/** A counter on several workers, and the folder in which they can be asked what they hold. */
export interface CounterServer extends ServerProcess {
  readonly workers: number;
  readonly folder: string;
}

/** What an episode takes. */
export interface Servers {
  readonly counter: CounterServer;
  readonly agent: ServerProcess;
  readonly environment: ServerProcess;
  /** The counter with its tools over MCP too. */
  readonly mcp: ServerProcess;
}

/** Starts servers, and ends all of them. */
export class ServerPark implements AsyncDisposable {
  readonly #signal: AbortSignal;
  readonly #servers: Promise<ServerProcess>[] = [];
  readonly #folders: string[] = [];

  constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  readonly start: StartServer = (file, env) => {
    this.#signal.throwIfAborted();
    const environment = { WINDOW_SECONDS: `${windowSeconds}`, STRICT: '1', ...env };
    const server = startServer({ file, env: environment, signal: this.#signal });
    this.#servers.push(server);
    return server;
  };

  async startCounter(workers: number): Promise<CounterServer> {
    const folder = await mkdtemp(join(tmpdir(), 'stress-'));
    this.#folders.push(folder);
    const env = { WORKERS: `${workers}`, CONTROL_FOLDER: folder, FAILING_ROLLOUTS: failingRollouts };
    return { ...(await this.start(counterFile, env)), workers, folder };
  }

  /** The counter on 8 workers; the agent, and the counter over MCP, on 4. */
  async startAll(): Promise<Servers> {
    const [counter, model, mcp] = await Promise.all([
      this.startCounter(8),
      this.start('episode/model.ts'),
      this.start('mcp/server.ts', { WORKERS: '4' }),
    ]);
    const urls = { RESOURCES_URL: counter.url, MODEL_URL: model.url };
    const agent = await this.start('agent/server.ts', { ...urls, WORKERS: '4' });
    const environment = await this.start('episode/app.ts', { ...urls, AGENT_URL: agent.url });
    return { counter, agent, environment, mcp };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Those that are starting still, beside one that failed to, are waited for. One that failed has ended.
    const settled = await Promise.allSettled(this.#servers);
    const started = settled.flatMap((server) => (server.status === 'fulfilled' ? [server.value] : []));
    await Promise.all(started.map((server) => server.stop()));
    await Promise.all(this.#folders.map((folder) => rm(folder, { recursive: true, force: true })));
  }
}
