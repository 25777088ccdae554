import { expect } from 'chai';
import { setTimeout as wait } from 'node:timers/promises';
import { runEpisodes, type Episode, type EpisodesProgress } from '../lib/client.ts';
import { Gate } from './fixtures/routed.ts';
import { warningsOf } from './fixtures/warnings.ts';

/** What a promise is rejected with. */
async function rejection(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => expect.fail('it was not rejected'),
    (error: unknown) => error,
  );
}

/** Ends when a signal is aborted. */
function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
}

describe('runEpisodes()', () => {
  it('gives how each episode ended, in the order of the items', async () => {
    const reason = new Error('odd');
    const outcomes = await runEpisodes(new Set([3, 0, 1, 2]), async (item, { index }) => {
      await wait(item * 3);
      if (item % 2 === 1) throw reason;
      return `${index}: ${item}`;
    });
    expect(outcomes).to.deep.equal([
      { status: 'rejected', reason, cleanupFailures: [] },
      { status: 'fulfilled', value: '1: 0', cleanupFailures: [] },
      { status: 'rejected', reason, cleanupFailures: [] },
      { status: 'fulfilled', value: '3: 2', cleanupFailures: [] },
    ]);
  });

  it('takes an episode that is not asynchronous, and no items at all', async () => {
    expect(await runEpisodes([1], (item) => item + 1)).to.deep.equal([
      { status: 'fulfilled', value: 2, cleanupFailures: [] },
    ]);
    const outcomes = await runEpisodes([1], () => {
      throw 'thrown';
    });
    expect(outcomes[0]).to.include({ status: 'rejected', reason: 'thrown' });
    expect(await runEpisodes([], expect.fail)).to.deep.equal([]);
  });

  for (const concurrency of [1, 3, 1e9]) {
    it(`runs ${concurrency} at once, if there are so many, and begins with the first`, async () => {
      const begun: number[] = [];
      let [running, most] = [0, 0];
      await runEpisodes(
        Array.from({ length: 20 }, (_, n) => n),
        async (n) => {
          begun.push(n);
          most = Math.max(most, ++running);
          await wait(Math.random() * 3);
          running -= 1;
        },
        { concurrency },
      );
      expect(begun).to.deep.equal(begun.toSorted((a, b) => a - b));
      expect([begun.length, most]).to.deep.equal([20, Math.min(concurrency, 20)]);
    });
  }

  it('runs 16 at once unless it is told otherwise', async () => {
    let [running, most] = [0, 0];
    await runEpisodes(Array(40).fill(0), async () => {
      most = Math.max(most, ++running);
      await wait(1);
      running -= 1;
    });
    expect(most).to.equal(16);
  });

  it('tells of its progress after each episode, when that is cleaned up', async () => {
    const steps: (EpisodesProgress | string)[] = [];
    await runEpisodes(
      [0, 1, 2],
      (item, { cleanup }) => {
        cleanup.add('It', () => void steps.push(`clean-up ${item}`));
        if (item === 1) throw new Error('one');
      },
      { concurrency: 1, onProgress: (progress) => void steps.push(progress) },
    );
    expect(steps).to.deep.equal([
      'clean-up 0',
      { total: 3, ended: 1, rejected: 0 },
      'clean-up 1',
      { total: 3, ended: 2, rejected: 1 },
      'clean-up 2',
      { total: 3, ended: 3, rejected: 1 },
    ]);
  });

  it('gives the failures of clean-ups beside the value or the reason', async () => {
    const failing = (episode: Episode): void => {
      episode.cleanup.add('It', () => Promise.reject(new Error('no')));
    };
    const told: string[] = [];
    let outcomes = await runEpisodes(
      [true, false],
      (isGood, episode) => {
        failing(episode);
        if (!isGood) throw new Error('first');
      },
      { onCleanupFailure: ({ message }) => void told.push(message) },
    );
    const warnings = await warningsOf(async () => {
      outcomes = [...outcomes, ...(await runEpisodes([1], (_item, episode) => failing(episode)))];
    });
    expect(outcomes.map(({ status, cleanupFailures }) => [status, cleanupFailures.map(String)])).to.deep.equal([
      ['fulfilled', ['CleanupError: It failed: no']],
      ['rejected', ['CleanupError: It failed: no']],
      ['fulfilled', ['CleanupError: It failed: no']],
    ]);
    expect(told).to.deep.equal(['It failed: no', 'It failed: no']);
    expect(warnings).to.deep.equal([]);
  });

  it('gives up a clean-up after its time', async () => {
    const [outcome] = await runEpisodes(
      [1],
      (_item, { cleanup }) => void cleanup.add('It', () => new Promise(() => undefined)),
      { cleanupSeconds: 0.05 },
    );
    expect(outcome?.cleanupFailures.map(({ message }) => message)).to.deep.equal([
      'It failed: it was not done in 0.05 s',
    ]);
  });

  it('aborts the signal of an episode that has ended, and of no other', async () => {
    const signals: AbortSignal[] = [];
    const gate = new Gate();
    const running = runEpisodes([0, 1], async (item, { signal }) => {
      signals.push(signal);
      if (item === 1) await gate.opened;
    });
    while (!signals[0]?.aborted) await wait(1);
    expect(signals[1]?.aborted).to.equal(false);
    gate.open();
    await running;
    expect(signals[1]?.aborted).to.equal(true);
    const opening = runEpisodes([0], (_item, episode) => episode).then(([outcome]) => {
      if (outcome?.status !== 'fulfilled') return expect.fail();
      return outcome.value.openAgent({
        url: 'http://127.0.0.1:1',
        episodeId: { rollout_id: 'r' },
        taskId: { taskset: 't', task_id: '1' },
      });
    });
    expect(await rejection(opening)).to.match(/The episode has ended/);
  });

  it('that is aborted begins no more episodes, cleans up after all, and rejects with the reason', async () => {
    const controller = new AbortController();
    const reason = new Error('enough');
    const events: string[] = [];
    const running = runEpisodes(
      [0, 1, 2, 3, 4, 5],
      async (item, { signal, cleanup }) => {
        events.push(`begins ${item}`);
        cleanup.add('It', async () => {
          await wait(5);
          events.push(`clean-up ${item}`);
        });
        if (item === 2) controller.abort(reason);
        else if (item > 0) await aborted(signal);
      },
      { concurrency: 3, signal: controller.signal },
    );
    expect(await rejection(running)).to.equal(reason);
    expect(events.slice(0, 3)).to.deep.equal(['begins 0', 'begins 1', 'begins 2']);
    expect(events.slice(3).toSorted()).to.deep.equal(['clean-up 0', 'clean-up 1', 'clean-up 2']);
  });

  it('that is aborted beforehand begins none', async () => {
    const reason = new Error('never');
    expect(await rejection(runEpisodes([1], expect.fail, { signal: AbortSignal.abort(reason) }))).to.equal(reason);
  });

  it('that is aborted makes warnings of the clean-ups that fail, since nobody else would be told', async () => {
    const controller = new AbortController();
    const warnings = await warningsOf(async () => {
      const running = runEpisodes(
        [1],
        (_item, { cleanup }) => {
          cleanup.add('It', () => Promise.reject(new Error('no')));
          controller.abort(new Error('enough'));
        },
        { signal: controller.signal },
      );
      expect(await rejection(running)).to.match(/enough/);
    });
    expect(warnings.map(({ message }) => message)).to.deep.equal(['It failed: no']);
  });

  it('that is aborted does not wait for ever for an episode that takes no notice', async () => {
    let isCleanedUp = false;
    const controller = new AbortController();
    const running = runEpisodes(
      [1],
      (_item, { cleanup }) => {
        cleanup.add('It', () => void (isCleanedUp = true));
        controller.abort(new Error('enough'));
        return new Promise(() => undefined);
      },
      { signal: controller.signal, cleanupSeconds: 0.05 },
    );
    expect(await rejection(running)).to.match(/enough/);
    expect(isCleanedUp).to.equal(true);
  });

  it('ends with the error of a callback that throws, when all is cleaned up', async () => {
    const error = new Error('of the callback');
    let cleanUps = 0;
    const running = runEpisodes(
      [0, 1, 2, 3],
      async (item, { signal, cleanup }) => {
        cleanup.add('It', () => void cleanUps++);
        if (item === 1) await aborted(signal);
      },
      {
        concurrency: 2,
        onProgress: () => {
          throw error;
        },
      },
    );
    expect(await rejection(running)).to.equal(error);
    expect(cleanUps).to.equal(2);
  });

  it('runs with one signal for many episodes, and leaves nothing on it', async () => {
    const { signal } = new AbortController();
    const warnings: Error[] = [];
    const listen = (warning: Error): void => void warnings.push(warning);
    process.on('warning', listen);
    await runEpisodes(Array(200).fill(0), () => wait(1), { concurrency: 100, signal });
    await wait(0);
    process.off('warning', listen);
    expect(warnings).to.deep.equal([]);
  });

  for (const options of [
    { concurrency: 0 },
    { concurrency: 1.5 },
    { cleanupSeconds: 0 },
    { onProgress: 1 },
    { x: 1 },
  ]) {
    it(`refuses ${JSON.stringify(options)} with a TypeError`, async () => {
      expect(await rejection(runEpisodes([1], expect.fail, options as object))).to.be.an.instanceof(TypeError);
    });
  }

  it('ends with what an asynchronous onProgress rejects with', async () => {
    const failure = new Error('of onProgress');
    const rejected = await runEpisodes([1, 2, 3], () => 1, {
      concurrency: 1,
      onProgress: async () => {
        throw failure;
      },
    }).catch((error: unknown) => error);
    expect(rejected).to.equal(failure);
  });

  it('takes nothing but a function for an episode', async () => {
    const rejected = await runEpisodes([1], 'x' as never).catch((error: unknown) => error);
    expect(rejected).to.be.an.instanceof(TypeError);
  });
});
