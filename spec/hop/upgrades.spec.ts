import { expect } from 'chai';
import { once } from 'node:events';
import { ServerResponse, type IncomingMessage, type Server } from 'node:http';
import type { Socket } from 'node:net';
import { apps } from '../fixtures/hop-apps.ts';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { endsOf, named } from '../fixtures/hop-ends.ts';
import { family, type Case } from '../fixtures/hop-family.ts';
import { comparable, sessionCookie } from '../fixtures/hop-twins.ts';
import { head, type Wire } from '../fixtures/hop-wire.ts';

/** Begins to speak a protocol that answers in upper case, and says goodbye. */
function shout(socket: Socket): void {
  socket.on('data', (bytes: Buffer) => socket.write(bytes.toString('latin1').toUpperCase(), 'latin1'));
  socket.on('end', () => socket.end('BYE'));
}

const switching = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shout\r\n';
const latin1 = (text: string): Buffer => Buffer.from(text, 'latin1');

type Answer = (socket: Socket, request: IncomingMessage, early: Buffer) => void;

/** Ways in which an app takes an upgrade. */
const takings: Readonly<Record<string, Answer>> = {
  'with the first bytes right behind the head'(socket, _request, early) {
    socket.write(Buffer.concat([latin1(`${switching}\r\nhello `), early]));
    shout(socket);
  },
  'with fields of its own, repeated and in Latin-1'(socket) {
    socket.write(latin1(`${switching}X-Reply: \xe9\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\nX-Empty:\r\n\r\nhello`));
    shout(socket);
  },
  'in a head that comes in pieces'(socket) {
    const pieces = [...`${switching}\r\nhello`];
    const next = (): void => {
      const piece = pieces.shift();
      if (piece !== undefined) socket.write(piece, () => setImmediate(next));
    };
    next();
    shout(socket);
  },
  'with an interim reply ahead'(socket) {
    socket.write('HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n');
    setImmediate(() => socket.write(`${switching}\r\nhello`));
    shout(socket);
  },
  'without a reason, and by bare line feeds'(socket) {
    socket.write('HTTP/1.1 101\nUpgrade: shout\nConnection: upgrade\n\nhello');
    shout(socket);
  },
  'by a protocol that knows no HTTP'(socket) {
    socket.write(Buffer.from([0, 255, 13, 10, 13, 10, 128]));
    socket.write('hello');
    shout(socket);
  },
};

/** Ways in which an app refuses an upgrade, and closes the connection. */
const refusals: Readonly<Record<string, Answer>> = {
  'with a body of no length': (socket) =>
    socket.end('HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\n\r\nno end'),
  'with a body of a length': (socket) =>
    socket.end('HTTP/1.1 403 Nope\r\nContent-Length: 6\r\nConnection: close\r\n\r\nno end'),
  'with a body in chunks': (socket) =>
    socket.end(
      'HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nno end\r\n0\r\nX-Trailer: 1\r\n\r\n',
    ),
  'with a body that is long': (socket) =>
    socket.end(`HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n${'x'.repeat(1_000_000)} end`),
  'without a body': (socket) =>
    socket.end('HTTP/1.1 426 Upgrade Required\r\nUpgrade: other\r\nContent-Length: 0\r\n\r\n'),
  'with a success': (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfine.'),
  'with a redirection in HTTP/1.0': (socket) => socket.end('HTTP/1.0 302 Found\r\nLocation: /login\r\n\r\n'),
  'and destroys its socket once all is written': (socket) => {
    socket.write('HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\nno end');
    socket.destroySoon();
  },
  "by a reply of Node's own"(socket, request) {
    const response = new ServerResponse(request);
    response.assignSocket(socket);
    response.once('finish', () => socket.destroySoon());
    response.writeHead(404, { 'X-A': '1', Connection: 'close' }).end('nothing here');
  },
};

/** What an upgrade may look like beside that, and what may come ahead of it on its connection. */
interface Request {
  readonly requestLine?: string;
  readonly fields?: readonly string[];
  /** What comes right behind the head. */
  readonly early?: string;
  /** Whether another request, and its reply, came ahead of it on its connection. */
  readonly isSecond?: boolean;
}

const requests: Readonly<Record<string, Request>> = {
  'as a client sends it': {},
  'with its first bytes in the same packet': { early: 'early' },
  'with bytes that look like a request': { early: 'GET / HTTP/1.1\r\nHost: evil\r\n\r\n' },
  'with bytes that are no text': { early: '\0\xff\r\n\r\n\x80' },
  'with many bytes': { early: 'many'.repeat(2_500) },
  'with a length': { fields: ['Content-Length: 5'], early: 'early' },
  'on POST with a length': { requestLine: 'POST / HTTP/1.1', fields: ['Content-Length: 5'], early: 'early' },
  'with a body in chunks': { fields: ['Transfer-Encoding: chunked'], early: '5\r\nearly\r\n0\r\n\r\n' },
  'with trailers': { fields: ['Trailer: X-T'], early: 'early' },
  'that expects to continue': { fields: ['Expect: 100-continue'], early: 'early' },
  'in HTTP/1.0': { requestLine: 'GET / HTTP/1.0' },
  'behind a request on its connection': { isSecond: true },
  'of an odd target': { requestLine: 'GET //a/../b?x=1&&y=%2F..%zz HTTP/1.1' },
  'of an absolute target': { requestLine: 'GET http://other.example/a HTTP/1.1' },
  'with odd fields': { fields: ['X-A: \xe9', 'x-a: 2', 'X-Empty:', 'Keep-Alive: timeout=5', 'TE: trailers'] },
  'with a field of a hop': { fields: ['X-Session-Routing-Origin: bm9uc2Vuc2U', 'x-session-routing-Upgrade: other'] },
};

/** What an app sees of an upgrade. */
function seenOf(request: IncomingMessage, socket: Socket, early: Buffer): object {
  const { method, url, httpVersion, rawHeaders, headers, headersDistinct } = request;
  const ends = { ...endsOf(socket), ofRequest: endsOf(request.socket), isOne: request.socket === socket };
  return { method, url, httpVersion, rawHeaders, headers, headersDistinct, ends, early: early.toString('latin1') };
}

interface Exchange {
  readonly answer: Answer;
  readonly request?: Request;
  readonly isTaken?: boolean;
}

/** One upgrade at a time, and what the app saw of it. */
function upgradesWith(
  title: string,
  exchanges: Readonly<Record<string, Exchange>>,
  tls?: { key: string; cert: string },
): void {
  let current: Answer;
  const seen: object[] = [];

  const prepare = (server: Server): void =>
    void server.on('upgrade', (request, socket, early) => {
      socket.on('error', () => undefined);
      seen.push(seenOf(request, socket as Socket, early));
      current(socket as Socket, request, early);
      socket.resume();
    });

  const converse = async (wire: Wire, { answer, request = {}, isTaken = false }: Exchange): Promise<object> => {
    const { requestLine = 'GET / HTTP/1.1', fields = [], early = '', isSecond = false } = request;
    current = answer;
    seen.length = 0;
    await once(wire.socket, 'connect');
    const { localPort, remotePort } = wire.socket;
    let reply = '';
    if (isSecond) reply += await wire.send(head('GET / HTTP/1.1', sessionCookie, 'Connection: keep-alive')).until('ok');
    wire.send(head(requestLine, sessionCookie, 'Connection: Upgrade', 'upgrade: shout', ...fields) + early);
    if (isTaken) {
      reply += await wire.until('hello');
      wire.send('ping');
      reply += await wire.until('PING');
      // (Node itself ends a connection over TLS as soon as its client does.)
      if (tls === undefined) wire.socket.end();
      else wire.socket.destroy();
    }
    reply += await wire.rest();
    return {
      reply: comparable(reply),
      seen: JSON.parse(named(JSON.stringify(seen.splice(0)), { localPort, remotePort })),
    };
  };

  family(title, {
    ...(tls ? { tls, apps: { 'node:http': apps['node:http']! } } : {}),
    prepare,
    cases: Object.fromEntries(
      Object.entries(exchanges).map(([name, exchange]): [string, Case] => {
        return [name, { converse: (wire) => converse(wire, exchange), requests: exchange.request?.isSecond ? 1 : 0 }];
      }),
    ),
    textbook: Object.keys(exchanges).slice(0, 2),
    check({ reply }, name) {
      const { reply: text, seen: told } = reply as { reply: string; seen: { ends: object }[] };
      expect(told.map(({ ends }) => ends)).to.have.nested.property('[0].remotePort', 'of the client');
      if (exchanges[name]?.isTaken) expect(text).to.match(tls ? /hello[^]*PING$/ : /hello[^]*PINGBYE$/);
      else expect(text).to.match(/^HTTP\/1\.[01] (?!101)\d/);
    },
  });
}

const first = takings['with the first bytes right behind the head']!;
const early: Readonly<Record<string, Exchange>> = Object.fromEntries(
  Object.entries(requests).map(([name, request]) => [name, { answer: first, request, isTaken: true }]),
);

upgradesWith('a forwarded upgrade is asked for', early);
upgradesWith(
  'a forwarded upgrade is taken',
  Object.fromEntries(Object.entries(takings).map(([name, answer]) => [name, { answer, isTaken: true }])),
);
upgradesWith(
  'a forwarded upgrade is refused',
  Object.fromEntries(Object.entries(refusals).map(([name, answer]) => [name, { answer }])),
);
upgradesWith('a forwarded upgrade over https is asked for', early, selfSigned());
