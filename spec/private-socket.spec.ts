import { expect } from 'chai';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import {
  createServer,
  get,
  IncomingMessage,
  request as httpRequest,
  ServerResponse,
  type RequestListener,
} from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openPrivateSocket, PrivateServer, type PrivateSocket } from '../lib/private-socket.ts';
import type { RoutedServer } from '../lib/routed-servers.ts';
import { closed, startFront, type Front } from './fixtures/hop-front.ts';
import { head, talk, Wire } from './fixtures/hop-wire.ts';
import { comparable, seeded, sessionCookie, startTwins } from './fixtures/hop-twins.ts';
import { until } from './fixtures/routed.ts';

describe('a private socket', () => {
  let folder: string;
  let path: string;
  const opened: PrivateSocket[] = [];

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'esr-private-'));
    path = join(folder, 'a.sock');
  });
  afterEach(async () => {
    await Promise.all(opened.splice(0).map((each) => each.close()));
    rmSync(folder, { recursive: true });
  });

  async function open(listener: (request: IncomingMessage, response: ServerResponse) => void): Promise<PrivateSocket> {
    const server = createServer(listener);
    const socket = await openPrivateSocket({ path, serverFor: () => server });
    opened.push(socket);
    return socket;
  }

  /** A request to it, as any program of the same user may make one. */
  async function ask(): Promise<string> {
    const request = get({ socketPath: path });
    const [reply] = (await once(request, 'response')) as [IncomingMessage];
    return String(await reply.setEncoding('utf8').reduce((text: string, chunk: string) => text + chunk, ''));
  }

  for (const umask of [0, 0o777]) {
    it(`is its owner's alone, under umask ${umask.toString(8)}`, async () => {
      const before = process.umask(umask);
      try {
        await open((_request, response) => response.end());
      } finally {
        process.umask(before);
      }
      const stats = statSync(path);
      expect(stats.isSocket()).to.equal(true);
      expect(stats.mode & 0o777).to.equal(0o600);
    });
  }

  it('is held by the cluster worker that opens it, and not by the primary', async () => {
    const child = fork(new URL('fixtures/hop-cluster.ts', import.meta.url), [path], { execArgv: ['--import', 'tsx'] });
    try {
      const [message] = await once(child, 'message');
      expect(`listens ${await ask()}`).to.equal(message);
      child.send('kill');
      expect((await once(child, 'message'))[0]).to.equal('exited');
      expect(existsSync(path)).to.equal(true);
      const [error] = await once(connect(path), 'error').catch((reason: unknown) => [reason]);
      expect(error).to.include({ code: 'ECONNREFUSED' });
      expect(child.exitCode).to.equal(null);
    } finally {
      child.kill();
      await once(child, 'exit');
    }
  });

  it('is refused where its path is longer than the platform allows', async () => {
    path = join(folder, `${'a'.repeat(120)}.sock`);
    const error = await open(() => undefined).catch((reason: unknown) => reason);
    expect(error)
      .to.be.an('error')
      .with.property('message')
      .that.matches(/this platform allows \d+/);
    expect(existsSync(folder) && statSync(folder).nlink).to.equal(2);
  });

  it('is refused where another listens already', async () => {
    await open((_request, response) => response.end('first'));
    const error = await open((_request, response) => response.end('second')).catch((reason: unknown) => reason);
    expect(error).to.include({ code: 'EADDRINUSE' });
    expect(await ask()).to.equal('first');
  });

  it('leaves no file when it is closed, and lets the requests that are under way end', async () => {
    let response: ServerResponse | undefined;
    const socket = await open((_request, reply) => void (response = reply).write('first '));
    const request = httpRequest({ socketPath: path }).end();
    const [reply] = (await once(request, 'response')) as [IncomingMessage];
    const text = reply.setEncoding('utf8').reduce((all: string, chunk: string) => all + chunk, '');

    let isClosed = false;
    const closing = socket.close().then(() => (isClosed = true));
    expect(existsSync(path)).to.equal(false);
    const [error] = await once(connect(path), 'error').catch((reason: unknown) => [reason]);
    expect(error).to.include({ code: 'ENOENT' });
    expect(isClosed).to.equal(false);
    response!.end('last');
    expect(await text).to.equal('first last');
    await closing;
  });

  it('closes though a sibling keeps the connections that it has used', async () => {
    let response: ServerResponse | undefined;
    const socket = await open((request, reply) => {
      if (request.url === '/idle') reply.end('ok');
      else (response = reply).write('first');
    });
    const [idle, busy] = [connect(path), connect(path)];
    idle.write('GET /idle HTTP/1.1\r\n\r\n');
    await once(idle, 'data');
    busy.write('GET /busy HTTP/1.1\r\n\r\n');
    await once(busy, 'data');
    const closing = socket.close();
    await once(idle.resume(), 'end');
    response!.end('last');
    await once(busy.resume(), 'end');
    await closing;
  });

  it('closes though siblings go on sending requests, and ends each connection with a reply', async () => {
    const front = await startFront();
    const socket = await front.serve((_request, reply) => reply.end('ok'));
    let isClosed = false;
    const statuses = new Set<string>();
    const clients = Array.from({ length: 20 }, async () => {
      for (let count = 0; count < 5_000 && !(isClosed && count > 20); count++) {
        statuses.add((await talk(front.port, head('GET / HTTP/1.1'))).slice(9, 12));
      }
      return isClosed;
    });
    await until(() => statuses.has('200'), 'they are being served');
    await socket.close();
    isClosed = true;
    expect(new Set(await Promise.all(clients))).to.deep.equal(new Set([true]));
    expect([...statuses].toSorted()).to.deep.equal(['200', '410']);
    await front.close();
  });

  it('sets no limit that the public server has not, and outlasts the idle time of its siblings', () => {
    const server = new PrivateServer(() => undefined);
    expect(server).to.include({ requestTimeout: 0, headersTimeout: 0, timeout: 0 });
    expect(server).to.include({ maxRequestsPerSocket: 0, requireHostHeader: false });
    expect(server.keepAliveTimeout).to.be.above(15_000);
  });
});

describe('the listeners of a public server', () => {
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  it('serve a forwarded request as they are when it comes', async () => {
    const server = createServer();
    await front.serve(server);
    const upgrade = head('GET / HTTP/1.1', 'Connection: Upgrade', 'Upgrade: x');
    const answer = (text: string) => (_request: IncomingMessage, response: ServerResponse) => response.end(text);

    const first = answer('first');
    server.on('request', first);
    expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/first$/);
    server.off('request', first).on('request', answer('second'));
    expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/second$/);

    server.on('upgrade', (_request, socket) => socket.end('HTTP/1.1 403 Forbidden\r\n\r\nupgrade'));
    expect(await talk(front.port, upgrade)).to.match(/upgrade$/);
  });

  it('are asked about an expectation only where the public server listens for it', async () => {
    const twins = await startTwins((_routing, index) => {
      const server = createServer(seeded((_request, response) => response.end('request')));
      // The worker that accepts the request is the one that decides.
      if (index === 0) server.on('checkContinue', (_request, response) => response.end('checkContinue'));
      return server;
    });
    try {
      const text = head('GET / HTTP/1.1', sessionCookie, 'Expect: 100-continue');
      expect(await talk(twins.direct, text)).to.match(/checkContinue$/);
      expect(await talk(twins.forwarded, text)).to.match(/^HTTP\/1\.1 100 Continue\r\n\r\n[^]*request$/);
    } finally {
      await twins.close();
    }
  });

  it('are those of the server on whose port the client came in', async () => {
    const other = await startFront();
    try {
      const servers = new Map<number | undefined, RoutedServer>([
        [front.port.port, createServer((_request, response) => response.end('one'))],
        [other.port.port, createServer((_request, response) => response.end('other'))],
      ]);
      const options = { path: front.socketPath, serverFor: (localPort: number | undefined) => servers.get(localPort) };
      const socket = await openPrivateSocket(options);
      other.server.removeAllListeners('request');
      other.server.on('request', (request, response) =>
        other.forwarder.forward(request, response, { socketPath: front.socketPath }),
      );
      expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/one$/);
      expect(await talk(other.port, head('GET / HTTP/1.1'))).to.match(/other$/);
      servers.clear();
      expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/^HTTP\/1\.1 502 /);
      other.forwarder.close();
      front.forwarder.close();
      await socket.close();
    } finally {
      await other.close();
    }
  });

  it('get requests and replies of the classes that the public server has, parsed as it parses them', async () => {
    class OwnRequest extends IncomingMessage {
      get first(): string | undefined {
        return this.headersDistinct['x-a']?.[0];
      }
    }
    class OwnReply extends ServerResponse<OwnRequest> {
      override end(...args: unknown[]): this {
        this.setHeader('X-Own', 'yes');
        return Reflect.apply(super.end, this, args) as this;
      }
    }
    const options = {
      IncomingMessage: OwnRequest,
      ServerResponse: OwnReply,
      joinDuplicateHeaders: true,
      uniqueHeaders: ['x-b'],
    };
    const twins = await startTwins(() =>
      createServer(
        options,
        seeded((request, response) => {
          const { first, headers, socket } = request as OwnRequest;
          response.setHeader('X-B', ['1', '2']);
          const { server } = socket as { server?: unknown };
          response.end(`${first} ${headers['content-type']} ${server instanceof PrivateServer}`);
        }) as RequestListener<typeof OwnRequest>,
      ),
    );
    try {
      const text = head('GET / HTTP/1.1', sessionCookie, 'X-A: 1', 'Content-Type: a', 'Content-Type: b');
      const reply = await talk(twins.direct, text);
      expect(reply).to.match(/X-B: 1; 2\r\nX-Own: yes[^]*1 a, b false$/);
      expect(comparable(await talk(twins.forwarded, text))).to.equal(comparable(reply));
    } finally {
      await twins.close();
    }
  });

  it('get a head as large as the public server accepts, and may answer with a larger one', async () => {
    const size = 200_000;
    const twins = await startTwins(() =>
      createServer(
        { maxHeaderSize: size + 1_000 },
        seeded((request, response) => {
          response.writeHead(200, {
            'X-Large': 'y'.repeat(2 * size),
            'X-Length': String(request.headers['x-large']).length,
          });
          response.end();
        }),
      ),
    );
    try {
      const reply = await talk(twins.forwarded, head('GET / HTTP/1.1', sessionCookie, `X-Large: ${'x'.repeat(size)}`));
      expect(reply).to.match(/^HTTP\/1\.1 200 /);
      expect(reply).to.contain(`X-Length: ${size}\r\n`);
      expect(/^X-Large: (y*)\r$/m.exec(reply)?.[1]).to.have.length(2 * size);
    } finally {
      await twins.close();
    }
  });

  it('get a head that fills the limit of the public server to the last byte', async () => {
    const twins = await startTwins(() => createServer(seeded((_request, response) => response.end('ok'))));
    try {
      const fields = Array.from({ length: 400 }, () => 'Connection: close');
      const reply = async (more: number): Promise<string> =>
        talk(twins.forwarded, head('GET / HTTP/1.1', sessionCookie, ...fields, `X-Large: ${'x'.repeat(more)}`));
      let [fits, tooLarge] = [1_000, 16_384];
      while (tooLarge - fits > 1) {
        const middle = Math.floor((fits + tooLarge) / 2);
        if (
          (
            await talk(twins.direct, head('GET / HTTP/1.1', sessionCookie, ...fields, `X-Large: ${'x'.repeat(middle)}`))
          ).startsWith('HTTP/1.1 200')
        )
          fits = middle;
        else tooLarge = middle;
      }
      expect(await reply(fits)).to.match(/^HTTP\/1\.1 200 [^]*ok$/);
      expect(await reply(tooLarge)).to.match(/^HTTP\/1\.1 431 /);
    } finally {
      await twins.close();
    }
  });
});

describe('the connection of a forwarded request', () => {
  it('ends when the app closes it early, and leaves nothing behind', async () => {
    const open = (): number => process.getActiveResourcesInfo().filter((each) => /Pipe|TCP/.test(each)).length;
    const front = await startFront();
    try {
      await front.serve((request, response) => {
        if (request.url === '/paused')
          request.once('readable', () => response.writeHead(413, { Connection: 'close' }).end());
        else response.writeHead(413, { Connection: 'close' }).end();
      });
      const before = open();
      for (const target of ['/unread', '/paused']) {
        for (let index = 0; index < 20; index++) {
          const wire = new Wire(front.port).send(head(`POST ${target} HTTP/1.1`, 'Content-Length: 5000000'));
          wire.send(Buffer.alloc(4_000_000));
          await Promise.race([wire.until('\r\n\r\n').catch(() => undefined), closed(wire.socket)]);
          wire.socket.destroy();
        }
      }
      await until(() => open() <= before, 'everything is closed');
    } finally {
      await front.close();
    }
  });
});
