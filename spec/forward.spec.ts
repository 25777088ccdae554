import { expect } from 'chai';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { setImmediate as turn } from 'node:timers/promises';
import { closed, startFront, type Front } from './fixtures/hop-front.ts';
import { head, Wire } from './fixtures/hop-wire.ts';
import { until } from './fixtures/routed.ts';

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
