import express from 'express';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

type Break = (request: IncomingMessage, response: ServerResponse) => void;

/** How an app may break its own reply off. */
const ways = {
  'destroys the reply': (_request, response) => void response.destroy(),
  'destroys the request': (request) => void request.destroy(),
  'destroys the connection': (request) => void request.socket.destroy(),
  'destroys the connection once it has sent all': (request) => void request.socket.destroySoon(),
  'ends the connection': (request) => void request.socket.end(),
} satisfies Record<string, Break>;

interface Breaking {
  /** Default: a GET. */
  readonly text?: string;
  readonly begin: (response: ServerResponse, request: IncomingMessage) => void;
  /** What the client has got when the app breaks off. */
  readonly got: string | RegExp;
  readonly way?: keyof typeof ways;
  /** How many requests reach the app. Default: one. */
  readonly requests?: number;
}

/** A case of a reply that breaks off once the client has got some of it: the client gets what a direct one gets. */
function breaks({ text = get, begin, got, way = 'destroys the connection', requests = 1 }: Breaking): Case {
  let breakOff: () => void = () => undefined;
  return {
    requests,
    async converse(wire) {
      wire.send(text);
      const first = await wire.until(got);
      breakOff();
      return first + (await wire.rest());
    },
    serve(request, response, note) {
      note(request.url);
      request.on('error', () => undefined);
      if (request.url !== '/break') return void response.end('ok');
      breakOff = () => ways[way](request, response);
      begin(response, request);
    },
  };
}

function request(line: string, ...fields: string[]): string {
  return head(line, sessionCookie, 'Connection: keep-alive', ...fields);
}

const get = request('GET /break HTTP/1.1');
const closes = head('GET /break HTTP/1.1', sessionCookie);
const chunks = (response: ServerResponse): void => void response.write('first');
const length = (response: ServerResponse): void =>
  void response.writeHead(200, { 'Content-Length': 100 }).write('first');
const untilClose = (response: ServerResponse): void => {
  response.removeHeader('Transfer-Encoding');
  response.write('first');
};

const cases: Record<string, Breaking> = {};
for (const way of Object.keys(ways) as (keyof typeof ways)[]) {
  cases[`in chunks, whose app ${way}`] = { begin: chunks, got: 'first\r\n', way };
  cases[`of a known length, whose app ${way}`] = { begin: length, got: 'first', way };
}
Object.assign(cases, {
  'after nothing but its head': { begin: (response) => response.flushHeaders(), got: '\r\n\r\n' },
  'after nothing but its head, of a known length': {
    begin: (response) => response.writeHead(200, { 'Content-Length': 1 }).flushHeaders(),
    got: '\r\n\r\n',
  },
  'right after the head of a reply to HEAD': {
    text: head('HEAD /break HTTP/1.1', sessionCookie),
    begin: (response) => response.writeHead(200, { 'Content-Length': 100 }).flushHeaders(),
    got: '\r\n\r\n',
  },
  'right after the head of a reply to HEAD, in chunks': {
    text: head('HEAD /break HTTP/1.1', sessionCookie),
    begin: (response) => response.flushHeaders(),
    got: '\r\n\r\n',
  },
  'right after the head of a 204': {
    text: closes,
    begin: (response) => response.writeHead(204).flushHeaders(),
    got: '\r\n\r\n',
  },
  'right after the head of a 304': {
    text: closes,
    begin: (response) => response.writeHead(304, { ETag: '"a"' }).flushHeaders(),
    got: '\r\n\r\n',
  },
  'after interim replies': {
    begin: (response) => (response.writeProcessing(), response.writeHead(200).write('first')),
    got: 'first\r\n',
  },
  'with all of its bytes written, though not ended': {
    text: closes,
    begin: (response) => response.writeHead(200, { 'Content-Length': 5 }).write('first'),
    got: 'first',
  },
  'of no length and no chunks': { begin: untilClose, got: 'first' },
  'to a client of HTTP/1.0': { text: head('GET /break HTTP/1.0', sessionCookie), begin: chunks, got: 'first' },
  'to a client of HTTP/1.0, of a known length': {
    text: head('GET /break HTTP/1.0', sessionCookie),
    begin: length,
    got: 'first',
  },
  'to a client that closes afterwards': {
    text: closes,
    begin: chunks,
    got: 'first\r\n',
  },
  'while the body still arrives': {
    text: `${request('POST /break HTTP/1.1', 'Content-Length: 100')}part`,
    begin: chunks,
    got: 'first\r\n',
  },
  'with trailers announced': {
    begin: (response) => response.writeHead(200, { Trailer: 'X-T' }).write('first'),
    got: 'first\r\n',
  },
  'behind another on the same connection': {
    text: request('GET /ok HTTP/1.1') + get,
    begin: chunks,
    got: 'first\r\n',
    requests: 2,
  },
  'ahead of another on the same connection': {
    text: get + request('GET /ok HTTP/1.1'),
    begin: chunks,
    got: 'first\r\n',
    requests: 2,
  },
  'in several chunks': {
    begin: (response) => ['1', '2', 'third'].forEach((chunk) => response.write(chunk)),
    got: 'third\r\n',
  },
} satisfies Record<string, Breaking>);

family('a reply that breaks off', {
  cases: Object.fromEntries(Object.entries(cases).map(([name, one]) => [name, breaks(one)])),
  textbook: ['in chunks, whose app destroys the connection'],
});

family('a reply that breaks off behind the middleware', {
  attach: false,
  apps: { 'Express 5': (listener, routing) => express().use(routing).use(listener) },
  cases: {
    'in chunks': breaks({ begin: chunks, got: 'first\r\n' }),
    'of a known length': breaks({ begin: length, got: 'first' }),
    'after nothing but its head': breaks({ begin: (response) => response.flushHeaders(), got: '\r\n\r\n' }),
    'to a client of HTTP/1.0': breaks({
      text: head('GET /break HTTP/1.0', sessionCookie),
      begin: length,
      got: 'first',
    }),
  },
  textbook: ['in chunks'],
});
