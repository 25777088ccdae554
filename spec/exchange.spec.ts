import { expect } from 'chai';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { SessionRoutingError } from '../lib/errors.ts';
import { HttpExchange, pathBelow, UpgradeExchange } from '../lib/exchange.ts';
import { Gate, listening, portOf, send } from './fixtures/routed.ts';

const gone = new SessionRoutingError('SESSION_GONE', 'Gone.');

/** Connects to a server that hands its request to `listener`, and sends a head. */
async function serving(
  event: 'request' | 'checkContinue' | 'upgrade',
  listener: (request: IncomingMessage, second: never, head: Buffer) => void,
  fields: string[] = [],
): Promise<{ client: Socket; received: Promise<string>; close: () => void }> {
  const server = await listening(createServer());
  server.on(event as string, listener as unknown as (...args: unknown[]) => void);
  const client = connect(portOf(server), '127.0.0.1');
  client.on('error', () => undefined);
  client.write(['GET /path HTTP/1.1', 'Host: localhost', ...fields, '', ''].join('\r\n'));
  const received = (async () => {
    let text = '';
    for await (const chunk of client) text += String(chunk);
    return text;
  })().catch(String);
  const close = (): void => {
    client.destroy();
    server.closeAllConnections();
    server.close();
  };
  return { client, received, close };
}

describe('pathBelow()', () => {
  const targets: [mount: string, target: string, path: string][] = [
    ['', '/', '/'],
    ['', '/a/b', '/a/b'],
    ['', '/a?b=/c', '/a'],
    ['', '/a#b?c', '/a'],
    ['', '/a?b#c', '/a'],
    ['', '//a//b', '/a/b'],
    ['', '/a\\b#', '/a\\b'],
    ['', '/a\\//b', '/a\\/b'],
    ['/api', '/api/a\\b', '/a\\b'],
    ['/api', '/api//seed', '/seed'],
    ['/api', '/api\\seed', '/seed'],
    ['', '/a/', '/a/'],
    ['', '/%2e%2e/a', '/%2e%2e/a'],
    ['', '*', '*'],
    ['', '', ''],
    ['', 'http://example.org/a?b', '/a'],
    ['', 'HTTPS://user@example.org:8080/A', '/A'],
    ['', 'http:///a', '/a'],
    ['', 'http://example.org', ''],
    ['', 'http://example.org?a/b', ''],
    ['', '/http://example.org/a', '/http:/example.org/a'],
    ['', '/a?http://example.org/b', '/a'],
    ['/api', '/api/seed', '/seed'],
    ['/api', '/API/Seed', '/Seed'],
    ['/api', '/api/', '/'],
    ['/api', '/api/seed?x=/api/y', '/seed'],
    ['/api', 'http://example.org/api/seed', '/seed'],
    ['/api', '/api', '/api'],
    ['/api', '/apis/seed', '/apis/seed'],
    ['/api', '/other/api/seed', '/other/api/seed'],
    ['/api', '/seed', '/seed'],
    ['/api', '/api/api/seed', '/api/seed'],
    ['/a.c', '/abc/seed', '/abc/seed'],
  ];
  for (const [mount, target, path] of targets) {
    it(`takes ${JSON.stringify(target)} below ${JSON.stringify(mount)} for ${JSON.stringify(path)}`, () => {
      expect(pathBelow(mount, target)).to.equal(path);
    });
  }
});

describe('HttpExchange', () => {
  it('tells the method, the path and the reply', async () => {
    const { received, close } = await serving(
      'request',
      (request, response: ServerResponse) => {
        const exchange = new HttpExchange(request, response, '/below');
        expect(exchange).to.include({ request, response, method: 'GET', path: '/below' });
        response.end();
      },
      ['Connection: close'],
    );
    expect(await received).to.match(/^HTTP\/1\.1 200 OK/);
    close();
  });

  it('knows the status once the head was sent, and no sooner', async () => {
    const seen: unknown[] = [];
    const { received, close } = await serving(
      'request',
      (request, response: ServerResponse) => {
        const exchange = new HttpExchange(request, response, '/');
        response.statusCode = 201;
        seen.push(exchange.status());
        response.write('x');
        seen.push(exchange.status());
        response.end();
      },
      ['Connection: close'],
    );
    await received;
    expect(seen).to.deep.equal([undefined, 201]);
    close();
  });

  it('lets a client that waits for it continue, and that once', async () => {
    const { received, close } = await serving(
      'checkContinue',
      (request, response: ServerResponse) => {
        const exchange = new HttpExchange(request, response, '/', 'continue');
        exchange.continue();
        response.writeContinue(); // as the app's listener does
        response.end();
      },
      ['Expect: 100-continue', 'Connection: close'],
    );
    expect((await received).match(/100 Continue/g)).to.have.length(1);
    close();
  });

  it('leaves a client alone that does not wait', async () => {
    const { received, close } = await serving(
      'request',
      (request, response: ServerResponse) => {
        new HttpExchange(request, response, '/').continue();
        response.end();
      },
      ['Connection: close'],
    );
    expect(await received).not.to.include('100 Continue');
    close();
  });

  it('calls back once when the reply has ended, or the client has left', async () => {
    for (const leaves of [false, true]) {
      let calls = 0;
      const [begun, closed] = [new Gate(), new Gate()];
      const { client, close } = await serving('request', (request, response: ServerResponse) => {
        new HttpExchange(request, response, '/').onClosed(() => {
          calls++;
          closed.open();
        });
        expect(calls).to.equal(0);
        if (!leaves) response.end();
        begun.open();
      });
      await begun.opened;
      if (leaves) client.destroy();
      await closed.opened;
      expect(calls).to.equal(1);
      close();
    }
  });

  it('calls back later, though the reply has ended already', async () => {
    const order: string[] = [];
    const done = new Gate();
    const { close } = await serving('request', (request, response: ServerResponse) => {
      response.end();
      response.once('close', () =>
        setImmediate(() => {
          new HttpExchange(request, response, '/').onClosed(() => {
            order.push('called back');
            done.open();
          });
          order.push('asked');
        }),
      );
    });
    await done.opened;
    expect(order).to.deep.equal(['asked', 'called back']);
    close();
  });

  it('refuses with a problem document', async () => {
    const server = await listening(
      createServer((request, response) => new HttpExchange(request, response, '/').refuse(gone)),
    );
    const { status, json } = await send({ to: portOf(server) });
    expect([status, json.code]).to.deep.equal([410, 'SESSION_GONE']);
    server.close();
  });
});

describe('UpgradeExchange', () => {
  const upgrade = ['Connection: Upgrade', 'Upgrade: spec'];

  it('has no reply and no status', async () => {
    const { received, close } = await serving(
      'upgrade',
      (request, socket: Duplex, head) => {
        const exchange = new UpgradeExchange(request, socket, head, '/below');
        expect(exchange).to.include({ request, response: undefined, method: 'GET', path: '/below' });
        expect(exchange.status()).to.equal(undefined);
        exchange.continue();
        socket.end();
      },
      upgrade,
    );
    expect(await received).to.equal('');
    close();
  });

  it('refuses with a problem document, and closes the connection', async () => {
    const { received, close } = await serving(
      'upgrade',
      (request, socket: Duplex, head) => new UpgradeExchange(request, socket, head, '/').refuse(gone),
      upgrade,
    );
    expect(await received).to.match(/^HTTP\/1\.1 410 Gone\r\n[^]*"code":"SESSION_GONE"[^]*\}$/);
    close();
  });

  it('refuses a client that has reset the connection without harm', async () => {
    const [left, refused] = [new Gate(), new Gate()];
    const { client, close } = await serving(
      'upgrade',
      (request, socket: Duplex, head) => {
        void left.opened.then(() => {
          new UpgradeExchange(request, socket, head, '/').refuse(gone);
          socket.once('close', refused.open);
          socket.resume();
        });
        left.open();
        client.resetAndDestroy();
      },
      upgrade,
    );
    await refused.opened;
    close();
  });

  it('calls back when the connection is closed', async () => {
    const closed = new Gate();
    const { client, close } = await serving(
      'upgrade',
      (request, socket: Duplex, head) => {
        new UpgradeExchange(request, socket, head, '/').onClosed(closed.open);
        socket.resume().end();
      },
      upgrade,
    );
    client.end();
    await closed.opened;
    if (!client.closed) await once(client, 'close');
    close();
  });
});
