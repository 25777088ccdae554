import { expect } from 'chai';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import type { Server, Socket } from 'node:net';
import { Readable } from 'node:stream';
import { resources } from '../../lib/session-kinds.ts';
import { startFront, type Front } from '../fixtures/hop-front.ts';
import { chunked, head, talk, Wire, type Port } from '../fixtures/hop-wire.ts';
import { cookieOf, listening, portOf, startWorkers, until, type Workers } from '../fixtures/routed.ts';

const repeats = 1_000;

interface Moment {
  readonly text: string;
  /** What the client waits for before it leaves; else for the app to have the request. */
  readonly awaits?: string;
}

/** When clients leave, given the fields that all of their requests have. */
function momentsOf(...fields: string[]): Moment[] {
  const part = `${head('POST /hang HTTP/1.1', ...fields, 'Content-Length: 100')}part`;
  const get = head('GET /hang HTTP/1.1', ...fields, 'Connection: keep-alive');
  return [
    { text: get },
    { text: part },
    { text: `${head('POST /hang HTTP/1.1', ...fields, 'Content-Length: 5')}whole` },
    { text: `${head('POST /hang HTTP/1.1', ...fields, 'Transfer-Encoding: chunked')}4\r\npart\r\n` },
    { text: head('POST /hang HTTP/1.1', ...fields, 'Transfer-Encoding: chunked') + chunked(['whole'], ['X-T: 1']) },
    {
      text: head('POST /hang HTTP/1.1', ...fields, 'Content-Length: 4', 'Expect: 100-continue'),
      awaits: '100 Continue',
    },
    { text: part.replace('hang', 'stream'), awaits: 'first' },
    { text: part.replace('hang', 'whole'), awaits: 'whole' },
    { text: get.replace('hang', 'stream'), awaits: 'first' },
    { text: get.replace('hang', 'flood'), awaits: '\0' },
    { text: get.replace('hang', 'whole'), awaits: 'whole' },
    { text: get.repeat(3) },
    { text: get.replace('hang', 'stream') + get.repeat(3), awaits: 'first' },
  ];
}

/** Serves what these requests ask for, and says when one has arrived. */
function appFor(arrived: (request: IncomingMessage, response: ServerResponse) => void): RequestListener {
  return (request, response) => {
    request.on('error', () => undefined);
    request.resume();
    if (request.url === '/stream') response.write('first');
    if (request.url === '/whole') response.end('whole');
    if (request.url === '/flood') Readable.from(flood()).pipe(response);
    arrived(request, response);
  };
}

function* flood(): Generator<Buffer> {
  for (;;) yield Buffer.alloc(65_536);
}

/** Asks for something and leaves. */
async function leave(port: Port, { text, awaits }: Moment, arrival: () => Promise<unknown>): Promise<void> {
  const arrives = arrival();
  const wire = new Wire(port).send(text);
  if (awaits === undefined) await arrives;
  else await wire.until(awaits);
  wire.socket.destroy();
}

describe('clients that leave', () => {
  let front: Front;

  beforeEach(async () => (front = await startFront()));
  afterEach(() => front.close());

  it('with replies to pipelined requests still to come are missed by all of these', async () => {
    const warnings: Error[] = [];
    const note = (warning: Error): void => void warnings.push(warning);
    process.on('warning', note);
    const arrived: string[] = [];
    const left: string[] = [];
    await front.serve((request, response) => {
      request.resume();
      arrived.push(request.url!);
      response.once('close', () => left.push(`${request.url} ${response.writableFinished ? 'finished' : 'left'}`));
    });
    const targets = Array.from({ length: 20 }, (_, index) => `/${index}`);
    const wire = new Wire(front.port);
    for (const target of targets) {
      wire.send(`${head(`POST ${target} HTTP/1.1`, 'Content-Length: 2', 'Connection: keep-alive')}hi`);
    }
    await until(() => arrived.length === targets.length, 'all requests have arrived');
    wire.socket.destroy();
    await until(() => left.length === targets.length, 'the claimant sees it');
    expect(left.toSorted()).to.deep.equal(targets.map((target) => `${target} left`).toSorted());
    process.off('warning', note);
    expect(warnings).to.deep.equal([]);
  });

  it('while their session is looked up have no request started', async () => {
    const served: unknown[] = [];
    await front.serve((request, response) => (served.push(request.url), response.end()));
    const late = await listening(
      createServer((request, response) => {
        request.socket.once('close', () =>
          front.forwarder.forward(request, response, { socketPath: front.socketPath }),
        );
        request.socket.destroy();
      }),
    );
    for (const { text } of momentsOf()) await talk({ port: portOf(late) }, text);
    late.close();
    await talk(front.port, head('GET /later HTTP/1.1'));
    expect(served).to.deep.equal(['/later']);
  });

  it(`at any moment, ${repeats} times over, leave nothing open and no listener`, async () => {
    const claimant = createServer(appFor(() => claimant.emit('arrived')));
    await front.serve(claimant);
    const open = (): number => process.getActiveResourcesInfo().filter((each) => /Pipe|TCP|Timeout/.test(each)).length;
    const listeners = (): unknown[] =>
      [process, front.server, claimant].map((each) => each.eventNames().map((event) => each.listenerCount(event)));
    const moments = momentsOf();
    const [before, listenersBefore] = [open(), listeners()];
    for (let index = 0; index < repeats; index++) {
      await leave(front.port, moments[index % moments.length]!, () => once(claimant, 'arrived'));
      if (index % 10 > 0) continue;
      // Nothing of them is left for whoever comes next.
      expect(await talk(front.port, head('GET /whole HTTP/1.1'))).to.match(/^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nwhole$/);
    }
    front.forwarder.close(); // lets idle connections go
    await until(() => open() <= before, 'everything is closed');
    expect(listeners()).to.deep.equal(listenersBefore);
    expect(await connectionsOf(front.server)).to.equal(0);
  });

  it('never make listeners pile up on connections that last', async () => {
    const sockets = new Set<Socket>();
    const note = (request: IncomingMessage): unknown => sockets.add(request.socket);
    // (What an app sees of a pooled socket is made for each request.)
    const claimant = createServer((_request, response) => response.end('ok'));
    await front.serve(claimant);
    front.server.prependListener('request', note);
    const wire = new Wire(front.port);
    const counts = new Set<number>();
    for (let index = 0; index < 500; index++) {
      wire.send(head('GET / HTTP/1.1', 'Connection: keep-alive'));
      await wire.until('ok');
      for (const socket of sockets) {
        counts.add(socket.eventNames().reduce((sum, event) => sum + socket.listenerCount(event), 0));
      }
    }
    expect(sockets.size).to.equal(1);
    expect(counts.size).to.equal(1);
    wire.socket.destroy();
  });
});

describe('the claims of sessions whose clients leave', () => {
  let workers: Workers;
  let open: Map<string, ServerResponse>;
  let arrived: () => void;

  beforeEach(async () => {
    open = new Map();
    arrived = () => undefined;
    const app = appFor((request, response) => {
      open.set(request.headers['x-name'] as string, response);
      arrived();
    });
    const kind = resources({ closeRetryWindowSeconds: 0.1 });
    workers = await startWorkers(() => app, { kind });
  });
  afterEach(() => workers.close());

  const arrival = (): Promise<void> => new Promise((resolve) => (arrived = resolve));
  const ports = (): Record<string, Port> => {
    const [direct, forwarded] = workers.all.map(({ server }) => ({ port: portOf(server) }));
    return { direct: direct!, forwarded: forwarded! };
  };

  for (const way of ['direct', 'forwarded']) {
    it(`stay while a stream is open, and go once its client has left (${way})`, async () => {
      const cookie = `Cookie: ${cookieOf('a')}`;
      const first = new Wire(ports()['direct']!).send(head('GET /stream HTTP/1.1', cookie));
      await first.until('first');
      const stream = new Wire(ports()[way]!).send(head('GET /stream HTTP/1.1', cookie));
      await stream.until('first');
      first.socket.destroy();
      await leave(ports()['direct']!, { text: head('GET /stream HTTP/1.1', `Cookie: ${cookieOf('b')}`) }, arrival);
      await until(() => workers.claims().length === 1, 'the claim of a later session has gone');
      expect(workers.claimantOf('a')).to.equal(0);
      stream.socket.destroy();
      await until(() => workers.claims().length === 0, 'the claim has gone');
    });

    it(`go, ${repeats} times over (${way})`, async () => {
      for (let index = 0; index < repeats; index++) {
        const cookie = `Cookie: ${cookieOf(`session ${index}`)}`;
        // Another request keeps the session where it is until the one that matters has arrived.
        const first = new Wire(ports()['direct']!).send(head('GET /stream HTTP/1.1', cookie));
        await first.until('first');
        const moments = momentsOf(cookie);
        await leave(ports()[way]!, moments[index % moments.length]!, arrival);
        first.socket.destroy();
      }
      await until(() => workers.claims().length === 0, 'all claims have gone');
    });
  }
});

function connectionsOf(server: Server): Promise<number> {
  return new Promise((resolve) => server.getConnections((_error, count) => resolve(count)));
}
