import { expect } from 'chai';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ClaimantConnections, type ClaimantConnection, type ConnectionUser } from '../lib/claimant-connections.ts';
import { until } from './fixtures/routed.ts';

describe('the connections to claimants', () => {
  let folder: string;
  let path: string;
  let claimant: Server;
  let accepted: Socket[];
  let connections: ClaimantConnections;

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'esr-connections-'));
    path = join(folder, 'claimant.sock');
    accepted = [];
    claimant = createServer((socket) => {
      socket.on('error', () => undefined);
      accepted.push(socket.on('data', (bytes) => socket.write(bytes)));
    }).listen(path);
    await once(claimant, 'listening');
    connections = new ClaimantConnections();
  });
  afterEach(() => {
    connections.close();
    for (const socket of accepted) socket.destroy();
    claimant.close();
    rmSync(folder, { recursive: true });
  });

  /** Asks for an echo on a connection, and tells what came back and how the connection ended, if it did. */
  function ask(connection: ClaimantConnection, text: string) {
    let received = '';
    const ended: (string | undefined)[] = [];
    const user: ConnectionUser = {
      received: (bytes) => ((received += bytes.toString()), true),
      drained: () => undefined,
      closed: (error) => ended.push((error as NodeJS.ErrnoException | undefined)?.code),
    };
    connection.use(user);
    connection.write(text);
    return { received: () => received, ended, echoed: () => until(() => received === text, 'it is echoed') };
  }

  async function used(text = 'x'): Promise<ClaimantConnection> {
    const connection = connections.take(path);
    await ask(connection, text).echoed();
    return connection;
  }

  it('are kept for the next request, the one used last first', async () => {
    const [one, other] = [await used(), await used()];
    connections.release(one);
    connections.release(other);
    expect([connections.take(path), connections.take(path)]).to.deep.equal([other, one]);
    expect([one.isReused, other.isReused]).to.deep.equal([true, true]);
    expect(connections.take(path).isReused).to.equal(false);
  });

  it('are one claimant\u2019s each', async () => {
    connections.release(await used());
    expect(connections.take(`${path}.other`).isReused).to.equal(false);
  });

  it('give each user what came in for it alone, however many read at once', async () => {
    const texts = ['a', 'b', 'c'].map((letter) => letter.repeat(300_000));
    const asked = texts.map((text) => ask(connections.take(path), text));
    await Promise.all(asked.map(({ echoed }) => echoed()));
    expect(asked.map(({ received }) => received())).to.deep.equal(texts);
  });

  it('close when nobody has used them for a while, and not while somebody does', async () => {
    connections = new ClaimantConnections(20);
    const [idle, busy] = [await used(), await used()];
    connections.release(idle);
    await once(accepted[0]!, 'close');
    expect(accepted[1]!.destroyed).to.equal(false);
    expect(connections.take(path)).not.to.equal(idle);
    connections.release(busy);
    await once(accepted[1]!, 'close');
  });

  it('are forgotten when their claimant closes them', async () => {
    const connection = await used();
    connections.release(connection);
    accepted[0]!.end();
    await until(() => !connection.isUsable, 'it has closed');
    expect(connections.take(path).isReused).to.equal(false);
  });

  it('close when something comes in that nobody has asked for', async () => {
    connections.release(await used());
    accepted[0]!.write('HTTP/1.1 200 OK\r\n\r\n');
    await once(accepted[0]!, 'close');
    const { received, echoed } = ask(connections.take(path), 'next');
    await echoed();
    expect(received()).to.equal('next');
  });

  it('tell their user once how they ended', async () => {
    const gone = ask(connections.take(`${path}.gone`), 'x');
    await until(() => gone.ended.length > 0, 'it is refused');
    const cut = ask(connections.take(path), 'x');
    await cut.echoed();
    accepted.at(-1)!.destroy();
    await until(() => cut.ended.length > 0, 'it has closed');
    expect([gone.ended, cut.ended]).to.deep.equal([['ENOENT'], [undefined]]);
  });

  it('that are idle can be dropped, one claimant\u2019s or all, while the others go on', async () => {
    const [idle, busy] = [await used(), await used()];
    connections.release(idle);
    connections.dropIdle(`${path}.other`);
    expect(connections.take(path)).to.equal(idle);
    connections.release(idle);
    connections.dropIdle(path);
    await once(accepted[0]!, 'close');
    await ask(busy, 'more').echoed();
  });

  it('close, once they are free, where all are to', async () => {
    const busy = await used();
    connections.close();
    await ask(busy, 'more').echoed();
    connections.release(busy);
    await once(accepted[0]!, 'close');
  });
});
