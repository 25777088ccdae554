import { AsyncLocalStorage } from 'node:async_hooks';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setImmediate as turn } from 'node:timers/promises';
import { expect } from 'chai';
import { monotonicSeconds } from '../lib/seconds.ts';
import { Sweeper, type SweeperOptions } from '../lib/sweeper.ts';
import { warningsOf } from './fixtures/warnings.ts';

const NEVER = (): undefined => undefined;

describe('Sweeper', () => {
  let sweepers: Sweeper[];
  beforeEach(() => {
    sweepers = [];
  });
  afterEach(() => {
    for (const sweeper of sweepers) sweeper.stop();
  });

  /** A sweeper whose sweeps are counted and awaited. */
  function create({ sweep, ...options }: Partial<SweeperOptions> = {}) {
    let awaiting: (() => void)[] = [];
    const made = {
      sweeps: 0,
      sweeper: new Sweeper({
        next: NEVER,
        minimumSeconds: 0.001,
        sweep: (now) => {
          made.sweeps++;
          const ready = awaiting;
          awaiting = [];
          for (const resolve of ready) resolve();
          return sweep?.(now);
        },
        ...options,
      }),
      swept: () => new Promise<void>((resolve) => awaiting.push(resolve)),
    };
    sweepers.push(made.sweeper);
    return made;
  }

  /** Waits until a sweeper of its own has swept after so many seconds. */
  async function pass(seconds: number): Promise<void> {
    const { sweeper, swept } = create();
    sweeper.due(monotonicSeconds() + seconds);
    await swept();
  }

  it('sweeps when something expires', async () => {
    const expiresAt = monotonicSeconds() + 0.03;
    let sweptAt = 0;
    let next: number | undefined = expiresAt;
    const { swept } = create({
      next: () => next,
      sweep: (now) => {
        if (now < expiresAt) return;
        sweptAt = now;
        next = undefined;
      },
    });
    while (next !== undefined) await swept();
    expect(sweptAt).to.be.at.least(expiresAt);
  });

  it('sweeps again for what expires next', async () => {
    const times = [0.01, 0.02, 0.03].map((seconds) => monotonicSeconds() + seconds);
    const made = create({
      next: () => times[0],
      sweep: (now) => {
        while (times[0] !== undefined && times[0] <= now) times.shift();
      },
    });
    while (times.length > 0) await made.swept();
    const { sweeps } = made;
    await pass(0.02);
    expect(made.sweeps).to.equal(sweeps);
  });

  it('wakes sooner for what expires sooner than was known', async () => {
    const { sweeper, swept } = create({ next: () => monotonicSeconds() + 20 });
    sweeper.due(monotonicSeconds() + 0.01);
    await swept();
  });

  it('does not so much as look at the clock for what expires later than the next wake', () => {
    let looks = 0;
    const { sweeper } = create({
      next: () => 1010,
      clock: () => {
        looks++;
        return 1000;
      },
    });
    const before = looks;
    sweeper.due(1010);
    sweeper.due(1020);
    expect(looks).to.equal(before);
    sweeper.due(1005);
    expect(looks).to.equal(before + 1);
  });

  it('is not put off by what keeps being due already', async () => {
    const made = create({ minimumSeconds: 0.25 });
    const end = monotonicSeconds() + 5;
    while (made.sweeps === 0 && monotonicSeconds() < end) {
      made.sweeper.due(monotonicSeconds() - 1);
      await turn();
    }
    expect(made.sweeps).to.equal(1);
  });

  it('lets the shortest time pass between two sweeps, though something is due already', async () => {
    const times: number[] = [];
    const { swept } = create({ next: () => -1, minimumSeconds: 0.02, sweep: (now) => void times.push(now) });
    for (let sweep = 0; sweep < 3; sweep++) await swept();
    const gaps = times.slice(1).map((time, index) => time - (times[index] ?? 0));
    // A timer of Node may fire up to a millisecond early.
    for (const gap of gaps) expect(gap).to.be.at.least(0.018);
  });

  it('wakes after the longest time, and not at once, for what expires in a month', async () => {
    const [far, near] = [
      create({ next: () => monotonicSeconds() + 30 * 86_400 }),
      create({ next: () => monotonicSeconds() + 30 * 86_400, maximumSeconds: 0.02 }),
    ];
    await near.swept();
    await near.swept();
    expect(far.sweeps).to.equal(0);
  });

  it('rests while nothing expires', async () => {
    const made = create({ maximumSeconds: 0.002 });
    await pass(0.02);
    made.sweeper.due(Infinity);
    await pass(0.02);
    expect(made.sweeps).to.equal(0);
    made.sweeper.due(monotonicSeconds());
    await made.swept();
    await pass(0.02);
    expect(made.sweeps).to.equal(1);
  });

  for (const [what, next] of Object.entries({
    'nothing expires': NEVER,
    'what there is never expires': () => Infinity,
  })) {
    it(`ticks though ${what}, if it is told to`, async () => {
      const { swept } = create({ next, maximumSeconds: 0.002, ticksWhenIdle: true });
      for (let tick = 0; tick < 5; tick++) await swept();
    });
  }

  it('sweeps in the asynchronous context in which it was made, not in that of whoever planned the sweep', async () => {
    const storage = new AsyncLocalStorage<string>();
    const contexts: unknown[] = [];
    const { sweeper, swept } = create({ sweep: () => void contexts.push(storage.getStore()) });
    storage.run('a request', () => sweeper.due(0));
    await swept();
    expect(contexts).to.deep.equal([undefined]);
  });

  describe('whose sweep has more left', () => {
    /** How often the event loop had turned at each of five sweeps, after which nothing is left. */
    async function turnsAtSweeps(sliceSeconds: number): Promise<number[]> {
      const turnsAt: number[] = [];
      let turns = 0;
      const { sweeper } = create({ sliceSeconds, sweep: () => turnsAt.push(turns) < 5 });
      sweeper.due(0);
      const end = monotonicSeconds() + 5;
      while (turnsAt.length < 5 && monotonicSeconds() < end) {
        await turn();
        turns++;
      }
      expect(turnsAt).to.have.length(5);
      return turnsAt;
    }

    it('goes on at once while its slice lasts', async () => {
      expect(new Set(await turnsAtSweeps(10)).size).to.equal(1);
    });

    it('lets the event loop turn between slices', async () => {
      expect(new Set(await turnsAtSweeps(0)).size).to.equal(5);
    });

    it('goes on though nothing else happens in the process', async () => {
      // An unref'ed immediate, for one, would wait for the timer of 20 seconds that keeps this process alive.
      const output = await run(`
        let left = 5;
        const end = setTimeout(() => console.log('too late'), 20_000);
        const sweep = () => --left > 0 || void (clearTimeout(end), console.log('swept'));
        new Sweeper({ next: () => undefined, sliceSeconds: 0, sweep }).due(0);
      `);
      expect(output).to.equal('swept\n');
    });
  });

  it('warns of a sweep that fails, and goes on sweeping', async () => {
    const warnings = await warningsOf(async () => {
      let failures = 2;
      const { sweeper, swept } = create({
        maximumSeconds: 0.01,
        sweep: () => {
          if (failures-- > 0) throw new Error('the disk is gone');
        },
      });
      sweeper.due(0);
      for (let sweep = 0; sweep < 3; sweep++) await swept();
    });
    expect(warnings).to.have.length(2);
    expect(warnings[0]?.code).to.equal('SWEEP_FAILED');
    expect(warnings[0]?.detail).to.include('the disk is gone');
  });

  it('lets the longest time pass after a sweep that fails, though something is due already', async () => {
    const sweep = (): never => {
      throw new Error('the disk is gone');
    };
    await warningsOf(async () => {
      const failing = create({ next: () => 0, sweep });
      await failing.swept();
      await pass(0.02);
      expect(failing.sweeps).to.equal(1);
    });
  });

  it('sweeps no more once it is stopped', async () => {
    const waiting = create({ next: () => 0 });
    waiting.sweeper.stop();
    waiting.sweeper.due(0);
    const sweeping = create({ next: () => 0, sliceSeconds: 10, sweep: () => void sweeping.sweeper.stop() });
    const slicing = create({
      next: () => 0,
      sliceSeconds: 10,
      sweep: () => {
        slicing.sweeper.stop();
        return true;
      },
    });
    await Promise.all([sweeping.swept(), slicing.swept()]);
    await pass(0.02);
    expect([waiting.sweeps, sweeping.sweeps, slicing.sweeps]).to.deep.equal([0, 1, 1]);
  });

  it('does not keep the process alive', async () => {
    const output = await run(`
      new Sweeper({ next: () => 0, sweep: () => true, ticksWhenIdle: true });
      process.on('exit', () => console.log('ended'));
    `);
    expect(output).to.equal('ended\n');
  });
});

/** What a process prints that runs a script, with `Sweeper` at hand, to its end. */
async function run(script: string): Promise<string> {
  const source = `import { Sweeper } from ${JSON.stringify(new URL('../lib/sweeper.ts', import.meta.url))};${script}`;
  const running = spawn(process.execPath, ['--import', 'tsx', '--input-type', 'module', '--eval', source], {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: 25_000,
  });
  let output = '';
  running.stdout.setEncoding('utf8').on('data', (text: string) => (output += text));
  await once(running, 'close');
  return output;
}
