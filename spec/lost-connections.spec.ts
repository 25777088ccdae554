import { expect } from 'chai';
import { startExample, type ExampleServer } from './fixtures/example-server.ts';
import { send } from './fixtures/routed.ts';

describe('a connection that a worker of runWorkers() was being given when it died', () => {
  let server: ExampleServer;
  before(async function () {
    this.timeout(60_000);
    server = await startExample('socket-io/server.ts', { WORKERS: '2' });
  });
  after(() => server?.stop());

  it('is closed, so that its client does not wait for ever', async () => {
    const to = Number(new URL(server.url).port);
    const get = () => send({ to, target: '/health' });
    const { worker } = (await get()).json as { worker: number };
    process.kill(worker, 'SIGSTOP');
    // Each worker is given one of two connections; this one accepts none.
    const outcomes = [get(), get()];
    const { json: answer } = await Promise.any(outcomes);
    expect(answer.worker).to.not.equal(worker);
    process.kill(worker, 'SIGKILL');
    const settled = await Promise.allSettled(outcomes);
    expect(settled.map(({ status }) => status).toSorted()).to.deep.equal(['fulfilled', 'rejected']);
  });
});
