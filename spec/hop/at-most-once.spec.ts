import { expect } from 'chai';
import { readFileSync, rmSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import type { Socket } from 'node:net';
import { refusalOf, startFront, startRemoteFront, type Front, type RemoteFront } from '../fixtures/hop-front.ts';
import { Processes } from '../fixtures/hop-process.ts';
import { standIn, type StandIn } from '../fixtures/hop-stand-in.ts';
import { chunked, head, talk } from '../fixtures/hop-wire.ts';

const brokenOff = { status: 502, code: 'CLAIMANT_UNREACHABLE' };
const body = 'x'.repeat(100);

/** Requests to a target, by what they are. */
const requests: Record<string, (target: string) => string> = {
  'a GET': (target) => head(`GET ${target} HTTP/1.1`),
  'a HEAD': (target) => head(`HEAD ${target} HTTP/1.1`),
  'a PUT': (target) => head(`PUT ${target} HTTP/1.1`, 'Content-Length: 100') + body,
  'a DELETE': (target) => head(`DELETE ${target} HTTP/1.1`),
  'a POST of no bytes': (target) => head(`POST ${target} HTTP/1.1`, 'Content-Length: 0'),
  'a POST': (target) => head(`POST ${target} HTTP/1.1`, 'Content-Length: 100') + body,
  'a POST in chunks': (target) => head(`POST ${target} HTTP/1.1`, 'Transfer-Encoding: chunked') + chunked([body]),
  'a large POST': (target) => head(`POST ${target} HTTP/1.1`, 'Content-Length: 1000000') + body.repeat(10_000),
};

describe('a request whose claimant dies or breaks off after it was executed', () => {
  const processes = new Processes();
  let front: RemoteFront;

  before(async () => (front = await startRemoteFront()));
  beforeEach(() => processes.start('hop-claimant.ts', front.socketPath));
  afterEach(async () => {
    await processes.close();
    await talk(front.port, head('GET / HTTP/1.1'));
    for (const name of [front.socketPath, `${front.socketPath}.log`]) rmSync(name);
  });
  after(() => front.close());

  const executions = (): string[] => readFileSync(`${front.socketPath}.log`, 'latin1').trimEnd().split('\n');

  for (const [what, text] of Object.entries(requests)) {
    for (const connection of ['a new connection', 'a used connection']) {
      it(`was executed once (${what} on ${connection})`, async () => {
        for (const target of ['/break-after-body', '/die-after-body']) {
          if (connection === 'a used connection') await talk(front.port, head('GET /quick HTTP/1.1'));
          const reply = await talk(front.port, text(target));
          expect(reply).to.match(target.startsWith('/die') ? /^HTTP\/1\.1 410 / : /^HTTP\/1\.1 502 /);
          expect(executions().filter((line) => line.endsWith(target))).to.have.length(1);
        }
      });
    }
  }

  it('was executed once where nothing of its body was read', async () => {
    for (const target of ['/break', '/die']) {
      const reply = await talk(front.port, requests['a large POST']!(target));
      expect(reply).to.match(target === '/die' ? /^HTTP\/1\.1 410 / : /^HTTP\/1\.1 502 /);
      expect(executions().filter((line) => line.endsWith(target))).to.have.length(1);
    }
  });
});

describe('a forwarder that sends a request once more', () => {
  it('is caught', async () => {
    const front = await startRemoteFront('stubborn');
    const executed: unknown[] = [];
    await front.serve(({ url, socket }) => (executed.push(url), socket.destroy()));
    expect(await talk(front.port, requests['a POST']!('/a'))).to.match(/^HTTP\/1\.1 502 /);
    expect(executed).to.deep.equal(['/a', '/a']);
    await front.close();
  });
});

describe('a connection that the claimant closes as it is used again', () => {
  let front: Front;
  let claimant: StandIn | undefined;

  beforeEach(async () => (front = await startFront()));
  afterEach(async () => {
    await claimant?.close();
    claimant = undefined;
    await front.close();
  });

  /** Serves with an app; `closeIdle` closes the connections on which it waits for requests. */
  async function serve(app: RequestListener): Promise<{ closeIdle: () => void }> {
    const idle = new Set<Socket>();
    const server = createServer((request, response) => {
      const { socket } = request;
      idle.delete(socket);
      response.once('finish', () => idle.add(socket));
      app(request, response);
    });
    await front.serve(server);
    return {
      closeIdle() {
        for (const socket of idle) socket.destroy();
        idle.clear();
      },
    };
  }

  for (const [what, text] of Object.entries(requests)) {
    it(`is no error, since the request cannot have been started (${what})`, async () => {
      const executed: (string | undefined)[] = [];
      const { closeIdle } = await serve((request, response) => {
        executed.push(request.url);
        request.resume().once('end', () => response.end('ok'));
      });
      await talk(front.port, head('GET /first HTTP/1.1'));
      // The forwarder has no chance to see that it is closed before it writes.
      front.server.prependOnceListener('request', closeIdle);
      expect(await talk(front.port, text('/second'))).to.match(/^HTTP\/1\.1 200 /);
      expect(executed).to.deep.equal(['/first', '/second']);
    });
  }

  it('is no error for any of several requests at once', async () => {
    const executed: (string | undefined)[] = [];
    const { closeIdle } = await serve((request, response) => {
      executed.push(request.url);
      setImmediate(() => response.end('ok'));
    });
    const targets = Array.from({ length: 20 }, (_, index) => `/${index}`);
    const all = (): Promise<string[]> =>
      Promise.all(targets.map((target) => talk(front.port, head(`GET ${target} HTTP/1.1`))));
    await all();
    front.server.prependListener('request', closeIdle);
    for (const reply of await all()) expect(reply).to.match(/^HTTP\/1\.1 200 /);
    expect(executed.toSorted()).to.deep.equal([...targets, ...targets].toSorted());
  });

  it('is no error after a reply that says so', async () => {
    await front.serve((_request, response) => response.setHeader('Connection', 'close').end('ok'));
    for (let index = 0; index < 100; index++) {
      expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/^HTTP\/1\.1 200 /);
    }
  });

  it('is no error after a reply behind which it is closed without a word', async () => {
    await front.serve(({ socket }, response) => response.end('ok', () => socket.destroy()));
    for (let index = 0; index < 100; index++) {
      expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/^HTTP\/1\.1 200 /);
    }
  });

  /** A claimant that answers the first request on a connection, and does something else with the next. */
  async function answersOnce(next: (socket: Socket) => void): Promise<string[]> {
    const seen: string[] = [];
    claimant = await standIn(front.socketPath, (socket, request, connection) => {
      seen.push(`${request} on ${connection}`);
      if (seen.filter((each) => each.endsWith(` ${connection}`)).length > 1) next(socket);
      else socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
    });
    return seen;
  }

  const mayHaveStarted: Record<string, (socket: Socket) => void> = {
    'closed with it': (socket) => socket.destroy(),
    'ended behind it': (socket) => socket.end(),
    'ended in the middle of the reply’s head': (socket) => socket.end('HTTP/1.1 200 OK\r\n'),
    'ended after an interim reply': (socket) => socket.end('HTTP/1.1 102 Processing\r\n\r\n'),
  };
  for (const [what, next] of Object.entries(mayHaveStarted)) {
    it(`is a 502 where the request may have been started: ${what}`, async () => {
      const seen = await answersOnce(next);
      expect(await talk(front.port, head('GET /1 HTTP/1.1'))).to.match(/ok$/);
      const reply = await talk(front.port, head('GET /2 HTTP/1.1'));
      expect(refusalOf(reply.replace(/^HTTP\/1\.1 102 .*\r\n\r\n/, ''))).to.deep.equal(brokenOff);
      expect(seen).to.deep.equal(['GET /1 on 1', 'GET /2 on 1']);
    });
  }

  it('may be read to its end by a claimant that answers no more: the request is executed at most once', async () => {
    const seen = await answersOnce(() => undefined);
    await talk(front.port, head('GET /1 HTTP/1.1'));
    // It ends its side, and reads on.
    front.server.prependOnceListener('request', () => claimant!.endAll());
    const reply = await talk(front.port, head('GET /2 HTTP/1.1'));
    expect(seen.filter((each) => each.startsWith('GET /2'))).to.have.length(1);
    expect(reply).to.match(seen[1] === 'GET /2 on 2' ? /^HTTP\/1\.1 200 / : /^HTTP\/1\.1 502 /);
  });

  it('at any moment lets a request be executed once if it is answered, and else at most once', async () => {
    const executed = new Map<string, number>();
    const { closeIdle } = await serve(({ url = '' }, response) => {
      executed.set(url, (executed.get(url) ?? 0) + 1);
      response.end('ok');
    });
    const statuses = new Set<string>();
    for (let index = 0; index < 210; index++) {
      // In the same turn as the request is sent, or some turns later: before, while or after it is forwarded.
      let turns = index % 7;
      const close = (): unknown => (turns-- > 0 ? setImmediate(close) : closeIdle());
      close();
      const reply = await talk(front.port, head(`GET /${index} HTTP/1.1`));
      const status = reply.slice(9, 12);
      statuses.add(status);
      expect(executed.get(`/${index}`) ?? 0).to.be.within(status === '200' ? 1 : 0, 1);
    }
    expect([...statuses]).to.include('200');
    expect([...statuses].filter((status) => status !== '200' && status !== '502')).to.deep.equal([]);
  });
});
