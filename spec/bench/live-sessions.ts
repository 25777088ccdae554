/**
 * What 100,000 live sessions cost one worker: the heap that each takes, claims and lifetimes together, and how long the
 * event loop pauses when all of them expire at once and their claims are released.
 *
 *     tsx spec/bench/live-sessions.ts [--json]
 */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { SessionClaims } from '../../lib/claims.ts';
import { ResourcesSessionLifetimes } from '../../lib/lifetimes.ts';
import { signCookie, signedCookieReader } from '../../lib/session-id.ts';
import { Sweeper } from '../../lib/sweeper.ts';

const SESSIONS = 100_000;
const SESSIONS_A_STEP = 50;
const WINDOW_SECONDS = 300;

function heapBytes(): number {
  globalThis.gc?.();
  globalThis.gc?.();
  return process.memoryUsage().heapUsed;
}

/** The longest time between two turns of the event loop while `work` is under way, in milliseconds. */
async function longestPause(work: Promise<unknown>): Promise<number> {
  let longest = 0;
  let working = true;
  let last = performance.now();
  const turn = (): void => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    if (working) setImmediate(turn);
  };
  setImmediate(turn);
  await work;
  working = false;
  return longest;
}

async function measure(): Promise<Record<string, number>> {
  const directory = mkdtempSync(join(tmpdir(), 'live-sessions-bench-'));
  try {
    let now = 0;
    const clock = (): number => now;
    const lifetimes = new ResourcesSessionLifetimes({ closeRetryWindowSeconds: WINDOW_SECONDS, clock });
    const holds = (sessionId: string): boolean => lifetimes.holds(sessionId);
    const claims = new SessionClaims({ directory, workerId: randomBytes(16).toString('hex'), holds });
    const serve = (sessionId: string, path: string): void => {
      claims.claim(sessionId);
      const served = claims.serving(sessionId);
      lifetimes.served(sessionId, { method: 'POST', path, headers: {} }, 200);
      served();
    };
    const readCookie = signedCookieReader('sid', ['secret']);
    const serveAll = (path: string): void => {
      for (let session = 0; session < SESSIONS; session++) {
        // As it comes in: a part of a longer text, of which no more than the ID should stay in memory.
        const cookie = `sid=${signCookie(String(session).padStart(32, '0'), 'secret')}`;
        serve(readCookie(cookie) ?? '', path);
      }
    };

    const before = heapBytes();
    serveAll('/seed_session');
    const open = (heapBytes() - before) / SESSIONS;
    serveAll('/close_session');
    const closed = (heapBytes() - before) / SESSIONS;

    let released = 0;
    let done: () => void;
    const swept = new Promise<void>((resolve) => (done = resolve));
    now += WINDOW_SECONDS;
    const start = performance.now();
    const sweeper = new Sweeper({
      clock,
      next: () => lifetimes.nextExpiry,
      sweep: (at) => {
        const sessionIds = lifetimes.sweep(at, SESSIONS_A_STEP);
        for (const sessionId of sessionIds) if (claims.release(sessionId)) released++;
        if (claims.size === 0) done();
        return sessionIds.length === SESSIONS_A_STEP;
      },
    });
    const pause = await longestPause(swept);
    const elapsed = performance.now() - start;
    sweeper.stop();
    return {
      sessions: SESSIONS,
      heapBytesPerOpenSession: Math.round(open),
      heapBytesPerClosedSession: Math.round(closed),
      released,
      sweepMilliseconds: Math.round(elapsed),
      longestPauseMilliseconds: Number(pause.toFixed(2)),
    };
  } finally {
    rmSync(directory, { recursive: true });
  }
}

if (globalThis.gc === undefined) {
  const script = [fileURLToPath(import.meta.url), ...process.argv.slice(2)];
  const { status } = spawnSync(process.execPath, ['--expose-gc', '--import', 'tsx', ...script], { stdio: 'inherit' });
  process.exitCode = status ?? 1;
} else {
  const result = await measure();
  if (process.argv.includes('--json')) console.log(JSON.stringify(result));
  else console.table(result);
}
