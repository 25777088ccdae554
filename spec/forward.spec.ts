import { expect } from 'chai';
import express from 'express';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { setImmediate as turn } from 'node:timers/promises';
import { closed, startFront, type Front } from './fixtures/hop-front.ts';
import {
  comparable,
  read,
  seeded,
  sessionCookie,
  startNotingTwins,
  startTwins,
  type Seen,
} from './fixtures/hop-twins.ts';
import { chunked, head, talk, Wire, type Port } from './fixtures/hop-wire.ts';
import { until } from './fixtures/routed.ts';

/** What a hop that framed badly would take for a request of its own. */
const smuggled = 'GET /smuggled HTTP/1.1\r\nHost: app.example\r\n\r\n';
const utf8 = '\xc3\xa9';

describe('a forwarded request', () => {
  let twins: Awaited<ReturnType<typeof startNotingTwins>>;

  before(async () => {
    twins = await startNotingTwins((seen, response) => {
      if (seen.url === '/stream') {
        response.write('in ');
        setImmediate(() => response.end('parts'));
      } else response.end('ok');
    });
  });
  after(() => twins.close());

  /** Expects that the app sees one request, the very same where it was forwarded, and the client the same reply. */
  function crosses(what: string, text: string): void {
    it(`crosses ${what}`, async () => {
      const { direct, forwarded } = await twins.both(text);
      expect(forwarded).to.deep.equal(direct);
      expect(forwarded.seen).to.have.length(1);
    });
  }

  describe('with a body', () => {
    for (const method of ['GET', 'HEAD', 'DELETE', 'OPTIONS', 'POST', 'PUT', 'PATCH', 'PROPFIND', 'REPORT']) {
      const line = `${method} /a HTTP/1.1`;
      const chunks = head(line, sessionCookie, 'Transfer-Encoding: chunked') + chunked([smuggled, smuggled]);
      crosses(`in chunks (${method})`, chunks);
      crosses(`of a known length (${method})`, `${head(line, sessionCookie, 'Content-Length: 45')}${smuggled}`);
      crosses(`of no bytes (${method})`, head(line, sessionCookie, 'Content-Length: 0'));
      crosses(`of no chunks (${method})`, head(line, sessionCookie, 'transfer-encoding: Chunked') + chunked([]));
      crosses(`that is not there (${method})`, head(line, sessionCookie));
    }

    crosses(
      'and trailers',
      head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked', 'Trailer: X-T') +
        chunked(['hello'], ['X-T: 1', `x-t: ${utf8}`, 'Other:']),
    );
    crosses(
      'in a coding of its own below the chunks',
      head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: gzip', 'Transfer-Encoding: chunked') +
        chunked(['zip']),
    );
    crosses('from a client of HTTP/1.0', `${head('POST /a HTTP/1.0', sessionCookie, 'Content-Length: 45')}${smuggled}`);
  });

  describe('with a target', () => {
    for (const target of [
      '//double',
      '/?a=1&&b=%2F..%2f&c=%zz&d=%C3%A9',
      '/a/../b/./c;x=1',
      '/%2e%2e/%5c?',
      '/a??b#c',
      'http://app.example/absolute?x=1',
      'HTTP://other.example:80',
      '*',
      '/"quoted"<>[]{}|\\^`',
    ]) {
      crosses(`of ${target}`, head(`OPTIONS ${target} HTTP/1.1`, sessionCookie));
    }
  });

  describe('with fields', () => {
    const get = (...fields: string[]): string => head('GET /a HTTP/1.1', sessionCookie, ...fields);
    crosses('in any case and order, and repeated', get('x-A: 1', 'X-B: 2', 'X-a: 3', 'X-b:', 'Accept: a', 'accept: b'));
    crosses('in any bytes', get(`X-A: ${utf8}`, 'X-B: \xe9', 'X-C: a\tb'));
    crosses(
      'in any bytes, ahead of a body',
      `${head('POST /a HTTP/1.1', sessionCookie, `X-A: ${utf8}`, 'Content-Length: 2')}hi`,
    );
    crosses('that Connection names', get('Connection: X-A, close', 'X-A: 1', 'Keep-Alive: timeout=9', 'TE: trailers'));
    crosses('about a proxy', get('Proxy-Connection: keep-alive', 'Via: 1.1 a', 'Proxy-Authorization: x'));
    crosses('that name trailers which never come', get('Trailer: X-T'));
    crosses(
      'that offer another protocol to a server that knows none',
      get('Connection: Upgrade, close', 'Upgrade: h2c'),
    );
    crosses(
      'that offer another protocol by way of a proxy',
      get('Proxy-Connection: Upgrade, close', 'Upgrade: h2c', 'Connection: close'),
    );
    crosses('that a hop has for itself', get('X-Session-Routing-Origin: e30', 'x-session-routing-connection: X-B'));
    for (const bytes of [utf8, '\xe9']) {
      const field = `Content-Disposition: attachment; filename="${bytes}"`;
      crosses(
        `of a file name that is ${escape(bytes)}`,
        `${head('POST /a HTTP/1.1', sessionCookie, 'Content-Length: 2', field)}hi`,
      );
    }
    crosses('that are many', get(...Array.from({ length: 900 }, (_, index) => `X-${index}: ${index}`)));
    crosses('of HTTP/1.0', head('GET /a HTTP/1.0', sessionCookie));
    crosses(
      'of HTTP/1.0 whose connection is to last',
      head('GET /stream HTTP/1.0', sessionCookie, 'Connection: keep-alive'),
    );
    crosses(
      'of HTTP/1.0 with an expectation, which does not count',
      `${head('POST /a HTTP/1.0', sessionCookie, 'Expect: 100-continue', 'Content-Length: 2')}hi`,
    );
    crosses('without a host, of HTTP/1.0', 'GET /a HTTP/1.0\r\n' + sessionCookie + '\r\n\r\n');
  });

  it('is answered in its turn when it is pipelined', async () => {
    const text =
      head('POST /1 HTTP/1.1', sessionCookie, 'Connection: keep-alive', 'Transfer-Encoding: chunked') +
      chunked([smuggled]) +
      head('GET /stream HTTP/1.1', sessionCookie, 'Connection: keep-alive') +
      head('HEAD /3 HTTP/1.1', sessionCookie, 'Connection: keep-alive') +
      head('GET /4 HTTP/1.1', sessionCookie);
    const { direct, forwarded } = await twins.both(text);
    expect(forwarded.reply).to.equal(direct.reply);
    const byTarget = (one: Seen, other: Seen): number => (one.url! < other.url! ? -1 : 1);
    expect(forwarded.seen.toSorted(byTarget)).to.deep.equal(direct.seen.toSorted(byTarget));
    expect(direct.seen).to.have.length(4);
  });

  it('never reaches the app when its framing is unsound', async () => {
    for (const text of [
      head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked', 'Content-Length: 3') + chunked(['a']),
      `${head('POST /a HTTP/1.1', sessionCookie, 'Content-Length: 2', 'Content-Length: 3')}abc`,
      `${head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: identity')}${smuggled}`,
      `${head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked')}nonsense`,
    ]) {
      const { direct, forwarded } = await twins.both(text);
      expect(forwarded).to.deep.equal(direct);
      expect(forwarded.seen).to.deep.equal([]);
      expect(forwarded.reply).to.match(/^HTTP\/1\.1 400 /);
    }
  });
});

describe('a forwarded request below a mount', () => {
  it('crosses with its whole target, byte for byte', async () => {
    const seen: (string | undefined)[] = [];
    const twins = await startTwins(
      (routing) => {
        const api = express.Router();
        api.use((request, response) => {
          if (request.path !== '/seed_session') seen.push(request.originalUrl, request.baseUrl, request.url);
          response.end();
        });
        return createServer(express().use('/api', routing).use('/api', api));
      },
      { attach: false, seedPath: '/api/seed_session' },
    );
    try {
      for (const target of ['/api//double?a=1&&b=%2F..%2f&c=%zz', '/API/x', 'http://app.example/api/x?y', '/api']) {
        for (const port of [twins.direct, twins.forwarded])
          await talk(port, head(`GET ${target} HTTP/1.1`, sessionCookie));
        const [direct, forwarded] = [seen.splice(0, 3), seen.splice(0)];
        expect(forwarded).to.deep.equal(direct);
        expect(forwarded[0]).to.equal(target);
      }
    } finally {
      await twins.close();
    }
  });

  it('is a 500 when something has read its body, and leaves its connection in use', async () => {
    const twins = await startTwins(
      (routing) =>
        createServer(
          express()
            .use((request, response, next) =>
              request.url.startsWith('/eaten') ? express.json()(request, response, next) : next(),
            )
            .use(routing)
            .use((_request, response) => void response.end('ok')),
        ),
      { attach: false },
    );
    try {
      const wire = new Wire(twins.forwarded);
      const fields = [sessionCookie, 'Connection: keep-alive', 'Content-Type: application/json', 'Content-Length: 2'];
      wire.send(`${head('POST /eaten HTTP/1.1', ...fields)}{}`);
      expect(await wire.until('}')).to.match(/^HTTP\/1\.1 500 [^]*BODY_ALREADY_READ/);
      wire.send(head('GET /other HTTP/1.1', sessionCookie));
      expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 /);
    } finally {
      await twins.close();
    }
  });
});

describe('a forwarded request that expects 100 Continue', () => {
  const waiting = head('POST /a HTTP/1.1', sessionCookie, `X-A: ${utf8}`, 'Content-Length: 2', 'Expect: 100-continue');

  /** Sends the head, then, once it is let in or after all, the body; returns what came back ahead of it, and after. */
  async function ask(port: Port): Promise<[string, string]> {
    const wire = new Wire(port).send(waiting);
    const first = await wire.until('\r\n\r\n');
    wire.send('hi');
    return [comparable(first), comparable(await wire.rest())];
  }

  it('is let in once where nobody listens for expectations', async () => {
    const seen: Seen[] = [];
    const twins = await startTwins(() =>
      createServer(
        seeded((request, response) => void read(request).then((one) => (seen.push(one), response.end('ok')))),
      ),
    );
    try {
      const direct = await ask(twins.direct);
      expect(await ask(twins.forwarded)).to.deep.equal(direct);
      expect(direct[0]).to.equal('HTTP/1.1 100 Continue\r\n\r\n');
      expect(direct[1]).to.match(/^HTTP\/1\.1 200 /);
      expect(seen[1]).to.deep.equal(seen[0]);
    } finally {
      await twins.close();
    }
  });

  it('is let in once, by the app, where it listens for expectations', async () => {
    const events: string[] = [];
    const twins = await startTwins(() => {
      const server = createServer(seeded((request) => void events.push(`request ${request.url}`)));
      server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
        events.push(`checkContinue ${request.url} ${request.headers.expect}`);
        response.writeContinue();
        void read(request).then(({ body }) => response.end(body));
      });
      return server;
    });
    try {
      const direct = await ask(twins.direct);
      expect(await ask(twins.forwarded)).to.deep.equal(direct);
      expect(direct[0]).to.equal('HTTP/1.1 100 Continue\r\n\r\n');
      expect(events).to.deep.equal(['checkContinue /a 100-continue', 'checkContinue /a 100-continue']);
    } finally {
      await twins.close();
    }
  });

  it('is refused without being let in where the app says so', async () => {
    const twins = await startTwins(() =>
      createServer(seeded(() => undefined)).on('checkContinue', (_request, response) => response.writeHead(417).end()),
    );
    try {
      const [direct, forwarded] = await Promise.all([ask(twins.direct), ask(twins.forwarded)]);
      expect(forwarded).to.deep.equal(direct);
      expect(forwarded[0]).to.match(/^HTTP\/1\.1 417 [^]*connection: close/i);
    } finally {
      await twins.close();
    }
  });

  it('is let in once where the router reads its body to find the session', async () => {
    const bodies: string[] = [];
    const twins = await startTwins(() => {
      const serve = (request: IncomingMessage, response: ServerResponse): void =>
        void read(request).then(({ body }) => (bodies.push(body), response.end()));
      return createServer(serve).on('checkContinue', (request, response) => {
        response.writeContinue();
        serve(request, response);
      });
    });
    try {
      bodies.length = 0;
      const body = JSON.stringify({ resources_session_id: 'hop' });
      const wire = new Wire(twins.forwarded);
      wire.send(head('POST /seed_session HTTP/1.1', `Content-Length: ${body.length}`, 'Expect: 100-continue'));
      expect(await wire.until('\r\n\r\n')).to.equal('HTTP/1.1 100 Continue\r\n\r\n');
      wire.send(body);
      expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 /);
      expect(bodies).to.deep.equal([body]);
    } finally {
      await twins.close();
    }
  });
});

describe('a reply to a request whose body is still arriving', () => {
  it('reaches the client at once, and the connection can be used again', async () => {
    const twins = await startTwins(() => createServer(seeded((request, response) => response.end(request.url))));
    try {
      for (const port of [twins.direct, twins.forwarded]) {
        const size = 5 * 1024 * 1024;
        const wire = new Wire(port);
        wire.send(head('POST /early HTTP/1.1', sessionCookie, 'Connection: keep-alive', `Content-Length: ${size}`));
        expect(await wire.until('/early')).to.match(/^HTTP\/1\.1 200 /);
        wire.send(Buffer.alloc(size, smuggled));
        wire.send(head('GET /late HTTP/1.1', sessionCookie));
        expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 [^]*\/late$/);
      }
    } finally {
      await twins.close();
    }
  });

  it('still lets the app read that body to its end', async () => {
    const front = await startFront();
    const length = new Promise<number>((resolve) => {
      void front.serve((request, response) => {
        response.end('early');
        void read(request).then(({ body }) => resolve(body.length));
      });
    });
    try {
      const wire = new Wire(front.port);
      wire
        .send(head('POST / HTTP/1.1', 'Connection: keep-alive', 'Content-Length: 200000'))
        .send(Buffer.alloc(100_000));
      await wire.until('early');
      wire.send(Buffer.alloc(100_000));
      expect(await length).to.equal(200_000);
      wire.socket.destroy();
    } finally {
      await front.close();
    }
  });
});

describe('a large body', () => {
  const chunk = randomBytes(1024 * 1024);
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  function hashOf(mebibytes: number): string {
    const hash = createHash('sha256');
    for (let index = 0; index < mebibytes; index++) hash.update(chunk);
    return hash.digest('hex');
  }

  function body(mebibytes: number, onChunk: () => void = () => undefined): Readable {
    return Readable.from(
      (function* () {
        for (let index = 0; index < mebibytes; index++) {
          onChunk();
          yield chunk;
        }
      })(),
    );
  }

  async function hashed(stream: Readable): Promise<string> {
    const hash = createHash('sha256');
    for await (const bytes of stream) hash.update(bytes as Buffer);
    return hash.digest('hex');
  }

  function post(fields: Record<string, string | number> = {}) {
    const request = httpRequest({ ...front.port, method: 'POST', headers: fields });
    return { request, reply: once(request, 'response').then(([reply]) => reply as IncomingMessage) };
  }

  for (const mebibytes of [9, 50]) {
    for (const framing of ['in chunks', 'of a known length']) {
      it(`of ${mebibytes} MiB ${framing} crosses both ways`, async () => {
        const fields = framing === 'in chunks' ? {} : { 'Content-Length': mebibytes * chunk.length };
        await front.serve(async (request, response) => {
          response.writeHead(200, { 'X-Hash': await hashed(request), ...fields });
          body(mebibytes).pipe(response);
        });
        const { request, reply } = post(fields);
        body(mebibytes).pipe(request);
        const { headers } = await reply;
        expect(headers['x-hash']).to.equal(hashOf(mebibytes));
        expect(await hashed(await reply)).to.equal(hashOf(mebibytes));
      });
    }
  }

  /** How far ahead of its reader a writer may be: socket buffers of two connections, and those of their streams. */
  const lead = 24;

  it('waits for a slow client, so that memory stays flat', async () => {
    let [written, consumed, furthest] = [0, 0, 0];
    await front.serve((request, response) => {
      request.resume();
      body(96, () => (furthest = Math.max(furthest, ++written - consumed / chunk.length))).pipe(response);
    });
    const { request, reply } = post();
    request.end();
    for await (const bytes of await reply) {
      consumed += (bytes as Buffer).length;
      await turn();
    }
    expect(consumed).to.equal(96 * chunk.length);
    expect(furthest).to.be.below(lead);
  });

  it('waits for a slow app, so that memory stays flat', async () => {
    let [written, consumed, furthest] = [0, 0, 0];
    await front.serve(async (request, response) => {
      for await (const bytes of request) {
        consumed += (bytes as Buffer).length;
        await turn();
      }
      response.end();
    });
    const { request, reply } = post();
    body(96, () => (furthest = Math.max(furthest, ++written - consumed / chunk.length))).pipe(request);
    (await reply).resume();
    expect(consumed).to.equal(96 * chunk.length);
    expect(furthest).to.be.below(lead);
  });
});

describe('a client that leaves', () => {
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  /** Serves an app; resolves with the requests that it was given and how each of their replies closed. */
  async function serve(app: (request: IncomingMessage, response: ServerResponse) => void) {
    const arrivals: (() => void)[] = [];
    const left: string[] = [];
    await front.serve((request, response) => {
      request.on('error', () => undefined);
      response.once('close', () => left.push(`${request.url} ${response.writableFinished ? 'finished' : 'left'}`));
      app(request, response);
      arrivals.shift()?.();
    });
    const arrival = (): Promise<void> => new Promise((resolve) => arrivals.push(resolve));
    return { left, arrival };
  }

  it('before the reply aborts the request of the claimant', async () => {
    const { left, arrival } = await serve(() => undefined);
    const arrived = arrival();
    const wire = new Wire(front.port).send(head('GET /a HTTP/1.1'));
    await arrived;
    wire.socket.destroy();
    await until(() => left.length > 0, 'the claimant sees it');
    expect(left).to.deep.equal(['/a left']);
  });

  it('in the middle of its body aborts the request of the claimant', async () => {
    for (const framing of ['Transfer-Encoding: chunked', 'Content-Length: 100']) {
      const aborted = new Promise<boolean>((resolve) => {
        void serve((request) => void closed(request.resume()).then(() => resolve(request.complete)));
      });
      await until(() => front.server.listening, 'it listens');
      const wire = new Wire(front.port).send(`${head('POST /a HTTP/1.1', framing)}5\r\nhello\r\n`);
      await once(front.server, 'request');
      wire.socket.destroy();
      expect(await aborted).to.equal(false);
      await front.close();
      front = await startFront();
    }
  });

  it('in the middle of the reply aborts the request of the claimant', async () => {
    const { left } = await serve((_request, response) => {
      response.write('first');
      Readable.from(
        (function* () {
          for (;;) yield Buffer.alloc(65_536);
        })(),
      ).pipe(response);
    });
    const wire = new Wire(front.port).send(head('GET /a HTTP/1.1'));
    await wire.until('first');
    wire.socket.destroy();
    await until(() => left.length > 0, 'the claimant sees it');
    expect(left).to.deep.equal(['/a left']);
  });

  it('with replies to pipelined requests still to come aborts all of them', async () => {
    const warnings: Error[] = [];
    const note = (warning: Error): void => void warnings.push(warning);
    process.on('warning', note);
    const { left, arrival } = await serve((request) => void request.resume());
    const targets = Array.from({ length: 20 }, (_, index) => `/${index}`);
    const arrived = targets.map(arrival);
    const wire = new Wire(front.port);
    for (const target of targets) {
      wire.send(`${head(`POST ${target} HTTP/1.1`, 'Content-Length: 2', 'Connection: keep-alive')}hi`);
    }
    await Promise.all(arrived);
    wire.socket.destroy();
    await until(() => left.length === targets.length, 'the claimant sees it');
    expect(left.toSorted()).to.deep.equal(targets.map((target) => `${target} left`).toSorted());
    process.off('warning', note);
    expect(warnings).to.deep.equal([]);
  });

  it('at any of these moments, 500 times over, leaves nothing open and no listener', async () => {
    const { left } = await serve((request, response) => {
      request.resume();
      if (request.url === '/stream') response.write('first');
    });
    const resources = (): number => process.getActiveResourcesInfo().filter((each) => /Pipe|TCP/.test(each)).length;
    const before = resources();
    for (let index = 0; index < 500; index++) {
      const wire = new Wire(front.port);
      if (index % 3 === 0) wire.send(`${head('POST /upload HTTP/1.1', 'Content-Length: 100')}part`);
      else wire.send(head(`GET /${index % 3 === 1 ? 'stream' : 'hang'} HTTP/1.1`));
      if (index % 3 === 1) await wire.until('first');
      else await once(front.server, 'request');
      wire.socket.destroy();
    }
    await until(() => resources() <= before, 'everything is closed');
    expect(left.filter((each) => each === '/stream left')).to.have.length(167);
    const connections = await new Promise((resolve) => front.server.getConnections((_error, count) => resolve(count)));
    expect(connections).to.equal(0);
  });

  it('never makes listeners pile up on a connection that lasts', async () => {
    await front.serve((_request, response) => response.end('ok'));
    const sockets: IncomingMessage['socket'][] = [];
    front.server.prependListener('request', (request) => sockets.push(request.socket));
    const wire = new Wire(front.port);
    const listeners: number[] = [];
    for (let index = 0; index < 500; index++) {
      wire.send(head('GET / HTTP/1.1', 'Connection: keep-alive'));
      await wire.until('ok');
      const [socket] = sockets;
      listeners.push(socket!.eventNames().reduce((sum, event) => sum + socket!.listenerCount(event), 0));
    }
    expect(new Set(sockets).size).to.equal(1);
    expect(new Set(listeners).size).to.equal(1);
    wire.socket.destroy();
  });
});
