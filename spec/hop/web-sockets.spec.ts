import { expect } from 'chai';
import express from 'express';
import { on, once } from 'node:events';
import { createServer, ServerResponse, type IncomingMessage, type Server } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import { WebSocket, WebSocketServer, type ServerOptions } from 'ws';
import type { SessionRouting } from '../../lib/session-routing.ts';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { seeded, sessionCookie, startTwins, type MakeServer, type Twins } from '../fixtures/hop-twins.ts';
import type { Port } from '../fixtures/hop-wire.ts';

/** A server's side of a WebSocket: an echo that knows some commands, and says how it was closed. */
function serve(socket: WebSocket, request: IncomingMessage, worker: number): void {
  const { url, headers, socket: connection } = request;
  const { upgrade, 'x-last': last } = headers;
  socket.send(JSON.stringify({ worker, url, upgrade, last, from: connection.remoteAddress }));
  socket.on('message', (data: Buffer, isBinary) => {
    const [command, ...rest] = isBinary ? [] : data.toString().split(' ');
    if (command === 'close') socket.close(Number(rest[0]), rest[1]);
    else if (command === 'terminate') socket.terminate();
    else if (command === 'ping') socket.ping('marco');
    else socket.send(data, { binary: isBinary });
  });
  socket.on('pong', (pong) => socket.send(`answered ${pong.toString()}`));
  socket.on('error', () => undefined);
}

/** A client's side of a WebSocket, and the messages that come, one after another. */
interface Client {
  readonly client: WebSocket;
  next(): Promise<{ text: string; isBinary: boolean }>;
}

/** What a client does; returns what it got. */
type Conversation = (client: Client) => Promise<unknown>;

async function closing(client: WebSocket): Promise<unknown> {
  const [code, reason] = (await once(client, 'close')) as [number, Buffer];
  return [code, reason.toString()];
}

const conversations: Readonly<Record<string, Conversation>> = {
  async 'a text comes back'({ client, next }) {
    client.send('grüße');
    return next();
  },
  async 'bytes come back'({ client, next }) {
    client.send(Buffer.from([0, 255, 13, 10]));
    return next();
  },
  async 'a message of 1 MiB comes back'({ client, next }) {
    client.send(Buffer.alloc(1_048_576, 'abcdefgh'));
    const { text, isBinary } = await next();
    return [text === 'abcdefgh'.repeat(131_072), text.length, isBinary];
  },
  async 'a message in fragments comes back'({ client, next }) {
    for (const part of ['a', 'b', '']) client.send(part, { fin: part === '' });
    return next();
  },
  async 'a hundred messages come back in order'({ client, next }) {
    for (let index = 0; index < 100; index++) client.send(`${index}`);
    const all: string[] = [];
    while (all.length < 100) all.push((await next()).text);
    return all;
  },
  async 'a ping is answered'({ client }) {
    client.ping('polo');
    return String((await once(client, 'pong'))[0]);
  },
  async 'a ping of the server is answered'({ client, next }) {
    client.send('ping');
    return [String((await once(client, 'ping'))[0]), await next()];
  },
  async 'the client closes with a code and a reason'({ client }) {
    client.close(4001, 'enough');
    return closing(client);
  },
  async 'the client closes without a code'({ client }) {
    client.close();
    return closing(client);
  },
  async 'the server closes with a code and a reason'({ client }) {
    client.send('close 4002 bye');
    return closing(client);
  },
  async 'the server breaks off'({ client }) {
    client.send('terminate');
    return closing(client);
  },
  async 'the client breaks off'({ client }) {
    client.terminate();
    return closing(client);
  },
};

/** Ways in which an app takes WebSockets. */
const takings: Readonly<
  Record<string, (server: Server, routing: SessionRouting, worker: number, options: ServerOptions) => WebSocketServer>
> = {
  'listens on the server itself'(server, _routing, worker, options) {
    const webSockets = new WebSocketServer({ ...options, server });
    return webSockets.on('connection', (socket, request) => serve(socket, request, worker));
  },
  'hands over what it listens for'(server, _routing, worker, options) {
    const webSockets = new WebSocketServer({ ...options, noServer: true });
    server.on('upgrade', (request, socket, early) => {
      webSockets.handleUpgrade(request, socket, early, (client) => serve(client, request, worker));
    });
    return webSockets;
  },
  'is mounted, behind the session'(server, routing, worker, options) {
    const webSockets = new WebSocketServer({ ...options, noServer: true });
    const session = routing.session({ resave: false, saveUninitialized: false });
    const app = express().use('/mounted', session, (request) => {
      const { socket, early } = request as unknown as { socket: Socket; early: Buffer };
      webSockets.handleUpgrade(request, socket, early, (client) => serve(client, request, worker));
    });
    server.on('upgrade', (request, _socket, early) =>
      app(Object.assign(request, { early }), new ServerResponse(request)),
    );
    return webSockets;
  },
};

const deflating: ServerOptions = { perMessageDeflate: { threshold: 0 } };

for (const [taking, take] of Object.entries(takings)) {
  for (const [how, options, tls] of [
    ['', {}, undefined],
    [', deflated', deflating, undefined],
    [', over https', {}, selfSigned()],
  ] as const) {
    describe(`a WebSocket to an app that ${taking}${how}`, () => {
      let twins: Twins;
      const sides: WebSocketServer[] = [];

      before(async () => {
        const app = seeded((_request, response) => response.end());
        const makeServer: MakeServer = (routing, worker) => {
          const server = tls ? createHttpsServer(tls, app) : createServer(app);
          sides.push(take(server as Server, routing, worker, options));
          return server;
        };
        twins = await startTwins(makeServer, { tls: tls ?? false });
      });
      after(() => twins.close());
      afterEach(() => {
        for (const served of sides.flatMap(({ clients }) => [...clients])) served.terminate();
      });

      /** Opens a WebSocket, converses, leaves, and returns what either side saw of it. */
      async function converse({ port }: Port, conversation: Conversation): Promise<object> {
        const headers = { Cookie: sessionCookie.slice('Cookie: '.length), 'X-Last': '1' };
        const url = `${tls ? 'wss' : 'ws'}://127.0.0.1:${port}/mounted?a=1&&b=%2F`;
        const client = new WebSocket(url, { headers, rejectUnauthorized: false });
        const messages = on(client, 'message');
        const next: Client['next'] = async () => {
          const { value } = (await messages.next()) as { value: [Buffer, boolean] };
          return { text: value[0].toString('latin1'), isBinary: value[1] };
        };
        const greeting = await next();
        const [served] = sides.flatMap(({ clients }) => [...clients]);
        const left = once(served!, 'close');
        const got = await conversation({ client, next });
        client.terminate();
        const [code, reason] = (await left) as [number, Buffer];
        return { greeting, got, extensions: client.extensions, left: [code, reason.toString()] };
      }

      for (const [name, conversation] of Object.entries(conversations)) {
        it(name, async () => {
          const direct = await converse(twins.direct, conversation);
          const forwarded = await converse(twins.forwarded, conversation);
          expect(forwarded).to.deep.equal(direct);
          expect(JSON.stringify(forwarded)).to.contain('\\"worker\\":0').and.contain('\\"from\\":\\"127.0.0.1\\"');
          expect(forwarded).to.include({ extensions: how === ', deflated' ? 'permessage-deflate' : '' });
        });
      }
    });
  }
}
