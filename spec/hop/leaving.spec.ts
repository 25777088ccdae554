import express from 'express';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { finished, pipeline } from 'node:stream/promises';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { family, type Case } from '../fixtures/hop-family.ts';
import { leaves, leavesUnknown, type LeftApp, type Leaving } from '../fixtures/hop-leaver.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { chunked, head } from '../fixtures/hop-wire.ts';

function request(line: string, ...fields: string[]): string {
  return head(line, sessionCookie, 'Connection: keep-alive', ...fields);
}

const get = request('GET /a HTTP/1.1');
const post = `${request('POST /a HTTP/1.1', 'Content-Length: 5')}hello`;
const partOfLength = `${request('POST /a HTTP/1.1', 'Content-Length: 100')}hello`;
const partOfChunks = `${request('POST /a HTTP/1.1', 'Transfer-Encoding: chunked')}5\r\nhello\r\n`;

/** Reads nothing. */
const hangs: LeftApp = (_request, _response, ready) => ready();

/** Reads a body of which not all comes. */
const reads: LeftApp = (request, _response, ready) => void request.once('data', ready);

/** Reads a body to its end. */
const readsAll: LeftApp = (request, _response, ready) => void request.resume().once('end', ready);

/** Begins a reply, and does not end it. */
function begins(begin: (response: ServerResponse) => void): LeftApp {
  return (request, response, ready) => {
    request.resume();
    begin(response);
    ready();
  };
}

/** Begins a reply, and notes how something that cannot succeed ends. */
function tries(attempt: (...of: Parameters<LeftApp>) => Promise<unknown>): LeftApp {
  return (request, response, ready, note) => {
    response.write('first');
    ready();
    attempt(request, response, ready, note).then(
      () => note('it succeeded'),
      ({ code, message }: NodeJS.ErrnoException) => note(`it failed: ${code} ${message}`),
    );
  };
}

function* endless(): Generator<Buffer> {
  for (;;) yield Buffer.alloc(65_536);
}

const cases: Record<string, Leaving> = {
  'before the reply': { text: get, app: hangs },
  'by a reset before the reply': { text: get, way: 'resets', app: hangs },
  'before the reply, after others on its connection': { text: get, ahead: 3, app: hangs },
  'before the reply to a HEAD request': { text: request('HEAD /a HTTP/1.1'), app: hangs },
  'after its body was read and before the reply': { text: post, app: readsAll },
  'after its body in chunks was read': {
    text: request('POST /a HTTP/1.1', 'Transfer-Encoding: chunked') + chunked(['hello'], ['X-T: 1']),
    app: readsAll,
  },
  'by a reset after its body was read': { text: post, way: 'resets', app: readsAll },
  'with its whole body unread': { text: post, app: hangs },
  'in the middle of a body of a known length': { text: partOfLength, app: reads },
  'in the middle of a body in chunks': { text: partOfChunks, app: reads },
  'in the middle of a chunk': { text: `${partOfChunks}64\r\nhello`, app: reads },
  'by a reset in the middle of a body': { text: partOfLength, way: 'resets', app: reads },
  'in the middle of a body that the app does not read': { text: partOfLength, app: hangs },
  'ahead of all of its body': { text: request('POST /a HTTP/1.1', 'Content-Length: 5'), app: hangs },
  'ahead of all of its body, which the app waits for': {
    text: request('POST /a HTTP/1.1', 'Content-Length: 5'),
    app: (request, _response, ready) => (request.resume(), ready()),
  },
  'in the middle of a body that the app iterates over': {
    text: partOfLength,
    app: tries(async (request) => {
      for await (const _chunk of request);
    }),
  },
  'while it waits for 100 Continue': {
    text: request('POST /a HTTP/1.1', 'Content-Length: 5', 'Expect: 100-continue'),
    awaits: 'HTTP/1.1 100 Continue\r\n\r\n',
    app: hangs,
  },
  'after an interim reply': {
    text: get,
    awaits: '\r\n\r\n',
    app: begins((response) => response.writeEarlyHints({ link: '</a>; rel=preload' })),
  },
  'while the reply streams in chunks': {
    text: get,
    awaits: 'first',
    app: begins((response) => response.write('first')),
  },
  'while a reply of a known length streams': {
    text: get,
    awaits: 'first',
    app: begins((response) => response.writeHead(200, { 'Content-Length': 100 }).write('first')),
  },
  'by a reset while the reply streams': {
    text: get,
    awaits: 'first',
    way: 'resets',
    app: begins((response) => response.write('first')),
  },
  'after nothing but the head of a reply': {
    text: get,
    awaits: '\r\n\r\n',
    app: begins((response) => response.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders()),
  },
  'while a reply streams faster than it reads': {
    text: get,
    awaits: '\0',
    app: tries((_request, response) => pipeline(Readable.from(endless()), response)),
  },
  'while the reply streams to a client of HTTP/1.0': {
    text: head('GET /a HTTP/1.0', sessionCookie),
    awaits: 'first',
    app: begins((response) => response.write('first')),
  },
  'while the reply streams and the body still arrives': {
    text: partOfLength,
    awaits: 'first',
    app: begins((response) => response.write('first')),
  },
  'after a whole reply, while the body still arrives': {
    text: partOfLength,
    awaits: 'whole',
    app: begins((response) => response.end('whole')),
  },
  'after a whole reply, while a body still arrives that the app does not read': {
    text: partOfLength,
    awaits: 'whole',
    app: (_request, response, ready) => (response.end('whole'), ready()),
  },
  'while the app waits for its reply to finish': {
    text: get,
    awaits: 'first',
    app: tries((_request, response) => finished(response)),
  },
  'and the app writes to it all the same': {
    text: get,
    awaits: 'first',
    app: tries(async (_request, response, _ready, note) => {
      await once(response, 'close');
      note(String(response.write('second', (error) => note(`written: ${error?.message}`))));
      response.end('last', () => note('ended'));
      return finished(response);
    }),
  },
};

function leavers(table: Record<string, Leaving>): Record<string, Case> {
  return Object.fromEntries(Object.entries(table).map(([name, one]) => [name, leaves(one)]));
}

family('a client that leaves', {
  cases: leavers(cases),
  textbook: [
    'before the reply',
    'after its body was read and before the reply',
    'in the middle of a body in chunks',
    'while the reply streams in chunks',
  ],
});

family('a client that breaks off its request', {
  cases: leavers({
    'by sending no more, before the reply': { text: get, way: 'half-closes', reads: true, app: hangs },
    'by sending no more in the middle of its body': { text: partOfLength, way: 'half-closes', reads: true, app: reads },
    'by sending no more in the middle of the reply': {
      text: get,
      way: 'half-closes',
      reads: true,
      awaits: 'first',
      app: begins((response) => response.write('first')),
    },
    'in chunks by what is no chunk': { text: partOfChunks, way: 'sends what is no HTTP', reads: true, app: reads },
    'by what is no HTTP behind it': { text: get, way: 'sends what is no HTTP', reads: true, app: hangs },
  }),
  textbook: /./,
});

family('a client of HTTPS that leaves', {
  tls: selfSigned(),
  cases: leavers({
    'before the reply': cases['before the reply']!,
    'in the middle of a body': cases['in the middle of a body in chunks']!,
    'after its body was read': cases['after its body was read and before the reply']!,
    'while the reply streams': cases['while the reply streams in chunks']!,
    'by sending no more': { text: get, way: 'half-closes', reads: true, app: hangs },
  }),
  textbook: ['before the reply', 'while the reply streams'],
});

family('a client that leaves an app behind the middleware', {
  attach: false,
  apps: { 'Express 5': (listener, routing) => express().use(routing).use(listener) },
  cases: leavers({
    'before the reply': cases['before the reply']!,
    'with its whole body unread': cases['with its whole body unread']!,
    'in the middle of a body': cases['in the middle of a body of a known length']!,
    'while the reply streams': cases['while the reply streams in chunks']!,
  }),
  textbook: /./,
});

const waits = { way: 'waits for the server to close', reads: true } as const;
family('a client whose public server gives it up', {
  server: { requestTimeout: 30, headersTimeout: 30, connectionsCheckingInterval: 10 },
  prepare: (server) => (server.timeout = 90),
  cases: leavers({
    'because its body takes too long': { text: partOfLength, ...waits, app: reads },
    'because its body takes too long, which the app does not read': { text: partOfChunks, ...waits, app: hangs },
    'because the reply does not come': { text: get, ...waits, app: hangs },
    'because the reply takes too long': { text: get, ...waits, app: begins((response) => response.write('first')) },
  }),
  textbook: ['because the reply does not come'],
});

const seed = (...fields: string[]): string => head('POST /seed_session HTTP/1.1', 'Connection: keep-alive', ...fields);

family('a client that leaves before its session is known', {
  cases: {
    'in the middle of a seed of a known length': leavesUnknown(`${seed('Content-Length: 30')}{"resources_`),
    'in the middle of a seed in chunks': leavesUnknown(`${seed('Transfer-Encoding: chunked')}1\r\n{\r\n`),
    'ahead of the body of a seed': leavesUnknown(seed('Content-Length: 30', 'Expect: 100-continue')),
    'by a reset in a seed': leavesUnknown(`${seed('Content-Length: 30')}{`, 'resets'),
    'by sending no more in a seed': leavesUnknown(`${seed('Content-Length: 30')}{`, 'half-closes'),
    'in a close that its cookie has named': leavesUnknown(
      `${head('POST /close_session HTTP/1.1', sessionCookie, 'Content-Length: 30')}{`,
    ),
  },
  textbook: /./,
});
