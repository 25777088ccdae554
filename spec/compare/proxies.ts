import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { delimiter, join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';

/** What stands in front of processes, as configured here. */
export type Proxy = 'nginx-session-cookie' | 'nginx-own-cookie' | 'haproxy';

export interface ProxyOptions {
  /** Where it listens, on the loopback address. */
  readonly port: number;
  /** Where the processes listen. */
  readonly processPorts: readonly number[];
  /** For what it writes. */
  readonly folder: string;
}

/** Of letters alone, as nginx takes a cookie's name for that of a variable. */
export const cookieName = 'sid';

/**
 * Configures nginx to choose a process by the hash of a cookie: of the session's, or of one that it sets by itself, so that the
 * first request goes where the later ones go.
 *
 * - https://nginx.org/en/docs/http/ngx_http_upstream_module.html#hash, and there `keepalive` for how it connects
 * - https://nginx.org/en/docs/http/ngx_http_userid_module.html for its own cookie, and for the variables
 */
export function nginxConfiguration(key: 'session-cookie' | 'own-cookie', options: ProxyOptions): string {
  const { port, processPorts, folder } = options;
  const variables = key === 'own-cookie' ? '$uid_got$uid_set' : `$cookie_${cookieName}`;
  return `daemon off;
pid ${folder}/nginx.pid;
error_log ${folder}/nginx.log;
worker_processes auto;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path ${folder}/body;
  proxy_temp_path ${folder}/proxy;
  fastcgi_temp_path ${folder}/fastcgi;
  uwsgi_temp_path ${folder}/uwsgi;
  scgi_temp_path ${folder}/scgi;
${key === 'own-cookie' ? '  userid on;\n  userid_name route;\n' : ''}  upstream processes {
    hash ${variables} consistent;
${processPorts.map((processPort) => `    server 127.0.0.1:${processPort};\n`).join('')}    keepalive 64;
  }
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass http://processes;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }
  }
}
`;
}

/**
 * Configures HAProxy to learn from a reply's Set-Cookie which process made the session.
 *
 * - https://docs.haproxy.org/2.6/configuration.html#4.2-stick%20store-response
 * - https://docs.haproxy.org/2.6/configuration.html#4.2-stick%20match
 * - https://docs.haproxy.org/2.6/configuration.html#4.2-stick-table
 */
export function haproxyConfiguration({ port, processPorts }: ProxyOptions): string {
  return `defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend counters
  bind 127.0.0.1:${port}
  default_backend processes
backend processes
  balance roundrobin
  stick-table type string len 128 size 100k expire 30m
  stick match req.cook(${cookieName})
  stick store-response res.cook(${cookieName})
${processPorts.map((processPort, index) => `  server process${index + 1} 127.0.0.1:${processPort} check\n`).join('')}`;
}

// Debian keeps servers where the PATH of a user without root rights does not lead.
const env = { ...process.env, PATH: [process.env['PATH'], '/usr/local/sbin', '/usr/sbin'].join(delimiter) };

const programOf = (proxy: Proxy): 'nginx' | 'haproxy' => (proxy === 'haproxy' ? 'haproxy' : 'nginx');

/** Which program a proxy needs that is not installed, if so. */
export function missingProgram(proxy: Proxy): string | undefined {
  const program = programOf(proxy);
  return spawnSync(program, ['-v'], { stdio: 'ignore', env }).error === undefined ? undefined : program;
}

/** What was written for a proxy, and the words that start it. */
function prepare(proxy: Proxy, options: ProxyOptions): string[] {
  const file = join(options.folder, `${proxy}.conf`);
  if (proxy === 'haproxy') {
    writeFileSync(file, haproxyConfiguration(options));
    return ['-db', '-f', file];
  }
  const key = proxy === 'nginx-own-cookie' ? 'own-cookie' : 'session-cookie';
  writeFileSync(file, nginxConfiguration(key, options));
  return ['-p', options.folder, '-e', join(options.folder, 'nginx.log'), '-c', file];
}

/**
 * Starts a proxy, in the foreground and with the rights of this process.
 *
 * @returns when it listens
 * @throws Error if it ends before that, or takes more than 10 seconds
 */
export async function startProxy(proxy: Proxy, options: ProxyOptions): Promise<ChildProcess> {
  const program = programOf(proxy);
  const child = spawn(program, prepare(proxy, options), { stdio: ['ignore', 'ignore', 'pipe'], env });
  let said = '';
  child.stderr?.on('data', (text) => (said = (said + String(text)).slice(-2_000)));
  for (let attempt = 0; attempt < 400; attempt++) {
    if (child.exitCode !== null || child.signalCode !== null) break;
    if (await accepts(options.port)) return child;
    await wait(25);
  }
  child.kill();
  throw new Error(`${program} does not listen. ${said}`);
}

async function accepts(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
