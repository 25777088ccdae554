import { expect } from 'chai';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { closed, refusalOf, startFront, type Front } from '../fixtures/hop-front.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';

const switching = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spec\r\n\r\n';
const upgrade = head('GET / HTTP/1.1', sessionCookie, 'Connection: Upgrade', 'Upgrade: spec');

describe('a forwarded upgrade whose claimant is killed', () => {
  const claimantFile = new URL('../fixtures/hop-claimant.ts', import.meta.url);
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  it('is closed', async () => {
    const claimant = fork(claimantFile, [front.socketPath]);
    await once(claimant, 'message');
    const client = new Wire(front.port).send(upgrade);
    await client.until('\r\n\r\n');
    await client.send('early').until('early');
    const exited = once(claimant, 'exit');
    claimant.kill('SIGKILL');
    expect(await client.rest()).to.equal('');
    await exited;
    expect(refusalOf(await talk(front.port, upgrade))).to.deep.equal({ status: 410, code: 'SESSION_GONE' });
  });

  it('is closed while its claimant sends, and while its client does', async () => {
    const claimant = fork(claimantFile, [front.socketPath]);
    await once(claimant, 'message');
    const client = new Wire(front.port).send(upgrade);
    await client.until('\r\n\r\n');
    const goOn = (): void => void client.socket.write('more', (error) => error ?? setImmediate(goOn));
    goOn();
    await client.until('more');
    const exited = once(claimant, 'exit');
    claimant.kill('SIGKILL');
    await client.rest();
    await exited;
  });
});

describe('a forwarded upgrade whose claimant fails', () => {
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  it('is gone when nobody listens on its socket', async () => {
    expect(refusalOf(await talk(front.port, upgrade))).to.deep.equal({ status: 410, code: 'SESSION_GONE' });
  });

  for (const [what, refuse] of Object.entries<(socket: Duplex) => unknown>({
    'destroys its connection': (socket) => socket.destroy(),
    'ends its connection': (socket) => socket.end(),
  })) {
    it(`is closed without a byte where the app ${what}, as it is on one worker`, async () => {
      await front.serve(createServer().on('upgrade', (_request, socket) => refuse(socket)));
      expect(await talk(front.port, upgrade)).to.equal('');
    });
  }

  it('is closed when nobody there listens for upgrades any more', async () => {
    await front.serve(createServer((_request, response) => response.end()));
    expect(await talk(front.port, upgrade)).to.equal('');
  });

  it('closes what its client has left before the protocols are switched', async () => {
    const server = createServer();
    await front.serve(server);
    const upgraded = once(server, 'upgrade');
    const client = new Wire(front.port).send(upgrade);
    const [, app] = (await upgraded) as [IncomingMessage, Socket];
    client.socket.destroy();
    await once(app.resume(), 'end');
    app.destroy();
  });

  it('loses no byte of what it sent last, however slowly the client reads', async () => {
    const server = createServer();
    await front.serve(server);
    const upgraded = once(server, 'upgrade');
    const client = new Wire(front.port).send(upgrade);
    const [, app] = (await upgraded) as [IncomingMessage, Socket];
    app.write(switching);
    await client.until('\r\n\r\n');
    client.socket.pause();
    // The claimant's own connection is over before the client has read a byte of the tail.
    app.resume().end(Buffer.alloc(8 * 1024 * 1024, 'x'));
    let length = 0;
    client.socket.on('data', (bytes: Buffer) => (length += bytes.length));
    client.socket.once('end', () => client.socket.end());
    client.socket.resume();
    await closed(client.socket);
    expect(length).to.equal(8 * 1024 * 1024);
  });
});
