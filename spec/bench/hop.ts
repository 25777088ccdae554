/**
 * What a hop costs: requests straight to the worker that holds their session, forwarded to it by a sibling, and, for
 * comparison, through nginx and HAProxy (where they are installed) to a Unix socket of the same worker. All in turns
 * within one run.
 */
import { fork, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRuntimeDirectory } from '../../lib/runtime-directory.ts';
import { latencies, load, median } from './load.ts';

const rounds = 7;
const slicesOfRound = 10;
const body = JSON.stringify({ action: 'x'.repeat(187) });

interface Route {
  readonly name: 'direct' | 'ours' | 'nginx' | 'haproxy';
  readonly port: number;
  /** The processes that receive the client's requests. */
  readonly pids: readonly number[];
}

const directory = await createRuntimeDirectory();
const folder = join(tmpdir(), `esr-bench-${process.pid}`);
mkdirSync(folder);
const appSocket = join(folder, 'app.sock');
const children: ChildProcess[] = [];

async function worker(...args: string[]): Promise<Route> {
  const child = fork(new URL('./hop-server.js', import.meta.url), args, {
    execArgv: [],
    env: { ...process.env, NODE_ENV: 'production', ...directory.env },
    stdio: ['ignore', 'inherit', 'ignore', 'ipc'],
  });
  children.push(child);
  const [{ port }] = (await once(child, 'message')) as [{ port: number }];
  return { name: args.length > 0 ? 'direct' : 'ours', port, pids: [child.pid ?? 0] };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** Starts a proxy with a configuration; undefined where it is not installed. */
async function proxy(name: 'nginx' | 'haproxy', configuration: (port: number) => string): Promise<Route | undefined> {
  if (spawnSync(name, ['-v'], { stdio: 'ignore' }).error) return undefined;
  const port = await freePort();
  const file = join(folder, `${name}.conf`);
  writeFileSync(file, configuration(port));
  const args = name === 'nginx' ? ['-c', file, '-p', folder, '-e', join(folder, 'nginx.log')] : ['-f', file, '-db'];
  const child = spawn(name, args, { stdio: 'ignore' });
  children.push(child);
  await accepting(port);
  return { name, port, pids: [child.pid ?? 0, ...childrenOf(child.pid ?? 0)] };
}

async function accepting(port: number): Promise<void> {
  for (let attempt = 0; attempt < 200; attempt++) {
    const socket = connect(port, '127.0.0.1');
    const isOpen = await new Promise((resolve) =>
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false)),
    );
    socket.destroy();
    if (isOpen) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error(`nothing listens on port ${port}`);
}

function childrenOf(pid: number): number[] {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean).map(Number);
}

/** Seconds of CPU that processes have used. */
function cpuSeconds(pids: readonly number[]): number {
  const ticks = pids.map((pid) => {
    const [, , , , , , , , , , , , , user = 0, system = 0] = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/\(.*\)/, '()')
      .split(' ')
      .map(Number);
    return user + system;
  });
  return ticks.reduce((sum, each) => sum + each, 0) / 100;
}

const direct = await worker(appSocket);
const ours = await worker();
const nginx = await proxy(
  'nginx',
  (port) => `daemon off; worker_processes 1; pid ${folder}/nginx.pid;
events { worker_connections 1024; }
http {
  access_log off; client_body_temp_path ${folder}/body; proxy_temp_path ${folder}/proxy; keepalive_requests 100000000;
  fastcgi_temp_path ${folder}/f; uwsgi_temp_path ${folder}/u; scgi_temp_path ${folder}/s;
  upstream app { server unix:${appSocket}; keepalive 64; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:${port};
    location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }
  }
}
`,
);
const haproxy = await proxy(
  'haproxy',
  (port) => `global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
listen app
  bind 127.0.0.1:${port}
  server app unix@${appSocket}
`,
);
const routes = [direct, ours, nginx, haproxy].filter((route) => route !== undefined);

const seed = await fetch(`http://127.0.0.1:${direct.port}/seed_session`, { method: 'POST' });
const [cookie = ''] = (seed.headers.getSetCookie()[0] ?? '').split(';');
const requests = {
  post: `POST /step HTTP/1.1\nHost: x\nCookie: ${cookie}\nContent-Type: application/json\nContent-Length: ${body.length}\n\n${body}`,
  get: `GET /state HTTP/1.1\nHost: x\nCookie: ${cookie}\n\n`,
  blob: `GET /blob HTTP/1.1\nHost: x\nCookie: ${cookie}\n\n`,
  events: `GET /events HTTP/1.1\nHost: x\nCookie: ${cookie}\n\n`,
};
const titles: Record<string, string> = {
  post: 'a POST of 200 bytes',
  get: 'a GET',
  blob: 'a reply of 1 MiB',
  events: 'a stream of 50 server-sent events',
};

interface Figures {
  readonly medianUs: number;
  /** How much longer than directly, in the same round. */
  readonly addedUs: number;
  readonly requestsPerSecond: number;
  readonly cpuUs: number;
}

/**
 * Measures every route in turns, and takes the median of the rounds. Latencies are taken in short slices, one route
 * after another, so that whatever else the machine does falls on all of them.
 */
async function measure(request: string): Promise<Map<string, Figures>> {
  const taken: Map<string, Figures>[] = [];
  for (let round = -1; round < rounds; round++) {
    const order = round % 2 === 0 ? routes : routes.toReversed();
    const slices = new Map(order.map(({ name }) => [name, [] as number[]]));
    for (let slice = 0; slice < slicesOfRound; slice++) {
      for (const { name, port } of order) slices.get(name)?.push(...(await latencies(port, request, 0.05)));
    }
    const figures = new Map<string, Figures>();
    const directUs = median(slices.get('direct') ?? []);
    for (const { name, port, pids } of order) {
      const medianUs = median(slices.get(name) ?? []);
      const cpuBefore = cpuSeconds(pids);
      const requestsPerSecond = await load(port, request, 32, 0.8);
      const cpuUs = ((cpuSeconds(pids) - cpuBefore) / (requestsPerSecond * 0.8)) * 1e6;
      figures.set(name, { medianUs, addedUs: medianUs - directUs, requestsPerSecond, cpuUs });
    }
    if (round >= 0) taken.push(figures); // the first is to warm up
  }
  const middle = (name: string, of: keyof Figures): number => median(taken.map((each) => each.get(name)?.[of] ?? NaN));
  return new Map(
    routes.map(({ name }) => [
      name,
      {
        medianUs: middle(name, 'medianUs'),
        addedUs: middle(name, 'addedUs'),
        requestsPerSecond: middle(name, 'requestsPerSecond'),
        cpuUs: middle(name, 'cpuUs'),
      },
    ]),
  );
}

const isJson = process.argv.includes('--json');
/** Which requests to measure. Default: all. */
const chosen = process.argv.slice(2).filter((argument) => argument in requests);
const measured: Record<string, Map<string, Figures>> = {};
try {
  for (const [name, request] of Object.entries(requests)) {
    if (chosen.length === 0 || chosen.includes(name)) measured[name] = await measure(request);
  }
} finally {
  for (const child of children) child.kill();
  await Promise.all(children.map((child) => child.exitCode ?? child.signalCode ?? once(child, 'exit')));
  rmSync(folder, { recursive: true });
  directory.remove();
}

const post = (name: string): Figures | undefined => measured['post']?.get(name);
const added = (name: string): number | undefined => {
  const figures = post(name);
  return figures && Math.round(figures.addedUs);
};
const ratio = (of: keyof Figures): number | undefined => {
  const [a, b] = [post('ours')?.[of], post('nginx')?.[of]];
  return a !== undefined && b ? Number((a / b).toFixed(2)) : undefined;
};
const [addedOurs, addedNginx] = [added('ours'), added('nginx')];
const result = {
  addedMedianUs: { ours: addedOurs, nginx: addedNginx, haproxy: added('haproxy') },
  ratioToNginx: addedOurs !== undefined && addedNginx ? Number((addedOurs / addedNginx).toFixed(2)) : undefined,
  cpuRatioToNginx: ratio('cpuUs'),
  requestsPerSecondRatioToNginx: ratio('requestsPerSecond'),
  measured: Object.fromEntries(Object.entries(measured).map(([name, figures]) => [name, Object.fromEntries(figures)])),
};
if (isJson) {
  console.log(JSON.stringify(result));
} else {
  for (const [name, figures] of Object.entries(measured)) {
    console.log(
      `${titles[name]}: median at concurrency 1; requests per second and CPU of the receiver per request at 32`,
    );
    console.table(
      Object.fromEntries(
        [...figures].map(([route, { medianUs, requestsPerSecond, cpuUs }]) => [
          route,
          {
            'median µs': Math.round(medianUs),
            'requests/s': Math.round(requestsPerSecond),
            'CPU µs': Math.round(cpuUs),
          },
        ]),
      ),
    );
  }
  if (!nginx || !haproxy) console.log('Without nginx and HAProxy installed, there is nothing to compare with.');
  const { measured: _shown, ...ratios } = result;
  console.log(ratios);
}
