import { expect } from 'chai';
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, renameSync } from 'node:fs';
import { createServer as createHttpServer, type ServerResponse } from 'node:http';
import { connect, createServer, type AddressInfo, Server, type Socket } from 'node:net';
import { closed, refusalOf, startFront, type Front } from './fixtures/hop-front.ts';
import { head, talk, Wire } from './fixtures/hop-wire.ts';
import { until } from './fixtures/routed.ts';

const gone = { status: 410, code: 'SESSION_GONE' };
const brokenOff = { status: 502, code: 'CLAIMANT_UNREACHABLE' };
const busy = { status: 503, code: 'CLAIMANT_BUSY' };

describe('a claimant that fails', () => {
  let front: Front;
  let told: number;
  let children: ChildProcess[];
  let servers: Server[];

  beforeEach(async () => {
    told = 0;
    children = [];
    servers = [];
    front = await startFront({
      onGone(response) {
        told++;
        response.setHeader('Set-Cookie', 'a=');
      },
    });
  });

  afterEach(async () => {
    for (const child of children) if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
    await front.close();
    for (const server of servers) server.close();
  });

  /** Starts a claimant in a process of its own. */
  async function start(...more: string[]): Promise<ChildProcess> {
    const source = new URL('fixtures/hop-claimant.ts', import.meta.url);
    const child = fork(source, [front.socketPath, ...more], { execArgv: ['--import', 'tsx'] });
    children.push(child);
    expect(await once(child, 'message')).to.deep.include('listens');
    return child;
  }

  async function kill(child: ChildProcess): Promise<void> {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** Stands in for a claimant by bytes: `serve` is called with each connection. */
  async function standIn(serve: (socket: Socket) => void): Promise<Server> {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      serve(socket);
    });
    servers.push(server);
    server.listen(front.socketPath);
    await once(server, 'listening');
    return server;
  }

  const get = (target: string): string => head(`GET ${target} HTTP/1.1`);

  it('is gone when its socket does not exist', async () => {
    const reply = await talk(front.port, get('/'));
    expect(refusalOf(reply)).to.deep.equal(gone);
    expect(reply).to.match(/^Set-Cookie: a=\r$/m);
    expect(told).to.equal(1);
  });

  it('is gone when nobody listens on its socket', async () => {
    const server = createServer().listen(`${front.socketPath}.live`);
    await once(server, 'listening');
    renameSync(`${front.socketPath}.live`, front.socketPath);
    await once(server.close(), 'close');
    expect(existsSync(front.socketPath)).to.equal(true);
    expect(refusalOf(await talk(front.port, get('/')))).to.deep.equal(gone);
  });

  it('is gone when it was killed before the head of its reply', async () => {
    const child = await start();
    const wire = new Wire(front.port).send(get('/hang'));
    await once(child, 'message');
    await kill(child);
    expect(refusalOf(await wire.rest())).to.deep.equal(gone);
  });

  it('is gone when it was killed in the middle of an upload', async () => {
    const child = await start();
    const wire = new Wire(front.port).send(
      head('POST /hang HTTP/1.1', 'Connection: keep-alive', 'Content-Length: 1000000'),
    );
    await once(child, 'message');
    await kill(child);
    expect(await wire.until('}')).to.match(/^HTTP\/1\.1 410 /);
    // What is left of the body is thrown away, and the connection serves the next request.
    wire.send(Buffer.alloc(1_000_000)).send(get('/'));
    expect(refusalOf(await wire.rest())).to.deep.equal(gone);
  });

  it('is gone when it was killed while its connection was idle', async () => {
    const child = await start();
    expect(await talk(front.port, get('/quick'))).to.match(/quick$/);
    await kill(child);
    expect(refusalOf(await talk(front.port, get('/quick')))).to.deep.equal(gone);
  });

  for (const target of ['/chunks', '/length']) {
    it(`truncates the reply of a client when it is killed in the middle of it (${target})`, async () => {
      const child = await start();
      const wire = new Wire(front.port).send(get(target));
      await wire.until('first');
      await kill(child);
      expect(await wire.rest()).to.match(/^(\r\n)?$/); // neither the bytes that are due, nor a last chunk
      expect(told).to.equal(0);
    });
  }

  it('has broken off when it closes before its reply and still listens', async () => {
    await front.serve((request) => void request.socket.destroy());
    const reply = await talk(front.port, get('/'));
    expect(refusalOf(reply)).to.deep.equal(brokenOff);
    expect(reply).not.to.match(/Set-Cookie/);
  });

  it('is gone when it closed its connections just before the socket that it listened on', async () => {
    let connections = 0;
    const server = await standIn((socket) => {
      // Whoever looks whether it is still there makes a second connection.
      if (++connections === 2) server.close();
      socket.once('data', () => socket.destroy());
    });
    expect(refusalOf(await talk(front.port, get('/')))).to.deep.equal(gone);
  });

  it('has broken off when its reply cannot be understood', async () => {
    await standIn((socket) => socket.once('data', () => socket.end('HTTP/1.1 nonsense\r\n\r\n')));
    expect(refusalOf(await talk(front.port, get('/')))).to.deep.equal(brokenOff);
  });

  it('gets no request twice, not even where a connection breaks that served one before', async () => {
    const requests: string[] = [];
    await standIn((socket) => {
      socket.once('data', (bytes) => {
        requests.push(/^GET \S+~(\S+)/.exec(bytes.toString())![1]!);
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
        socket.once('data', (more) => {
          requests.push(`${/^GET \S+~(\S+)/.exec(more.toString())![1]} again`);
          socket.destroy();
        });
      });
    });
    expect(await talk(front.port, get('/1'))).to.match(/ok$/);
    expect(refusalOf(await talk(front.port, get('/2')))).to.deep.equal(brokenOff);
    expect(requests).to.deep.equal(['/1', '/2 again']);
  });

  it('is busy, and not gone, when it takes no more connections', async () => {
    const child = await start('1');
    child.kill('SIGSTOP');
    // As many as the kernel lets wait.
    const waiting: Socket[] = [];
    for (let isFull = false; !isFull;) {
      const socket = connect(front.socketPath);
      isFull = await new Promise<boolean>((resolve) => {
        socket.once('connect', () => resolve(false));
        socket.once('error', () => resolve(true));
      });
      if (!isFull) waiting.push(socket);
    }
    const reply = await talk(front.port, get('/quick'));
    expect(refusalOf(reply)).to.deep.equal(busy);
    expect(reply).to.match(/^Retry-After: \d+\r$/m);
    expect(told).to.equal(0);

    for (const socket of waiting) socket.destroy();
    child.kill('SIGCONT');
    await until(async () => (await talk(front.port, get('/quick'))).endsWith('quick'), 'it takes connections again');
  });

  it('that is only stopped is waited for', async () => {
    const child = await start();
    child.kill('SIGSTOP');
    const wire = new Wire(front.port).send(get('/quick'));
    await once(front.server, 'request');
    child.kill('SIGCONT');
    expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 [^]*quick$/);
  });

  it('loses its idle connections once it is gone, while a reply that is under way finishes', async () => {
    const connections = new Map<string, Socket>();
    let streaming: Socket | undefined;
    const server = await standIn((socket) => {
      socket.on('data', (bytes) => {
        const [, target = ''] = /^GET \S+~(\S+)/.exec(bytes.toString()) ?? [];
        connections.set(target, socket);
        if (target === '/break') socket.destroy();
        else if (target === '/stream') (streaming = socket).write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst');
        else if (target.startsWith('/idle')) {
          // Answered together, so that each has a connection of its own.
          const idle = [...connections].filter(([each]) => each.startsWith('/idle'));
          if (idle.length < 2) return;
          for (const [, each] of idle) each.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
        }
      });
    });
    const stream = new Wire(front.port).send(get('/stream'));
    await stream.until('first');
    await Promise.all(['/idle1', '/idle2'].map((target) => talk(front.port, get(target))));
    server.close(); // listens no more; its connections last

    expect(refusalOf(await talk(front.port, get('/break')))).to.deep.equal(gone);
    const [one, other] = [connections.get('/idle1')!, connections.get('/idle2')!];
    await until(() => one.destroyed && other.destroyed, 'both idle connections are closed');
    streaming!.write('final');
    expect(await stream.rest()).to.equal('final');
  });

  it('keeps the replies that are under way when the forwarder closes, and no connection after them', async () => {
    let response: ServerResponse | undefined;
    await front.serve((_request, reply) => void (response = reply).write('first'));
    const wire = new Wire(front.port).send(get('/'));
    await wire.until('first');
    front.forwarder.close();
    const ended = once(response!.socket!, 'close');
    response!.end('last');
    expect(await wire.rest()).to.match(/last/);
    await ended;
  });

  it('is answered for by whoever replied first, where that was somebody ahead of the router', async () => {
    const late: Promise<void>[] = [];
    await front.serve((_request, reply) => {
      late.push(closed(reply));
      reply.end('late');
    });
    const server = createHttpServer((request, response) => {
      front.forwarder.forward(request, response, { socketPath: front.socketPath });
      response.writeHead(504).end('early');
    });
    servers.push(server);
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const wire = new Wire({ port: (server.address() as AddressInfo).port });
    for (let index = 0; index < 2; index++) {
      wire.send(head('GET / HTTP/1.1', 'Connection: keep-alive'));
      expect(await wire.until('0\r\n\r\n')).to.match(/^HTTP\/1\.1 504 [^]*early/);
      await late.shift();
    }
    wire.socket.destroy();
  });
});
