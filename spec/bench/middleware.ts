/**
 * What the routing costs a request that is served where it lands, with a session and without: requests per second with
 * the routing divided by requests per second of the same app with express-session alone, in turns within one run.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createRuntimeDirectory } from '../../lib/runtime-directory.ts';
import { load, median } from './load.ts';

const rounds = 9;
const seconds = 1;
const connections = 16;

interface Server {
  readonly child: ChildProcess;
  readonly port: number;
  readonly cookie: string;
}

async function start(variant: string, env: Record<string, string>): Promise<Server> {
  const child = fork(new URL('./middleware-server.js', import.meta.url), [variant], {
    execArgv: [],
    env: { ...process.env, NODE_ENV: 'production', ...env },
  });
  const [{ port }] = (await once(child, 'message')) as [{ port: number }];
  const seed = await fetch(`http://127.0.0.1:${port}/seed_session`, { method: 'POST' });
  const [cookie = ''] = (seed.headers.getSetCookie()[0] ?? '').split(';');
  return { child, port, cookie };
}

const directory = await createRuntimeDirectory();
const routed = await start('routed', directory.env);
const plain = await start('plain', {});

interface Measure {
  readonly requestsPerSecond: number;
  readonly cpuPerRequest: number;
}

async function measure({ child, port, cookie }: Server, path: string, withCookie: boolean): Promise<Measure> {
  const request = `GET ${path} HTTP/1.1\nHost: x\n${withCookie ? `Cookie: ${cookie}\n` : ''}\n`;
  const before = await cpuMicroseconds(child);
  const requestsPerSecond = await load(port, request, connections, seconds);
  const spent = (await cpuMicroseconds(child)) - before;
  return { requestsPerSecond, cpuPerRequest: spent / (requestsPerSecond * seconds) };
}

async function cpuMicroseconds(child: ChildProcess): Promise<number> {
  child.send('cpu');
  const [{ cpu }] = (await once(child, 'message')) as [{ cpu: NodeJS.CpuUsage }];
  return cpu.user + cpu.system;
}

/** Medians of the ratios, pair by pair. */
async function ratios(path: string, withCookie: boolean): Promise<{ throughput: number; cpu: number }> {
  for (const server of [routed, plain]) await measure(server, path, withCookie);
  const throughputs: number[] = [];
  const cpus: number[] = [];
  for (let round = 0; round < rounds; round++) {
    // In turns, and in either order, so that a drift of the machine favours neither.
    const order = round % 2 === 0 ? [routed, plain] : [plain, routed];
    const measured = new Map<Server, Measure>();
    for (const server of order) measured.set(server, await measure(server, path, withCookie));
    const [ours, theirs] = [measured.get(routed), measured.get(plain)];
    if (!ours || !theirs) continue;
    throughputs.push(ours.requestsPerSecond / theirs.requestsPerSecond);
    cpus.push(ours.cpuPerRequest / theirs.cpuPerRequest);
  }
  return { throughput: median(throughputs), cpu: median(cpus) };
}

const result = {
  withSession: await ratios('/session', true),
  withoutSession: await ratios('/health', false),
};
routed.child.disconnect();
plain.child.disconnect();
directory.remove();
if (process.argv.includes('--json')) console.log(JSON.stringify(result));
else {
  console.log('with the routing, divided by express-session alone (medians of pairs in one run)');
  const row = ({ throughput, cpu }: { throughput: number; cpu: number }, needed: string): object => ({
    'requests per second': throughput.toFixed(3),
    needed,
    'CPU per request': cpu.toFixed(3),
  });
  console.table({
    'with a session': row(result.withSession, 'at least 0.9'),
    'without a session': row(result.withoutSession, 'at least 0.97'),
  });
}
