import { expect } from 'chai';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { Server as SocketServer, type Socket as Served } from 'socket.io';
import { io, type ManagerOptions, type Socket, type SocketOptions } from 'socket.io-client';
import { apps } from '../fixtures/hop-apps.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import type { Port } from '../fixtures/hop-wire.ts';

/** What the app's side of a socket answers, and tells of its client. */
function serve(sockets: SocketServer, worker: number): void {
  sockets.on('connection', (socket) => {
    const { address, headers, secure } = socket.handshake;
    socket.emit('welcome', { worker, address, secure, last: headers['x-last'] });
    socket.on('echo', (value: unknown, answer: (value: unknown) => void) => answer(value));
    socket.on('tell all', (value: unknown) => sockets.emit('told', value));
    socket.on('leave me', () => socket.disconnect(true));
    socket.on('transport', (answer: (name: string) => void) => answer(socket.conn.transport.name));
  });
}

type Talk = Partial<ManagerOptions & SocketOptions>;

/** Ways in which a client speaks. */
const transports: Readonly<Record<string, Talk>> = {
  'by polls, and then by a WebSocket': {},
  'by polls only': { transports: ['polling'] },
  'by a WebSocket only': { transports: ['websocket'] },
  'by a WebSocket, or else by polls': { transports: ['websocket', 'polling'] },
};

for (const [kind, makeApp] of Object.entries(apps)) {
  for (const isLate of [false, true]) {
    describe(`Socket.IO on a server ${isLate ? 'that is routed already' : 'that is then routed'} (${kind})`, () => {
      let twins: Twins;
      const sockets: SocketServer[] = [];
      const clients: Socket[] = [];

      before(async () => {
        const app: RequestListener = makeApp(seeded((request, response) => response.end(`served ${request.url}`)));
        const listen = (server: Server, worker: number): void => {
          const made = new SocketServer(server, { transports: ['polling', 'websocket'], perMessageDeflate: true });
          serve(made, worker);
          sockets.push(made);
        };
        twins = await startTwins((_routing, worker) => {
          const server = createServer(app);
          if (!isLate) listen(server, worker);
          return server;
        });
        if (isLate) twins.servers.forEach((server, worker) => listen(server as Server, worker));
      });
      afterEach(() => {
        for (const client of clients.splice(0)) client.disconnect();
      });
      after(async () => {
        await twins.close();
        for (const each of sockets) each.engine.close();
      });

      /** Connects a client that has the session, and waits for the app's welcome. */
      async function connect({ port }: Port, talk: Talk): Promise<{ client: Socket; welcome: unknown }> {
        const extraHeaders = { Cookie: sessionCookie.slice('Cookie: '.length), 'X-Last': '1' };
        const client = io(`http://127.0.0.1:${port}`, { extraHeaders, forceNew: true, reconnection: false, ...talk });
        clients.push(client);
        const [welcome] = await received(client, 'welcome');
        return { client, welcome };
      }

      for (const [how, talk] of Object.entries(transports)) {
        it(`speaks ${how} as with one worker`, async () => {
          const told: unknown[] = [];
          for (const port of [twins.direct, twins.forwarded]) {
            const { client, welcome } = await connect(port, talk);
            const { engine } = client.io;
            const upgrades = how.includes('then');
            if (upgrades && engine.transport.name !== 'websocket')
              await new Promise((resolve) => engine.once('upgrade', resolve));
            const echoes = [await client.emitWithAck('echo', { a: ['grüße', null] })];
            const bytes = (await client.emitWithAck('echo', Buffer.alloc(100_000, 'x'))) as Buffer;
            echoes.push(bytes.length, Buffer.isBuffer(bytes));
            const ofApp = upgrades ? await until(client) : await client.emitWithAck('transport');
            client.emit('leave me');
            const [reason] = await received(client, 'disconnect');
            told.push({ welcome, echoes, transport: engine.transport.name, ofApp, reason });
          }
          expect(told[1]).to.deep.equal(told[0]);
          expect(told[1]).to.deep.nested.include({ 'welcome.worker': 0, 'welcome.address': '127.0.0.1' });
          expect(told[1]).to.include({ transport: how.includes('polls only') ? 'polling' : 'websocket' });
        });
      }

      it('tells all clients of a session the same, wherever they came in', async () => {
        const one = await connect(twins.direct, {});
        const other = await connect(twins.forwarded, {});
        const all = Promise.all([one, other].map(({ client }) => received(client, 'told')));
        other.client.emit('tell all', 'news');
        expect(await all).to.deep.equal([['news'], ['news']]);
      });

      it('sees its clients leave', async () => {
        for (const port of [twins.direct, twins.forwarded]) {
          for (const talk of Object.values(transports)) {
            const connected = once(sockets[0]!, 'connection');
            const { client } = await connect(port, talk);
            const [served] = (await connected) as [Served];
            const left = once(served, 'disconnect');
            client.disconnect();
            expect(await left).to.include('client namespace disconnect');
          }
        }
      });

      it('leaves other requests to the app', async () => {
        const bodies: string[] = [];
        for (const { port } of [twins.direct, twins.forwarded]) {
          const [, cookie = ''] = sessionCookie.split(': ');
          const reply = await fetch(`http://127.0.0.1:${port}/other`, { headers: { cookie } });
          bodies.push(await reply.text());
        }
        expect(bodies).to.deep.equal(['served /other', 'served /other']);
      });
    });
  }
}

/** The arguments of an event that a client receives next. */
function received(client: Socket, event: string): Promise<unknown[]> {
  return new Promise((resolve, reject) => {
    client.once(event, (...values: unknown[]) => resolve(values));
    client.once('connect_error', reject);
  });
}

/** Asks the app until it, too, has seen that its client speaks by a WebSocket. */
async function until(client: Socket): Promise<string> {
  for (;;) {
    const name = (await client.emitWithAck('transport')) as string;
    if (name === 'websocket') return name;
  }
}
