import { expect } from 'chai';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { closed, startFront } from '../fixtures/hop-front.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { head, Wire, type Port } from '../fixtures/hop-wire.ts';
import { until } from '../fixtures/routed.ts';

const switching = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spec\r\n\r\n';
const upgrade = head('GET / HTTP/1.1', sessionCookie, 'Connection: Upgrade', 'Upgrade: spec');

/** Both sides of a connection that speaks another protocol: the client's, and what the app has of it. */
interface Connection {
  readonly client: Wire;
  readonly app: Socket;
}

/** What happens to a connection in the end; returns what either side saw of that. */
type Ending = (connection: Connection) => Promise<unknown>;

const endings: Readonly<Record<string, Ending>> = {
  async 'the client ends and the app answers that'({ client, app }) {
    app.resume().once('end', () => app.end('bye'));
    client.socket.end();
    await closed(app);
    return client.rest();
  },
  async 'the client ends, behind bytes that the app has still to read'({ client, app }) {
    client.send('x'.repeat(300_000)).socket.end();
    let length = 0;
    app.on('data', (bytes: Buffer) => (length += bytes.length));
    app.once('end', () => app.end());
    await closed(app);
    return length;
  },
  async 'the app ends and the client answers that'({ client, app }) {
    app.resume().end('last');
    const received = await client.rest();
    await closed(app);
    return received;
  },
  async 'the app ends and the client has more to say'({ client, app }) {
    app.end('last');
    await client.until('last');
    if (!client.socket.readableEnded) await once(client.socket, 'end');
    client.send('still there');
    const [bytes] = (await once(app, 'data')) as [Buffer];
    app.resume();
    client.socket.end();
    await closed(app);
    return bytes.toString();
  },
  async 'the app destroys its socket once all is sent'({ client, app }) {
    app.write('x'.repeat(300_000));
    app.destroySoon();
    const received = await client.rest();
    return [received.length, app.destroyed];
  },
  async 'the app destroys its socket'({ client, app }) {
    app.destroy();
    return [await client.rest(), app.destroyed];
  },
  async 'the app destroys its socket with an error'({ client, app }) {
    const failed = once(app, 'error');
    app.destroy(new Error('a fault'));
    return [await client.rest(), (await failed)[0].message];
  },
  async 'the app resets the connection'({ client, app }) {
    app.resetAndDestroy();
    return [await client.rest(), app.destroyed];
  },
  async 'the client resets the connection'({ client, app }) {
    client.socket.resetAndDestroy();
    await closed(app.resume());
    return app.destroyed;
  },
  async 'the client ends, and resets the connection after that'({ client, app }) {
    client.socket.end();
    await once(app.resume(), 'end');
    app.write('still there'); // it has ended its own side only
    await client.until('still there');
    client.socket.resetAndDestroy();
    app.write('more'); // on one worker, only then is it known
    await closed(app);
    return app.destroyed;
  },
  async 'the client is gone and the app goes on writing'({ client, app }) {
    client.socket.destroy();
    const goOn = (): void => void app.write(Buffer.alloc(65_536), (error) => error ?? goOn());
    goOn();
    await closed(app);
    return app.destroyed;
  },
  async 'the client is gone with bytes unread'({ client, app }) {
    client.socket.pause();
    app.write(Buffer.alloc(300_000));
    await once(client.socket, 'readable');
    client.socket.destroy();
    app.resume().once('end', () => app.destroy());
    await closed(app);
    return app.destroyed;
  },
  async "the app's socket times out"({ client, app }) {
    app.setTimeout(1, () => app.end('too late'));
    return client.rest();
  },
};

for (const tls of [undefined, selfSigned()]) {
  describe(`the two connections of a forwarded upgrade over ${tls ? 'https' : 'http'} close together`, () => {
    let twins: Twins;
    let arrive: (socket: Socket) => void;
    const opened: Connection[] = [];

    before(async () => {
      const app = seeded((_request, response) => response.end());
      twins = await startTwins(
        () => {
          const server = tls ? createHttpsServer(tls, app) : createServer(app);
          return server.on('upgrade', (_request, socket) => {
            socket.on('error', () => undefined).write(switching);
            arrive(socket as Socket);
          });
        },
        { tls: tls ?? false },
      );
    });
    after(() => twins.close());
    afterEach(() => {
      for (const { client, app } of opened.splice(0)) {
        client.socket.destroy();
        app.destroy();
      }
    });

    async function open(port: Port): Promise<Connection> {
      const arrived = new Promise<Socket>((resolve) => (arrive = resolve));
      const client = new Wire(port).send(upgrade);
      await client.until('\r\n\r\n');
      const connection = { client, app: await arrived };
      opened.push(connection);
      return connection;
    }

    for (const [name, ending] of Object.entries(endings)) {
      // Node can reset only what is no TLS.
      if (tls && /reset/.test(name)) continue;
      it(`when ${name}`, async () => {
        const direct = await ending(await open(twins.direct));
        expect(await ending(await open(twins.forwarded))).to.deep.equal(direct);
      });
    }

    it("when the worker that has the client's connection destroys it", async () => {
      for (const [index, port] of [twins.direct, twins.forwarded].entries()) {
        const connected = once(twins.servers[index]!, tls ? 'secureConnection' : 'connection');
        const { client, app } = await open(port);
        const [socket] = (await connected) as [Socket];
        app.resume().once('end', () => app.end());
        socket.destroy();
        await Promise.all([closed(app), client.rest()]);
      }
    });

    it('no sooner, and no later, than they would with one worker when only the client ends', async () => {
      for (const port of [twins.direct, twins.forwarded]) {
        const { client, app } = await open(port);
        client.socket.end();
        await once(app.resume(), 'end');
        if (tls) {
          await closed(app); // Node itself ends the app's side, too
        } else {
          app.write('still there');
          expect(await client.until('still there')).to.equal('still there');
        }
      }
    });
  });
}

describe('two hundred forwarded upgrades that are left', () => {
  const open = (): number => process.getActiveResourcesInfo().filter((each) => /Pipe|TCP/.test(each)).length;
  const leavings: Readonly<Record<string, (connection: Connection) => Promise<unknown>>> = {
    'the client ends': endings['the client ends and the app answers that']!,
    'the app ends': endings['the app ends and the client answers that']!,
    'the app destroys its socket': endings['the app destroys its socket']!,
    async 'the client is gone'({ client, app }) {
      client.socket.resetAndDestroy();
      app.resume().once('end', () => app.end());
      await closed(app);
    },
  };

  it('leave no descriptor, however they are left', async () => {
    const front = await startFront();
    const server = createServer();
    await front.serve(server);
    const before = open();
    try {
      const apps = new Map<string | undefined, Socket>();
      server.on('upgrade', ({ url }, socket) => {
        apps.set(url, socket as Socket);
        socket.on('error', () => undefined).write(switching);
      });
      const connections = Array.from({ length: 200 }, async (_, index) => {
        const client = new Wire(front.port).send(upgrade.replace('GET /', `GET /${index}`));
        await client.until('\r\n\r\n');
        return { client, app: apps.get(`/${index}`)! };
      });
      const opened = await Promise.all(connections);
      const each = Object.values(leavings);
      await Promise.all(opened.map((connection, index) => each[index % each.length]!(connection)));
      await until(() => open() <= before, 'everything is closed');
    } finally {
      await front.close();
    }
  });
});

describe('a forwarded upgrade whose client leaves in the middle of the body of its request', () => {
  const open = (): number => process.getActiveResourcesInfo().filter((each) => /Pipe|TCP/.test(each)).length;
  const length = 400_000;

  for (const framing of [`Content-Length: ${length}`, 'Transfer-Encoding: chunked']) {
    it(`leaves nothing behind (${framing})`, async () => {
      const front = await startFront();
      const server = createServer().on('upgrade', (request, socket) => {
        request.on('error', () => undefined).resume();
        socket.on('error', () => undefined).on('end', () => socket.end());
        socket.resume();
      });
      await front.serve(server);
      const before = open();
      try {
        for (let index = 0; index < 20; index++) {
          const arrived = once(front.server, 'upgrade');
          const wire = new Wire(front.port).send(upgrade.replace(/\r\n$/, `${framing}\r\n\r\n`));
          wire.send(`${length.toString(16)}\r\n`).send('x'.repeat(length / 2));
          await arrived;
          wire.socket.destroy();
        }
        await until(() => open() <= before, 'everything is closed');
      } finally {
        await front.close();
      }
    });
  }
});
