import { expect } from 'chai';
import cluster, { type Worker } from 'node:cluster';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { runWorkers, type RunningWorkers } from '../lib/workers.ts';
import { Client, cookieOf, until, type Reply } from './fixtures/routed.ts';

const exec = fileURLToPath(new URL('fixtures/named-worker.js', import.meta.url));

/** What a request is like that names a session in one place. */
interface Naming {
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly json?: object;
}

const places: Record<string, (id: string) => Naming> = {
  'fromCookie()': (id) => ({ path: '/', headers: { cookie: cookieOf(id, 'game.sid') } }),
  'fromHeader()': (id) => ({ path: '/', headers: { 'X-Game': id } }),
  'fromQuery()': (id) => ({ path: `/?game=${id}` }),
  'fromPath()': (id) => ({ path: `/games/${id}/move` }),
  'fromBody()': (id) => ({ path: '/join', json: { game: { id } } }),
  'fromFunction()': (id) => ({ path: '/', headers: { authorization: `Game ${id}` } }),
};

describe('sessions that are named in any place, on a cluster', function () {
  this.timeout(60_000);

  let parent: string;
  let port: number | undefined;
  let running: RunningWorkers;
  const collect = (_worker: Worker, report: { port: number }): void => void (port = report.port);

  before(async () => {
    parent = mkdtempSync(join(tmpdir(), 'esr-named-'));
    cluster.setupPrimary({ execArgv: [] });
    cluster.on('message', collect);
    running = await runWorkers({ exec, workers: 4, parent, signals: false, log: () => undefined });
    await until(() => port !== undefined, 'a worker has reported');
  });
  after(async () => {
    cluster.off('message', collect);
    cluster.setupPrimary({ execArgv: process.execArgv });
    await running.stop();
    rmSync(parent, { recursive: true });
  });

  const send = ({ path, ...init }: Naming, method = 'POST'): Promise<Reply> =>
    new Client().request(`http://127.0.0.1:${port}${path}`, { method, ...init });

  it('are counted by one worker each, answered 410 when it is killed, and leave no claim when they end', async () => {
    const sessions = Object.entries(places).flatMap(([place, naming]) =>
      Array.from({ length: 8 }, (_, at) => ({ place, naming: naming(`${place.replace(/\W/g, '')}-${at}`) })),
    );
    let forwarded = 0;
    const holders = await Promise.all(
      sessions.map(async ({ place, naming }) => {
        const pids = new Set<number>();
        for (let count = 1; count <= 5; count++) {
          const { status, json } = await send(naming);
          expect([status, json.count], place).to.deep.equal([200, count]);
          pids.add(json.pid);
          if (json.isForwarded) forwarded++;
        }
        expect(pids.size, place).to.equal(1);
        return [...pids][0]!;
      }),
    );
    expect(new Set(holders).size).to.be.above(1);
    expect(forwarded).to.be.above(sessions.length);

    const [killed = 0] = holders;
    process.kill(killed, 'SIGKILL');
    await until(() => !running.pids.includes(killed) && running.pids.length === 4, 'another has taken its place');
    const ends = await Promise.all(
      sessions.map(async ({ naming }) => {
        const { status, json } = await send(naming);
        return status === 200 ? json.count : json.code;
      }),
    );
    expect(ends).to.deep.equal(holders.map((pid) => (pid === killed ? 'SESSION_GONE' : 6)));

    const others = sessions.filter((_, at) => holders[at] !== killed);
    for (const { naming } of others) expect((await send(naming, 'DELETE')).json.wasOpen).to.equal(true);
    const lost = sessions.length - others.length; // their claims stay, so that their clients go on being told
    const folder = join(running.runtimeDirectory, 'session-claims');
    await until(() => readdirSync(folder).length === lost, 'only claims of the dead worker are left');
  });
});
