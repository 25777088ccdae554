import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SessionClaims } from 'express-session-routing';
import { ResourcesSession } from 'express-session-routing/client';
import { KeptConnection } from './kept-connection.ts';
import type { ServerPark } from './servers.ts';

/** Times of one thing that was done over and over. */
export interface Times {
  readonly median: number;
  readonly p99: number;
}

/** What routing costs: milliseconds of a tool call, and microseconds of a look-up. */
export interface Cost {
  readonly calls: number;
  /** On a server of one worker, which has no claims and no private socket. */
  readonly oneWorker: Times;
  /** On a server of 8, where the accepting worker holds the session. */
  readonly local: Times;
  /** On a server of 8, where it forwards the call. */
  readonly forwarded: Times;
  /** Finding out who holds a session that is another worker's. */
  readonly lookUpMicroseconds: Times;
  /** Opening and reading a file of that size, in the same run. */
  readonly readFileMicroseconds: Times;
}

/** Calls on each route in turn, so that whatever else the machine does falls on all. */
const callsOfSlice = 50;
const warmingSlices = 20;
/** How many connections are tried until one is accepted by a worker that holds the session, or by one that does not. */
const mostConnections = 100;

function timesOf(values: readonly number[]): Times {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? NaN;
  return { median: at(0.5), p99: at(0.99) };
}

/** A connection on which calls for a session are served by the worker that accepts them, or are forwarded. */
async function connection(url: string, cookie: string, isForwarded: boolean): Promise<KeptConnection> {
  for (let attempt = 0; attempt < mostConnections; attempt++) {
    const kept = await KeptConnection.open(url, '/increment_counter', cookie, '{"count":0}');
    const { text } = await kept.send();
    if (/^x-served-by: .*forwarded/im.test(text) === isForwarded) return kept;
    kept.close();
  }
  throw new Error(`None of ${mostConnections} connections has calls ${isForwarded ? 'forwarded' : 'served locally'}`);
}

async function cookieOf(url: string): Promise<string> {
  const { cookies } = await ResourcesSession.openUntyped({ url, body: { initial_count: 0 } });
  return Object.entries(cookies)
    .map(([name, value]) => `${name}=${value}`)
    .join('; ');
}

/**
 * Measures what routing costs, on servers that do nothing else.
 *
 * @param calls how many tool calls are timed on each route
 */
export async function measureCost(park: ServerPark, calls: number, signal: AbortSignal): Promise<Cost> {
  const [eight, one] = await Promise.all([
    park.startCounter(8),
    park.start('../spec/fixtures/stress-counter/app.ts', {}),
  ]);
  const [cookieOfEight, cookieOfOne] = await Promise.all([cookieOf(eight.url), cookieOf(one.url)]);
  const routes = [
    { connection: await connection(one.url, cookieOfOne, false), taken: [] as number[] },
    { connection: await connection(eight.url, cookieOfEight, false), taken: [] as number[] },
    { connection: await connection(eight.url, cookieOfEight, true), taken: [] as number[] },
  ] as const;
  for (let slice = -warmingSlices; slice < calls / callsOfSlice; slice++) {
    signal.throwIfAborted();
    // Whoever goes first, in the middle and last changes each time.
    const first = (slice + warmingSlices) % routes.length;
    for (const { connection, taken } of [...routes.slice(first), ...routes.slice(0, first)]) {
      for (let call = 0; call < callsOfSlice; call++) {
        const { milliseconds } = await connection.send();
        if (slice >= 0) taken.push(milliseconds);
      }
    }
  }
  for (const { connection } of routes) connection.close();
  const [oneWorker, local, forwarded] = routes.map(({ taken }) => timesOf(taken)) as [Times, Times, Times];
  return { calls: routes[0].taken.length, oneWorker, local, forwarded, ...measureLookUps() };
}

const lookUps = 20_000;
const sessions = 1_000;

function measureLookUps(): Pick<Cost, 'lookUpMicroseconds' | 'readFileMicroseconds'> {
  const directory = mkdtempSync(join(tmpdir(), 'stress-claims-'));
  try {
    const [claimant, other] = [0, 1].map(
      () => new SessionClaims({ directory, workerId: randomBytes(16).toString('hex'), holds: () => true }),
    ) as [SessionClaims, SessionClaims];
    const sessionIds = Array.from({ length: sessions }, () => randomBytes(16).toString('hex'));
    const file = (sessionId: string): string => join(directory, sessionId);
    for (const sessionId of sessionIds) {
      claimant.claim(sessionId);
      writeFileSync(file(sessionId), claimant.workerId);
    }
    const taken = { lookUp: [] as number[], readFile: [] as number[] };
    for (let n = 0; n < lookUps; n++) {
      const sessionId = sessionIds[n % sessions] ?? '';
      const began = performance.now();
      const found = other.claimant(sessionId);
      const between = performance.now();
      readFileSync(file(sessionId), 'latin1');
      taken.readFile.push((performance.now() - between) * 1_000);
      taken.lookUp.push((between - began) * 1_000);
      if (found !== claimant.workerId) throw new Error('A claim was not found');
    }
    return { lookUpMicroseconds: timesOf(taken.lookUp), readFileMicroseconds: timesOf(taken.readFile) };
  } finally {
    rmSync(directory, { recursive: true });
  }
}
