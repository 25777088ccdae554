import { expect } from 'chai';
import { once } from 'node:events';
import { Agent, request, type IncomingMessage } from 'node:http';
import { connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { resources } from '../lib/session-kinds.ts';
import {
  Client,
  cookieOf,
  Gate,
  portOf,
  probe,
  startWorkers,
  until,
  type Worker,
  type Workers,
} from './fixtures/routed.ts';

describe('close() of a server that listen() made', function () {
  this.timeout(10_000);

  let workers: Workers;
  let port: number;
  let begun: Gate;
  let end: Gate;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const sockets: Socket[] = [];

  beforeEach(async () => {
    [begun, end] = [new Gate(), new Gate()];
    const makeApp = (routing: Worker['routing'], index: number) =>
      probe(routing, index, {
        onRequest({ path }) {
          if (path !== '/slow') return undefined;
          begun.open();
          return end.opened;
        },
      });
    workers = await startWorkers(makeApp, { kind: resources() });
    port = portOf(at(0).server);
    expect((await new Client().post(`${at(1).url}/seed_session`, { resources_session_id: 's' })).status).to.equal(200);
  });

  afterEach(async () => {
    end.open();
    for (const socket of sockets.splice(0)) socket.destroy();
    agent.destroy();
    await workers.close();
  });

  function at(index: number): Worker {
    return workers.all[index] as Worker;
  }

  /** A request to the first worker, of the session that the second one holds or of none, on one connection with all others. */
  async function get(path: string, ofSession: boolean): Promise<{ head: IncomingMessage; worker: number }> {
    const headers = ofSession ? { cookie: cookieOf('s') } : {};
    const call = request({ port, host: '127.0.0.1', path, agent, headers }).end();
    const [head] = (await once(call, 'response')) as [IncomingMessage];
    return { head, worker: JSON.parse(await text(head)).worker };
  }

  /** A connection of its own to the first worker, on which some bytes have arrived. */
  async function connection(bytes: string): Promise<Socket> {
    const { server } = at(0);
    const accepted = once(server, 'connection') as Promise<[Socket]>;
    const socket = connect(port, '127.0.0.1', () => socket.write(bytes));
    socket.on('error', () => undefined);
    sockets.push(socket);
    const [other] = await accepted;
    await until(() => other.bytesRead === bytes.length, 'the bytes have arrived');
    return socket;
  }

  async function closes(): Promise<void> {
    await at(0).routing.close();
    expect(at(0).server.listening).to.equal(false);
  }

  for (const ofSession of [false, true]) {
    it(`says in the next reply${ofSession ? ' of a sibling' : ''} that the connection ends, and takes no more on it`, async () => {
      const slow = get('/slow', ofSession);
      await begun.opened;
      const closed = closes();
      end.open();
      expect((await slow).head.headers).to.include({ connection: 'keep-alive' });
      const { head, worker } = await get('/', ofSession);
      expect(worker).to.equal(ofSession ? 1 : 0);
      expect(head.headers).to.include({ connection: 'close' }).and.not.have.property('keep-alive');
      expect(await get('/', ofSession).catch((error: NodeJS.ErrnoException) => error.code)).to.equal('ECONNREFUSED');
      await closed;
    });
  }

  for (const [what, bytes] of Object.entries({ nothing: '', 'half a head': 'GET / HTTP/1.1\r\nHo' })) {
    it(`ends a connection on which ${what} has come`, async () => {
      const socket = await connection(bytes);
      socket.resume();
      await Promise.all([closes(), once(socket, 'close')]);
    });
  }

  it('serves a request that comes as its connection is about to be ended', async () => {
    const socket = await connection('GET / HTTP/1.1\r\n');
    const closed = closes();
    socket.write('Host: localhost\r\n\r\n');
    expect(await text(socket)).to.match(/^HTTP\/1\.1 200 OK\r\n[^]*\r\nConnection: close\r\n[^]*\{"worker":0\}$/);
    await closed;
  });

  it('waits for a request under way, and for its body', async () => {
    at(0).server.keepAliveTimeout = 60_000;
    const socket = await connection('POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n');
    let isClosed = false;
    const closed = closes().then(() => (isClosed = true));
    await new Promise((waited) => setTimeout(waited, 1_500)); // longer than a connection without a request is kept
    socket.write('{}');
    await begun.opened;
    expect(isClosed).to.equal(false);
    end.open();
    expect(await text(socket)).to.match(/^HTTP\/1\.1 200 OK\r\n/);
    await closed;
  });

  it('leaves a connection to the app that it has made a tunnel of (CONNECT)', async () => {
    at(0).server.on('connect', (_request, socket: Socket) => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
      socket.on('end', () => socket.end('over'));
    });
    const socket = await connection('CONNECT other:1 HTTP/1.1\r\nHost: other:1\r\n\r\n');
    const closed = closes();
    await new Promise((waited) => setTimeout(waited, 1_500));
    socket.end();
    expect(await text(socket)).to.match(/over$/);
    await closed;
  });
});
