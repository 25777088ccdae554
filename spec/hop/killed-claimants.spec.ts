import { expect } from 'chai';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, renameSync, rmSync } from 'node:fs';
import { createServer as createHttpServer, type ServerResponse } from 'node:http';
import { createServer, type Socket } from 'node:net';
import {
  closed,
  refusalOf,
  startFront,
  startRemoteFront,
  type Front,
  type RemoteFront,
} from '../fixtures/hop-front.ts';
import { kill, Processes } from '../fixtures/hop-process.ts';
import { looksWhole, standIn, type StandIn } from '../fixtures/hop-stand-in.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';
import { listening, portOf, until } from '../fixtures/routed.ts';

const gone = { status: 410, code: 'SESSION_GONE' };
const get = (target: string): string => head(`GET ${target} HTTP/1.1`);

describe('a claimant that is killed', () => {
  const processes = new Processes();
  let front: RemoteFront;
  let claimant: ChildProcess;

  before(async () => (front = await startRemoteFront()));
  beforeEach(async () => {
    const { child, said } = await processes.start('hop-claimant.ts', front.socketPath);
    expect(said).to.equal('listens');
    claimant = child;
  });
  afterEach(async () => {
    await processes.close();
    expect(refusalOf(await talk(front.port, get('/quick')))).to.deep.equal(gone);
    rmSync(front.socketPath); // which a process that is killed leaves behind
    expect(front.process.exitCode).to.equal(null);
  });
  after(() => front.close());

  const part = head('POST /hang HTTP/1.1', 'Connection: keep-alive', 'Content-Length: 1000000');
  const beforeTheReply: Record<string, string> = {
    'before the head of its reply': get('/hang'),
    'before the reply to HEAD': head('HEAD /hang HTTP/1.1'),
    'before the reply to a whole body': `${head('POST /hang HTTP/1.1', 'Content-Length: 5')}whole`,
    'in the middle of an upload': `${part}part`,
    'in the middle of an upload in chunks': `${head('POST /hang HTTP/1.1', 'Transfer-Encoding: chunked')}4\r\npart\r\n`,
    'after an interim reply': get('/interim'),
  };
  for (const [when, text] of Object.entries(beforeTheReply)) {
    it(`is gone (${when})`, async () => {
      const wire = new Wire(front.port).send(text);
      await once(claimant, 'message');
      if (text.includes('interim')) expect(await wire.until('\r\n\r\n')).to.equal('HTTP/1.1 102 Processing\r\n\r\n');
      await kill(claimant);
      const reply = await wire.until(/\r\n\r\n.*$/);
      expect(reply).to.match(/^HTTP\/1\.1 410 Gone\r\n[^]*\r\n\r\n(\{.*SESSION_GONE.*\})?$/);
      wire.socket.destroy();
    });
  }

  it('leaves the connection in use on which its body was being sent', async () => {
    const wire = new Wire(front.port).send(part);
    await once(claimant, 'message');
    await kill(claimant);
    expect(await wire.until('}')).to.match(/^HTTP\/1\.1 410 /);
    wire.send(Buffer.alloc(1_000_000)).send(get('/'));
    expect(refusalOf(await wire.rest())).to.deep.equal(gone);
  });

  it('is gone when its connection was idle', async () => {
    expect(await talk(front.port, get('/quick'))).to.match(/quick$/);
    await kill(claimant);
    expect(refusalOf(await talk(front.port, get('/quick')))).to.deep.equal(gone);
  });

  for (const target of ['/chunks', '/length', '/head']) {
    it(`truncates the reply to a client (${target})`, async () => {
      const wire = new Wire(front.port).send(get(target));
      await once(claimant, 'message');
      const first = await wire.until(target === '/head' ? '\r\n\r\n' : 'first');
      await kill(claimant);
      const rest = await wire.rest();
      expect(rest).to.match(/^(\r\n)?$/); // neither the bytes that are due, nor a last chunk
      expect(looksWhole(first + rest)).to.equal(false);
    });
  }

  it('truncates the reply to a client that was slow to read it', async () => {
    const wire = new Wire(front.port).send(get('/large'));
    const first = await wire.until('\r\n\r\n');
    wire.socket.pause();
    await kill(claimant);
    wire.socket.resume();
    const reply = first + (await wire.rest());
    expect(first).to.match(/^HTTP\/1\.1 200 /);
    expect(reply.length).to.be.below(9.1e6);
    expect(looksWhole(reply)).to.equal(false);
  });

  for (const [what, text] of Object.entries({ 'a 204': get('/no-content'), HEAD: head('HEAD /head HTTP/1.1') })) {
    it(`right after the head of ${what} has given its whole reply`, async () => {
      const wire = new Wire(front.port).send(text);
      const reply = await wire.until('\r\n\r\n');
      await kill(claimant);
      expect(reply).to.match(/^HTTP\/1\.1 20[04] /);
      expect(await wire.rest()).to.equal('');
    });
  }

  it('closes the connections that were upgraded', async () => {
    const wire = new Wire(front.port).send(head('GET / HTTP/1.1', 'Connection: Upgrade', 'Upgrade: echo'));
    await wire.until('\r\n\r\n');
    await wire.send('hello').until('hello');
    await kill(claimant);
    expect(await wire.rest()).to.equal('');
  });

  it('with 50 requests in flight is gone for those that have no head, and truncates the others', async () => {
    const targets = ['/hang', '/chunks', '/length', '/interim', '/hang'];
    const arrived: unknown[] = [];
    claimant.on('message', (target) => arrived.push(target));
    const wires = Array.from({ length: 50 }, (_, index) => {
      const text = index % 5 === 4 ? `${part}part` : get(targets[index % 5]!);
      return new Wire(front.port).send(text);
    });
    await Promise.all(wires.map((wire, index) => [1, 2].includes(index % 5) && wire.until('first')));
    await until(() => arrived.length === 50, 'all requests have arrived');
    const rests = wires.map((wire, index) => (index % 5 === 4 ? wire.until('}') : wire.rest()));
    await kill(claimant);
    for (const [index, rest] of (await Promise.all(rests)).entries()) {
      if ([1, 2].includes(index % 5)) expect(rest).to.match(/^(\r\n)?$/);
      else expect(rest).to.match(/^(HTTP\/1\.1 102 Processing\r\n\r\n)?HTTP\/1\.1 410 Gone\r\n[^]*SESSION_GONE/);
      wires[index]!.socket.destroy();
    }
  });
});

describe('a claimant that is gone', () => {
  let told: number;
  let front: Front;
  let claimant: StandIn | undefined;

  beforeEach(async () => {
    told = 0;
    front = await startFront({
      onGone(response) {
        told++;
        response.setHeader('Set-Cookie', 'a=');
      },
    });
  });
  afterEach(async () => {
    await claimant?.close();
    claimant = undefined;
    await front.close();
  });

  it('has no socket', async () => {
    const reply = await talk(front.port, get('/'));
    expect(refusalOf(reply)).to.deep.equal(gone);
    expect(reply).to.match(/^Set-Cookie: a=\r$/m);
    expect(told).to.equal(1);
  });

  it('has a socket on which nobody listens', async () => {
    const server = createServer().listen(`${front.socketPath}.live`);
    await once(server, 'listening');
    renameSync(`${front.socketPath}.live`, front.socketPath);
    await once(server.close(), 'close');
    expect(existsSync(front.socketPath)).to.equal(true);
    expect(refusalOf(await talk(front.port, get('/')))).to.deep.equal(gone);
  });

  it('is another thing than one that breaks off and still listens', async () => {
    await front.serve((request) => void request.socket.destroy());
    const reply = await talk(front.port, get('/'));
    expect(refusalOf(reply)).to.deep.equal({ status: 502, code: 'CLAIMANT_UNREACHABLE' });
    expect(reply).not.to.match(/Set-Cookie/);
    expect(told).to.equal(0);
  });

  it('may have closed its connections just before its socket', async () => {
    claimant = await standIn(front.socketPath, (socket) => socket.destroy());
    // Whoever looks whether it is still there makes a second connection.
    void until(() => claimant!.connections === 2, 'somebody looks').then(() => claimant!.stopListening());
    expect(refusalOf(await talk(front.port, get('/')))).to.deep.equal(gone);
  });

  it('loses its idle connections, while a reply that is under way finishes', async () => {
    const idle: Socket[] = [];
    let streaming: Socket | undefined;
    claimant = await standIn(front.socketPath, (socket, request) => {
      if (request === 'GET /break') socket.destroy();
      else if (request === 'GET /stream') {
        (streaming = socket).write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst');
      } else if (idle.push(socket) === 2) {
        // Answered together, so that each has a connection of its own.
        for (const each of idle) each.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
      }
    });
    const stream = new Wire(front.port).send(get('/stream'));
    await stream.until('first');
    await Promise.all(['/idle1', '/idle2'].map((target) => talk(front.port, get(target))));
    const closing = Promise.all(idle.map(closed));
    claimant.stopListening();

    expect(refusalOf(await talk(front.port, get('/break')))).to.deep.equal(gone);
    await closing;
    streaming!.write('final');
    expect(await stream.rest()).to.equal('final');
  });
});

describe('a forwarder', () => {
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  it('that closes keeps the replies that are under way, and no connection after them', async () => {
    const connections = (): number => process.getActiveResourcesInfo().filter((each) => each.startsWith('Pipe')).length;
    let response: ServerResponse | undefined;
    await front.serve((_request, reply) => void (response = reply).write('first'));
    const before = connections();
    const wire = new Wire(front.port).send(get('/'));
    await wire.until('first');
    front.forwarder.close();
    expect(connections()).to.be.above(before);
    response!.end('last');
    expect(await wire.rest()).to.match(/last/);
    await until(() => connections() === before, 'it has closed');
  });

  it('lets whoever replied first answer, where that was somebody ahead of the router', async () => {
    const late: Promise<void>[] = [];
    await front.serve((_request, reply) => {
      late.push(closed(reply));
      reply.end('late');
    });
    const server = await listening(
      createHttpServer((request, response) => {
        front.forwarder.forward(request, response, { socketPath: front.socketPath });
        response.writeHead(504).end('early');
      }),
    );
    const wire = new Wire({ port: portOf(server) });
    for (let index = 0; index < 2; index++) {
      wire.send(head('GET / HTTP/1.1', 'Connection: keep-alive'));
      expect(await wire.until('0\r\n\r\n')).to.match(/^HTTP\/1\.1 504 [^]*early/);
      await late.shift();
    }
    wire.socket.destroy();
    server.close();
  });
});
