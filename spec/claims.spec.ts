import { fork, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { SessionClaims, UnsharedClaims, type Claims, type SessionClaimsOptions } from '../lib/claims.ts';
import { SessionRoutingError } from '../lib/errors.ts';
import type { FighterMessage, FighterReply, FighterTasks } from './fixtures/claim-fighter.ts';
import { warningsOf } from './fixtures/warnings.ts';

const newId = (): string => randomBytes(16).toString('hex');

let directory: string;

/** Gives each spec of a suite a runtime directory of its own. */
function useDirectory(): void {
  beforeEach(() => {
    directory = fs.mkdtempSync(join(tmpdir(), 'claims-spec-'));
  });
  afterEach(() => {
    fs.rmSync(directory, { recursive: true, force: true });
  });
}

function newWorker(options: Partial<SessionClaimsOptions> = {}): SessionClaims {
  return new SessionClaims({ directory, workerId: newId(), holds: () => false, ...options });
}

/** The files of all claims in the runtime directory. */
function claimFiles(): string[] {
  return fs.readdirSync(join(directory, 'session-claims'));
}

function onlyClaimFile(): string {
  const [file, ...others] = claimFiles();
  expect(others).to.deep.equal([]);
  return join(directory, 'session-claims', file ?? '');
}

function expectUnreadable(work: () => unknown, detail: RegExp): void {
  expect(work).to.throw(SessionRoutingError, detail).that.includes({ code: 'CLAIM_UNREADABLE', status: 503 });
}

/** What `link` throws as the file system would. */
function failure(code: string, message: string): Error {
  return Object.assign(new Error(`${code}: ${message}, link 'identity' -> 'claim'`), { code });
}

const kinds: Record<string, (options: { holds: () => boolean; released?: (id: string) => void }) => Claims> = {
  SessionClaims: newWorker,
  UnsharedClaims: (options) => new UnsharedClaims({ workerId: newId(), ...options }),
};

for (const [kind, create] of Object.entries(kinds)) {
  describe(`${kind}, of its own sessions`, () => {
    useDirectory();

    it('claims a session once, and knows it from then on', () => {
      const claims = create({ holds: () => false });
      expect(claims.claimant('s')).to.equal(undefined);
      expect(claims.isMine('s')).to.equal(false);
      expect(claims.claim('s')).to.equal(claims.workerId);
      expect(claims.claim('s')).to.equal(claims.workerId);
      expect(claims.claimant('s')).to.equal(claims.workerId);
      expect(claims.isMine('s')).to.equal(true);
      expect(claims.size).to.equal(1);
    });

    it('releases a claim and says so', () => {
      const released: string[] = [];
      const claims = create({ holds: () => false, released: (sessionId) => released.push(sessionId) });
      claims.claim('s');
      expect(claims.release('s')).to.equal(true);
      expect(released).to.deep.equal(['s']);
      expect(claims.claimant('s')).to.equal(undefined);
      expect(claims.size).to.equal(0);
      expect(claims.release('s')).to.equal(false);
      expect(released).to.deep.equal(['s']);
    });

    it('keeps a claim while something of the session is held', () => {
      let held = true;
      const claims = create({ holds: () => held });
      claims.claim('s');
      expect(claims.release('s')).to.equal(false);
      claims.serving('s')();
      expect(claims.isMine('s')).to.equal(true);
      held = false;
      expect(claims.release('s')).to.equal(true);
    });

    it('keeps a claim until the last request of its session is served, then releases it', () => {
      const claims = create({ holds: () => false });
      const first = claims.serving('s');
      claims.claim('s');
      const second = claims.serving('s');
      expect(claims.release('s')).to.equal(false);
      first();
      first();
      expect(claims.release('s')).to.equal(false);
      expect(claims.isMine('s')).to.equal(true);
      second();
      expect(claims.isMine('s')).to.equal(false);
    });

    it('keeps no claim of a session that is only served', () => {
      const claims = create({ holds: () => true });
      claims.serving('s')();
      expect(claims.isMine('s')).to.equal(false);
      expect(claims.size).to.equal(0);
    });

    it('has released a claim even if what follows from that fails, and warns', async () => {
      const claims = create({
        holds: () => false,
        released: () => {
          throw new Error('the store is down');
        },
      });
      claims.claim('s');
      const warnings = await warningsOf(() => void expect(claims.release('s')).to.equal(true));
      expect(claims.isMine('s')).to.equal(false);
      expect(warnings).to.have.length(1);
      expect(warnings[0]?.detail).to.include('the store is down');
    });
  });
}

describe('SessionClaims, among workers', () => {
  useDirectory();

  it('tells every worker the claimant, and lets only the claimant remove the claim', () => {
    const [one, other] = [newWorker(), newWorker()];
    expect(one.claim('s')).to.equal(one.workerId);
    expect(other.claim('s')).to.equal(one.workerId);
    expect(other.claimant('s')).to.equal(one.workerId);
    expect(other.isMine('s')).to.equal(false);
    expect(other.release('s')).to.equal(false);
    other.serving('s')();
    expect(claimFiles()).to.have.length(1);
    expect(one.release('s')).to.equal(true);
    expect(claimFiles()).to.deep.equal([]);
    expect(other.claim('s')).to.equal(other.workerId);
    expect(one.claimant('s')).to.equal(other.workerId);
  });

  it('never remembers the claim of another worker', () => {
    const [one, two, reader] = [newWorker(), newWorker(), newWorker()];
    for (let round = 0; round < 3; round++) {
      for (const worker of [one, two]) {
        worker.claim('s');
        expect(reader.claimant('s')).to.equal(worker.workerId);
        worker.release('s');
        expect(reader.claimant('s')).to.equal(undefined);
      }
    }
  });

  it('does not take the inode of a claim that is no link for a worker of its own', () => {
    const [reader, one, two] = [newWorker(), newWorker(), newWorker()];
    one.claim('s');
    const file = onlyClaimFile();
    fs.rmSync(file);
    fs.writeFileSync(file, one.workerId);
    expect(reader.claimant('s')).to.equal(one.workerId);
    fs.writeFileSync(file, two.workerId);
    expect(reader.claimant('s')).to.equal(two.workerId);
  });

  it('claims what is released between its link and its look-up', () => {
    const other = newWorker();
    other.claim('s');
    const worker = newWorker({
      link(identity, claim) {
        try {
          fs.linkSync(identity, claim);
        } catch (error) {
          other.release('s');
          throw error;
        }
      },
    });
    expect(worker.claim('s')).to.equal(worker.workerId);
    expect(other.claimant('s')).to.equal(worker.workerId);
  });

  it('gives up on a claim that is always there to link and never there to read', () => {
    let links = 0;
    const worker = newWorker({
      link(identity, claim) {
        if (++links > 1) throw failure('EEXIST', 'file already exists');
        fs.linkSync(identity, claim);
      },
    });
    expectUnreadable(() => worker.claim('s'), /comes and goes/);
    expect(links).to.be.lessThan(1000);
  });

  it('never lets session IDs that differ share a claim, or a claim leave its directory', () => {
    const sessionIds = [
      'session',
      'Session',
      'SESSION',
      'session ',
      ' session',
      'session\n',
      'session\0',
      'session\0x',
    ];
    sessionIds.push('caf\u00e9', 'cafe\u0301', '\u212b', '\u00c5', 'A\u030a', '\ud83d\ude00', '\ufeffsession');
    sessionIds.push('.', '..', '/', '../../x', '..\\..\\x', '/etc/passwd', 'a/../b', 'b', '%2e%2e%2f', '%00', '~', '*');
    sessionIds.push('__proto__', 'constructor', 'prototype', 'toString', 'undefined', 'null', '0', 'agent:0');
    sessionIds.push('x'.repeat(4096), `${'x'.repeat(4095)}y`, 'x'.repeat(255), 'x'.repeat(256));
    const workers = [newWorker(), newWorker()] as const;
    for (const [index, sessionId] of sessionIds.entries()) workers[index % 2 === 0 ? 0 : 1].claim(sessionId);

    expect(workers[0].size + workers[1].size).to.equal(sessionIds.length);
    for (const [index, sessionId] of sessionIds.entries()) {
      const [claimant, other] = index % 2 === 0 ? workers : [workers[1], workers[0]];
      expect(claimant.isMine(sessionId), sessionId).to.equal(true);
      expect(other.claimant(sessionId), sessionId).to.equal(claimant.workerId);
    }
    const files = fs.readdirSync(directory, { recursive: true, encoding: 'utf8' });
    expect(files).to.have.length(2 + workers.length + sessionIds.length);
    for (const file of claimFiles()) expect(file).to.match(/^[\w-]{43}$/);
  });

  it('makes directories that only their owner enters, and files that only their owner reads', () => {
    newWorker().claim('s');
    const modes = ['identities', 'session-claims', `identities/${fs.readdirSync(join(directory, 'identities'))[0]}`];
    expect(modes.map((path) => fs.statSync(join(directory, path)).mode & 0o777)).to.deep.equal([0o700, 0o700, 0o600]);
    expect(fs.statSync(onlyClaimFile()).mode & 0o777).to.equal(0o600);
  });
});

describe('SessionClaims, on a file system that bounds the links of a file', () => {
  useDirectory();

  /** A file system on which a file has at most three links besides its own name. */
  function threeLinks(identity: string, claim: string): void {
    if (!fs.existsSync(claim) && fs.statSync(identity).nlink > 3) throw failure('EMLINK', 'too many links');
    fs.linkSync(identity, claim);
  }
  const identities = (): number => fs.readdirSync(join(directory, 'identities')).length;

  it('goes on with another identity file when one is full', () => {
    const [worker, other] = [newWorker({ link: threeLinks }), newWorker()];
    for (let session = 0; session < 10; session++) expect(worker.claim(`s${session}`)).to.equal(worker.workerId);
    for (let session = 0; session < 10; session++) expect(other.claimant(`s${session}`)).to.equal(worker.workerId);
    expect(identities()).to.equal(4 + 1);
  });

  it('links to identity files that have room again before it writes another', () => {
    const worker = newWorker({ link: threeLinks });
    for (let round = 0; round < 5; round++) {
      for (let session = 0; session < 9; session++) worker.claim(`${round}.${session}`);
      expect(identities()).to.equal(3);
      for (let session = 0; session < 9; session++) worker.release(`${round}.${session}`);
    }
  });

  it('still finds the claim of another worker when its own identity file is full', () => {
    const [worker, other] = [newWorker({ link: threeLinks }), newWorker()];
    for (let session = 0; session < 3; session++) worker.claim(`s${session}`);
    other.claim('s');
    expect(worker.claim('s')).to.equal(other.workerId);
  });

  it('holds 100,000 claims of one worker', () => {
    const [worker, other] = [newWorker(), newWorker()];
    for (let session = 0; session < 100_000; session++) worker.claim(`s${session}`);
    expect(worker.size).to.equal(100_000);
    expect(claimFiles()).to.have.length(100_000);
    for (let session = 0; session < 100_000; session += 997) {
      expect(other.claimant(`s${session}`)).to.equal(worker.workerId);
    }
  });
});

describe('SessionClaims, where a claim cannot be read or made', () => {
  useDirectory();

  const invalid: Record<string, (file: string) => void> = {
    'an empty file': (file) => fs.writeFileSync(file, ''),
    'too short an ID': (file) => fs.writeFileSync(file, 'a'.repeat(31)),
    'too long an ID': (file) => fs.writeFileSync(file, `${'a'.repeat(32)}\n`),
    'an upper-case ID': (file) => fs.writeFileSync(file, 'A'.repeat(32)),
    'a directory': (file) => fs.mkdirSync(file),
    'a symbolic link': (file) => fs.symlinkSync(join(directory, 'nowhere'), file),
  };
  for (const [what, write] of Object.entries(invalid)) {
    it(`refuses the session of a claim that is ${what}, with one line in the log`, async () => {
      const [worker, other] = [newWorker(), newWorker()];
      worker.claim('s');
      const file = onlyClaimFile();
      fs.rmSync(file);
      write(file);
      const warnings = await warningsOf(() => {
        for (let request = 0; request < 3; request++) {
          expectUnreadable(() => other.claimant('s'), /^The claim of the session/);
          expectUnreadable(() => other.claim('s'), /^The claim of the session/);
        }
      });
      expect(warnings).to.have.length(1);
      expect(warnings[0]?.message).to.include(file);
      expect(other.isMine('s')).to.equal(false);
      expect(other.claim('another')).to.equal(other.workerId);
    });
  }

  it('refuses to claim when the runtime directory is gone', async () => {
    const worker = newWorker();
    worker.claim('mine');
    fs.rmSync(directory, { recursive: true });
    expect(worker.claimant('s')).to.equal(undefined);
    await warningsOf(() => expectUnreadable(() => worker.claim('s'), /runtime directory .* is gone/));
    expect(worker.release('mine')).to.equal(true);
  });

  it('refuses to claim when the file system is full, and says nothing of paths to the client', async () => {
    let full = false;
    const worker = newWorker({
      link(identity, claim) {
        if (full) throw failure('ENOSPC', 'no space left on device');
        fs.linkSync(identity, claim);
      },
    });
    full = true;
    const detail = /^The claim of the session cannot be made: ENOSPC: no space left on device\.$/;
    const warnings = await warningsOf(() => {
      for (let request = 0; request < 3; request++) expectUnreadable(() => worker.claim('s'), detail);
    });
    expect(warnings).to.have.length(1);
    expect(worker.isMine('s')).to.equal(false);
    full = false;
    expect(worker.claim('s')).to.equal(worker.workerId);
  });

  it('keeps a claim that cannot be removed', async () => {
    const worker = newWorker();
    worker.claim('s');
    const file = onlyClaimFile();
    fs.rmSync(file);
    fs.mkdirSync(file);
    const warnings = await warningsOf(() => {
      for (let sweep = 0; sweep < 3; sweep++) expect(worker.release('s')).to.equal(false);
    });
    expect(warnings).to.have.length(1);
    expect(worker.isMine('s')).to.equal(true);
  });

  for (const code of ['EPERM', 'ENOTSUP', 'EXDEV']) {
    it(`does not start where links fail with ${code}, and says what to do`, () => {
      const link = (): never => {
        throw failure(code, 'no');
      };
      expect(() => newWorker({ link })).to.throw(
        Error,
        new RegExp(`file system of the runtime directory ${directory} has no hard links \\(${code}\\).*Choose`),
      );
      expect(fs.readdirSync(join(directory, 'identities'))).to.deep.equal([]);
    });
  }

  it('leaves no trial behind when it starts', () => {
    const { workerId } = newWorker();
    expect(fs.readdirSync(join(directory, 'identities'))).to.deep.equal([`${workerId}.0`]);
    expect(claimFiles()).to.deep.equal([]);
  });

  it('takes only a worker ID that others will read as valid', () => {
    expect(() => newWorker({ workerId: 'worker-1' })).to.throw(TypeError, 'workerId');
  });
});

describe('SessionClaims, in a fight of processes', () => {
  let fighters: { process: ChildProcess; workerId: string }[] = [];
  afterEach(async () => {
    for (const { process: fighter } of fighters) {
      if (fighter.exitCode !== null || fighter.signalCode !== null) continue;
      const exit = once(fighter, 'exit');
      fighter.kill('SIGKILL');
      await exit;
    }
    fighters = [];
  });
  useDirectory();

  async function startFighters(count: number): Promise<void> {
    const script = fileURLToPath(new URL('./fixtures/claim-fighter.ts', import.meta.url));
    fighters = Array.from({ length: count }, () => {
      const workerId = newId();
      return { workerId, process: fork(script, [directory, workerId], { execArgv: ['--import', 'tsx'] }) };
    });
    await Promise.all(fighters.map((fighter) => answerOf(fighter.process)));
  }

  /** Where the fighters meet before they begin. */
  function startTogether(): FighterMessage['start'] {
    const line = join(directory, 'start');
    fs.mkdirSync(line);
    return { line, fighters: fighters.length };
  }

  /** The next message of a fighter. Fails if the fighter does, or exits. */
  async function answerOf(fighter: ChildProcess): Promise<unknown> {
    const aborter = new AbortController();
    const { signal } = aborter;
    const exited = once(fighter, 'exit', { signal }).then(() => [{ failure: 'The fighter exited' }]);
    exited.catch(() => {});
    try {
      const [message] = (await Promise.race([once(fighter, 'message', { signal }), exited])) as [FighterReply];
      if ('failure' in message) throw new Error(message.failure);
      return message.answer;
    } finally {
      aborter.abort();
    }
  }

  async function ask<Name extends keyof FighterTasks>(
    fighter: { process: ChildProcess },
    message: FighterMessage & { name: Name },
  ): Promise<FighterTasks[Name]['answer']> {
    fighter.process.send(message);
    return (await answerOf(fighter.process)) as FighterTasks[Name]['answer'];
  }

  it('has exactly one winner for each of 1,000 sessions, on whom all 16 processes agree', async function () {
    this.timeout(60_000);
    await startFighters(16);
    const sessionIds = Array.from({ length: 1000 }, (_, index) => `session ${index}`);
    const start = startTogether();
    const answers = fighters.map((fighter) => ask(fighter, { name: 'claim', start, sessionIds }));
    const [claimants = [], ...others] = await Promise.all(answers);
    for (const other of others) expect(other).to.deep.equal(claimants);
    const winners = new Set(claimants);
    expect(winners.size).to.be.greaterThan(1);
    expect(fighters.map(({ workerId }) => workerId)).to.include.members([...winners]);
    expect(claimFiles()).to.have.length(1000);
    const reader = newWorker();
    expect(sessionIds.map((sessionId) => reader.claimant(sessionId))).to.deep.equal(claimants);
  });

  it('never has two claimants at once, nor a claim that is partial or names the wrong worker', async function () {
    this.timeout(60_000);
    await startFighters(8);
    const workerIds = fighters.map(({ workerId }) => workerId);
    const sessionIds = ['a', 'b', 'c'];
    const [start, end] = [startTogether(), join(directory, 'end')];
    const churning = fighters
      .slice(0, 4)
      .map((fighter) => ask(fighter, { name: 'churn', start, sessionIds, rounds: 2000 }));
    const watching = fighters
      .slice(4)
      .map((fighter) => ask(fighter, { name: 'watch', start, sessionIds, workerIds, end }));
    for (const { won, clashes } of await Promise.all(churning)) {
      expect(won).to.be.greaterThan(0);
      expect(clashes).to.equal(0);
    }
    fs.writeFileSync(end, '');
    for (const { seen, faults } of await Promise.all(watching)) {
      expect(seen).to.be.greaterThan(0);
      expect(faults).to.deep.equal([]);
    }
    expect(claimFiles()).to.deep.equal([]);

    // What the watchers learned of inodes while claims changed hands is right.
    for (const fighter of fighters) {
      expect(await ask(fighter, { name: 'claim', sessionIds: [fighter.workerId] })).to.deep.equal([fighter.workerId]);
    }
    for (const fighter of fighters) {
      const claimants = workerIds.map((workerId) => [workerId]);
      expect(await ask(fighter, { name: 'lookUp', sessionIds: workerIds })).to.deep.equal(claimants);
    }
  });
});
