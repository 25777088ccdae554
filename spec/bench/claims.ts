/**
 * What a claim costs as one hard link to an identity file, against a claim that is written to a temporary file, linked
 * and unlinked. Both hash the session ID. They take turns within one run, so that both meet the same disk.
 *
 *     tsx spec/bench/claims.ts [--json]
 */
import { hash, randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, mkdtempSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SessionClaims } from '../../lib/claims.ts';

const ROUNDS = 400;
const CLAIMS_A_ROUND = 50;

function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN;
}

function microsecondsEach(claim: (sessionId: string) => void): number {
  const sessionIds = Array.from({ length: CLAIMS_A_ROUND }, () => randomBytes(16).toString('hex'));
  const start = performance.now();
  for (const sessionId of sessionIds) claim(sessionId);
  return ((performance.now() - start) * 1000) / CLAIMS_A_ROUND;
}

const directory = mkdtempSync(join(tmpdir(), 'claims-bench-'));
try {
  const workerId = randomBytes(16).toString('hex');
  const claims = new SessionClaims({ directory, workerId, holds: () => true });
  const copies = join(directory, 'copies');
  mkdirSync(copies);
  const temporary = join(copies, 'temporary');
  const ways = {
    link: (sessionId: string) => void claims.claim(sessionId),
    'write + link + unlink': (sessionId: string) => {
      writeFileSync(temporary, workerId, { mode: 0o600, flag: 'wx' });
      linkSync(temporary, join(copies, hash('sha256', sessionId, 'base64url')));
      unlinkSync(temporary);
    },
  };

  const link: number[] = [];
  const write: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    // Whoever goes first changes each round, so that neither has the warmer cache throughout.
    if (round % 2 === 0) link.push(microsecondsEach(ways.link));
    write.push(microsecondsEach(ways['write + link + unlink']));
    if (round % 2 === 1) link.push(microsecondsEach(ways.link));
  }

  const rounded = (number: number): number => Number(number.toFixed(2));
  const result = {
    claims: ROUNDS * CLAIMS_A_ROUND,
    linkMicroseconds: rounded(median(link)),
    writeLinkUnlinkMicroseconds: rounded(median(write)),
    ratio: rounded(median(write) / median(link)),
  };
  if (process.argv.includes('--json')) console.log(JSON.stringify(result));
  else console.table(result);
} finally {
  rmSync(directory, { recursive: true });
}
