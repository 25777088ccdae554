import { expect } from 'chai';
import type { Server } from 'node:http';
import { WebSocketServer, type ServerOptions, type WebSocket } from 'ws';
import { family, type Case } from '../fixtures/hop-family.ts';
import { comparable, sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

/** A frame as a client sends it, under a mask of zeros. */
function frame(opcode: number, payload: string): string {
  return String.fromCharCode(0x80 | opcode, 0x80 | payload.length, 0, 0, 0, 0) + payload;
}

const hello = frame(1, 'hello');
const ping = frame(9, 'are you there');
const goodbye = frame(8, '\x03\xe8done');

const key = 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==';
const version = 'Sec-WebSocket-Version: 13';

interface Handshake {
  readonly requestLine?: string;
  readonly fields?: readonly string[];
  /** What comes right behind the handshake. */
  readonly early?: string;
  readonly status: number;
}

const fine = [key, version];

const handshakes: Readonly<Record<string, Handshake>> = {
  'with frames in the same packet': { early: hello + ping + goodbye, status: 101 },
  'with half a frame in the same packet': { early: hello.slice(0, 4), status: 101 },
  'with a frame that no client may send': { early: '\x81\x05hello', status: 101 },
  'with protocols to choose from': { fields: [...fine, 'Sec-WebSocket-Protocol: chat, superchat'], status: 101 },
  'with compression': {
    fields: [...fine, 'Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-other'],
    early: goodbye,
    status: 101,
  },
  'with compression that is asked for wrongly': {
    fields: [...fine, 'Sec-WebSocket-Extensions: permessage-deflate; nonsense'],
    status: 400,
  },
  'to a path that nobody serves': { requestLine: 'GET /other HTTP/1.1', status: 400 },
  'that the app refuses': { requestLine: 'GET /refused HTTP/1.1', status: 401 },
  'that the app refuses, with frames in the same packet': {
    requestLine: 'GET /refused HTTP/1.1',
    early: hello,
    status: 401,
  },
  'without a key': { fields: [version], status: 400 },
  'of a version that there is not': { fields: [key, 'Sec-WebSocket-Version: 99'], status: 400 },
  'by POST': { requestLine: 'POST /chat HTTP/1.1', status: 405 },
  'in HTTP/1.0': { requestLine: 'GET /chat HTTP/1.0', early: hello, status: 101 },
};

const options: ServerOptions = {
  perMessageDeflate: true,
  handleProtocols: (protocols) => [...protocols].at(-1) ?? false,
};

function serve(socket: WebSocket): void {
  socket.on('error', () => undefined);
  socket.on('message', (data: Buffer) => socket.send(`you said ${data.toString()}`));
  socket.send('welcome'); // along with the handshake's reply
}

const takings: Readonly<Record<string, (server: Server) => void>> = {
  'listens on the server itself'(server) {
    const webSockets = new WebSocketServer({
      ...options,
      server,
      verifyClient: ({ req }, done) => {
        if (req.url === '/refused') return done(false, 401, 'no end', { 'WWW-Authenticate': 'Basic' });
        done(req.url === '/chat', 400);
      },
    });
    webSockets.on('connection', serve);
  },
  'hands over what it listens for'(server) {
    const webSockets = new WebSocketServer({ ...options, noServer: true, path: '/chat' });
    server.on('upgrade', (request, socket, early) => {
      if (request.url === '/refused') socket.resume().end('HTTP/1.1 401 Unauthorized\r\nX-A: 1\r\n\r\nno end');
      else webSockets.handleUpgrade(request, socket, early, serve);
    });
  },
};

for (const [taking, prepare] of Object.entries(takings)) {
  family(`the handshake of a WebSocket to an app that ${taking}`, {
    prepare,
    cases: Object.fromEntries(
      Object.entries(handshakes).map(
        ([name, { requestLine = 'GET /chat HTTP/1.1', fields = fine, early = '', status }]) => {
          const converse: Case['converse'] = async (wire) => {
            const upgrade = ['Connection: Upgrade', 'Upgrade: websocket'];
            wire.send(head(requestLine, sessionCookie, ...upgrade, ...fields) + early);
            if (status !== 101) return comparable(await wire.rest());
            const reply = await wire.until('\r\n\r\n');
            // What began with the handshake goes on behind it.
            if (name.includes('half a frame')) wire.send(hello.slice(4));
            if (!early.endsWith(goodbye)) wire.send(goodbye);
            return reply + (await wire.rest());
          };
          return [name, { converse, requests: 0 }];
        },
      ),
    ),
    textbook: ['with frames in the same packet', 'with protocols to choose from'],
    check({ reply }, name) {
      const { status, early } = handshakes[name]!;
      expect(reply).to.match(new RegExp(`^HTTP/1\\.1 ${status} `));
      if (status === 101 && early?.includes('hello') && early !== '\x81\x05hello')
        expect(reply).to.contain('said hello');
    },
  });
}
