import { expect } from 'chai';
import { sessionKind } from '../lib/custom-kind.ts';
import { fromQuery } from '../lib/session-sources.ts';
import { send, startWorkers, portOf, type Workers } from './fixtures/routed.ts';

describe('fromQuery() with a path', () => {
  let workers: Workers;
  before(async () => {
    workers = await startWorkers((_, worker) => (_request, response) => response.end(String(worker)), {
      kind: () => sessionKind({ from: [fromQuery('sid', { path: '/socket.io/' })], basePath: '/app' }),
    });
    await on(0, '/app/socket.io/?sid=a');
  });
  after(() => workers.close());

  async function on(worker: number, target: string): Promise<[status: number, text: string]> {
    const { status, text } = await send({ to: portOf(workers.all[worker]!.server), target });
    return [status, text];
  }

  for (const target of [
    '/app/socket.io/?sid=a',
    '/app/socket.io?sid=a',
    '/app/socket.io/deeper?EIO=4&sid=a',
    '/APP/Socket.IO/?sid=a',
    '/app//socket.io/?sid=a',
  ]) {
    it(`reads ${target}`, async () => {
      expect(await on(1, target)).to.deep.equal([200, '0']);
    });
  }

  for (const target of [
    '/app/?sid=a',
    '/app/other?sid=a&sid=b',
    '/app/socket.iox/?sid=a',
    '/app/in/socket.io/?sid=a',
  ]) {
    it(`leaves ${target} to the app`, async () => {
      expect(await on(1, target)).to.deep.equal([200, '1']);
    });
  }

  it('refuses two values there as anywhere', async () => {
    const [status, text] = await on(1, '/app/socket.io/?sid=a&sid=b');
    expect([status, JSON.parse(text).code]).to.deep.equal([409, 'SESSION_MISMATCH']);
  });

  it('is refused with a path that begins with no slash, and with an unknown option', () => {
    expect(() => fromQuery('sid', { path: 'socket.io' })).to.throw(TypeError, 'fromQuery(): option "path": must begin');
    expect(() => fromQuery('sid', { paths: '/' } as object)).to.throw(TypeError, 'did you mean "path"?');
  });
});
