import { expect } from 'chai';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { closed, refusalOf, startFront, type Front } from './fixtures/hop-front.ts';
import { seeded, sessionCookie, startTwins, type Twins } from './fixtures/hop-twins.ts';
import { head, talk, Wire, type Port } from './fixtures/hop-wire.ts';
import { until } from './fixtures/routed.ts';

const switching = 'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: shout\r\nX-Reply: \xe9\r\n\r\n';

function upgrade(target: string, ...fields: string[]): string {
  return head(`GET ${target} HTTP/1.1`, sessionCookie, 'Connection: Upgrade', 'upgrade: shout', ...fields);
}

/** Speaks a protocol that answers in upper case. */
function shout(socket: Socket): void {
  socket.on('data', (bytes) => socket.write(bytes.toString().toUpperCase()));
  socket.on('end', () => socket.end('BYE'));
}

describe('a forwarded upgrade', () => {
  let twins: Twins;
  const seen: Pick<IncomingMessage, 'method' | 'url' | 'rawHeaders' | 'headers' | 'headersDistinct'>[] = [];
  const origins: unknown[] = [];

  before(async () => {
    twins = await startTwins(() =>
      createServer(seeded((_request, response) => response.end())).on('upgrade', (request, duplex, early) => {
        const socket = duplex as Socket;
        socket.on('error', () => undefined);
        const { method, url, rawHeaders, headers, headersDistinct } = request;
        seen.push({ method, url, rawHeaders, headers, headersDistinct });
        const { remoteAddress, remotePort } = socket;
        origins.push({ remoteAddress, remotePort, ...socket.address(), isTheRequests: request.socket === socket });
        if (url === '/refused') socket.end('HTTP/1.1 401 Unauthorized\r\nX-A: 1\r\n\r\nno');
        else if (url === '/refused-length')
          socket.end('HTTP/1.1 403 Nope\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno');
        else {
          // The reply and the first bytes of the protocol in one packet.
          socket.write(Buffer.from(`${switching}hello ${early.toString()}`, 'latin1'));
          shout(socket);
        }
      }),
    );
  });
  after(() => twins.close());

  /** Sends the same to both, and expects the same of both. */
  async function both(talkTo: (port: Port) => Promise<string>): Promise<string> {
    const direct = await talkTo(twins.direct);
    expect(await talkTo(twins.forwarded)).to.equal(direct);
    const [one, other] = seen.splice(0);
    expect(other).to.deep.equal(one);
    return direct;
  }

  it('switches protocols, with bytes right behind the heads of both sides', async () => {
    const reply = await both(async (port) => {
      const wire = new Wire(port).send(`${upgrade('/', 'X-A: \xe9')}early`);
      const begin = await wire.until('hello early');
      wire.send('ping');
      const middle = await wire.until('PING');
      wire.socket.end();
      return begin + middle + (await wire.rest());
    });
    expect(reply).to.equal(`${switching}hello earlyPINGBYE`);
  });

  it('switches protocols whatever the head says of a body', async () => {
    for (const [field, early] of [
      ['Content-Length: 5', 'early'],
      ['Transfer-Encoding: chunked', '5\r\nearly\r\n0\r\n\r\n'],
      ['Trailer: X-T', 'early'],
      ['Expect: 100-continue', 'early'],
    ] as const) {
      for (const method of ['GET', 'POST']) {
        const reply = await both(async (port) => {
          const wire = new Wire(port).send(upgrade('/', field).replace('GET', method) + early);
          const begin = await wire.until(`hello ${early}`);
          wire.socket.end();
          return begin + (await wire.rest());
        });
        expect(reply).to.equal(`${switching}hello ${early}BYE`);
      }
    }
  });

  it('shows the app the addresses of its client', async () => {
    origins.length = 0;
    for (const port of [twins.direct, twins.forwarded]) {
      const wire = new Wire(port).send(upgrade('/'));
      await wire.until('hello');
      expect(origins.pop()).to.deep.equal({
        remoteAddress: '127.0.0.1',
        remotePort: (wire.socket.address() as AddressInfo).port,
        address: '127.0.0.1',
        family: 'IPv4',
        port: port.port,
        isTheRequests: true,
      });
      wire.socket.destroy();
    }
  });

  for (const target of ['/refused', '/refused-length']) {
    it(`is refused as the app refuses it (${target})`, async () => {
      expect(await both((port) => talk(port, upgrade(target)))).to.match(/^HTTP\/1\.1 40[13] [^]*no$/);
    });
  }

  it('is answered like any other request where nobody listens for upgrades', async () => {
    const plain = await startTwins(() =>
      createServer(seeded((request, response) => response.end(request.headers.upgrade))),
    );
    try {
      for (const port of [plain.direct, plain.forwarded]) {
        const offer = head('GET / HTTP/1.1', sessionCookie, 'Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c');
        const wire = new Wire(port).send(offer);
        expect(await wire.until('h2c')).to.match(/^HTTP\/1\.1 200 /);
        wire.send(head('GET / HTTP/1.1', sessionCookie, 'Upgrade: again'));
        expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 [^]*again$/);
      }
    } finally {
      await plain.close();
    }
  });
});

describe('the two connections of a forwarded upgrade', () => {
  let front: Front;
  let server: Server;

  beforeEach(async () => {
    front = await startFront();
    server = createServer();
    await front.serve(server);
  });
  afterEach(() => front.close());

  /** Upgrades; resolves with the client's side and the claimant's. */
  async function open(): Promise<{ client: Wire; claimant: Socket }> {
    const upgraded = once(server, 'upgrade');
    const client = new Wire(front.port).send(upgrade('/'));
    const [, claimant] = (await upgraded) as [IncomingMessage, Socket];
    claimant.on('error', () => undefined);
    return { client, claimant };
  }

  async function openAndSwitch(): Promise<{ client: Wire; claimant: Socket }> {
    const both = await open();
    both.claimant.write(switching, 'latin1');
    await both.client.until('\r\n\r\n');
    return both;
  }

  it('close together when the client ends', async () => {
    const { client, claimant } = await openAndSwitch();
    client.socket.end();
    claimant.resume().once('end', () => claimant.end());
    await Promise.all([once(claimant, 'close'), client.rest()]);
  });

  it('close together when the client is gone and the claimant goes on writing', async () => {
    const { client, claimant } = await openAndSwitch();
    client.socket.resetAndDestroy();
    claimant.on('drain', () => claimant.write(Buffer.alloc(65_536)));
    claimant.write(Buffer.alloc(65_536));
    await closed(claimant);
  });

  it('close together when the claimant closes', async () => {
    const { client, claimant } = await openAndSwitch();
    claimant.destroy();
    expect(await client.rest()).to.equal('');
  });

  it('close together when the client leaves before the protocols are switched', async () => {
    const { client, claimant } = await open();
    client.socket.destroy();
    claimant.resume();
    await once(claimant, 'end');
    claimant.destroy();
  });

  it('end one way and stay open the other', async () => {
    const { client, claimant } = await openAndSwitch();
    claimant.end('last');
    expect(await client.until('last')).to.equal('last');
    await until(() => client.socket.readableEnded, 'the client sees the end');
    client.send('still there');
    expect(String((await once(claimant, 'data'))[0])).to.equal('still there');
    client.socket.end();
    await once(claimant, 'close');
  });

  it('lose no byte of what the claimant sent last, however slowly the client reads', async () => {
    const { client, claimant } = await openAndSwitch();
    client.socket.pause();
    claimant.end(Buffer.alloc(8 * 1024 * 1024, 'x'));
    // The claimant's own connection is over before the client has read a byte of the tail.
    claimant.resume();
    let length = 0;
    client.socket.on('data', (bytes) => (length += bytes.length));
    client.socket.once('end', () => client.socket.end());
    client.socket.resume();
    await once(client.socket, 'close');
    expect(length).to.equal(8 * 1024 * 1024);
  });

  it('are closed as the app of the claimant closes them', async () => {
    const { client, claimant } = await openAndSwitch();
    claimant.write('last');
    claimant.destroySoon();
    await closed(claimant);
    expect(await client.rest()).to.equal('last');
  });

  it('leave nothing behind', async () => {
    const open = (): number => process.getActiveResourcesInfo().filter((each) => /Pipe|TCP/.test(each)).length;
    const before = open();
    for (let index = 0; index < 100; index++) {
      const { client, claimant } = await openAndSwitch();
      claimant.resume().once('end', () => claimant.end());
      if (index % 2) client.socket.destroy();
      else claimant.destroy();
      if (index % 2) await once(claimant, 'close');
      else await client.rest();
    }
    await until(() => open() <= before, 'everything is closed');
  });
});

describe('an upgrade whose claimant fails', () => {
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  it('is gone when nobody listens on its socket', async () => {
    expect(refusalOf(await talk(front.port, upgrade('/')))).to.deep.equal({ status: 410, code: 'SESSION_GONE' });
  });

  it('has broken off when it closes before it replied', async () => {
    await front.serve(createServer().on('upgrade', (_request, socket) => void socket.destroy()));
    const reply = await talk(front.port, upgrade('/'));
    expect(refusalOf(reply)).to.deep.equal({ status: 502, code: 'CLAIMANT_UNREACHABLE' });
  });

  it('has broken off when nobody there listens for upgrades any more', async () => {
    await front.serve(createServer((_request, response) => response.end()));
    const reply = await talk(front.port, upgrade('/'));
    expect(refusalOf(reply)).to.deep.equal({ status: 502, code: 'CLAIMANT_UNREACHABLE' });
  });
});
