import type { Proxy } from './proxies.ts';

/** A way to run the app, as a user would choose it. */
export interface Arrangement {
  readonly name: string;
  readonly title: string;
  /** How it is started: see `primary.ts`. */
  readonly start: 'alone' | 'cluster' | 'sticky' | 'processes' | 'routed';
  /** How `@socket.io/sticky` chooses a worker for who names none. */
  readonly loadBalancingMethod?: 'least-connection' | 'round-robin';
  /** What stands in front of the processes. */
  readonly proxy?: Proxy;
  /** What it does not claim to do, and what else to know when reading its row. */
  readonly note: string;
}

const sticky =
  'routes Socket.IO clients, by the sid of their query, and claims nothing for other requests; it ends each connection after one reply';

export const arrangements: readonly Arrangement[] = [
  {
    name: 'one-worker',
    title: 'one worker',
    start: 'alone',
    note: 'the reference: the app alone in one process. A kill would end everything, so none is tried.',
  },
  {
    // https://nodejs.org/docs/latest-v20.x/api/cluster.html
    name: 'cluster',
    title: 'plain cluster',
    start: 'cluster',
    note: "does not claim to route: Node's documentation tells apps not to rely on sessions in memory. Calls from empty state are quick, so its costs are no merit.",
  },
  {
    // https://github.com/socketio/socket.io-sticky#usage: the method that its example has, which is the default
    name: 'sticky-least-connection',
    title: '@socket.io/sticky, least connection',
    start: 'sticky',
    loadBalancingMethod: 'least-connection',
    note: `${sticky}. Its count of connections knows Socket.IO's alone, so that other requests all go to one worker: right, while that one lives, and on one worker.`,
  },
  {
    name: 'sticky-round-robin',
    title: '@socket.io/sticky, round robin',
    start: 'sticky',
    loadBalancingMethod: 'round-robin',
    note: `${sticky}.`,
  },
  {
    name: 'nginx-session-cookie',
    title: 'nginx, hash of the session cookie',
    start: 'processes',
    proxy: 'nginx-session-cookie',
    note: "chooses a process by the cookie's value, and does not claim to know which process set it: right where the two happen to be the same. It reads no bodies.",
  },
  {
    name: 'nginx-own-cookie',
    title: 'nginx, hash of a cookie of its own',
    start: 'processes',
    proxy: 'nginx-own-cookie',
    note: 'keeps a client that returns its cookie at one process, from the first request on. It reads no bodies, and asks the next process where one does not answer, as it is meant to. It spans machines, too.',
  },
  {
    name: 'haproxy',
    title: 'HAProxy, stick table',
    start: 'processes',
    proxy: 'haproxy',
    note: 'learns which process set a cookie, and does not claim to know that a process has lost its state. As configured here it reads no bodies; rules for those that fit its buffer can be added, and were not tried. It spans machines, too.',
  },
  {
    // README.md, "Use"
    name: 'routed',
    title: 'this package',
    start: 'routed',
    note: 'does not claim to keep a session whose worker died: it says so, with a 410. It works on one machine.',
  },
];

export const [reference] = arrangements as [Arrangement];
