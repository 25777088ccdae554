import { expect } from 'chai';
import type { Server } from 'node:http';
import { family, type Case } from '../fixtures/hop-family.ts';
import { comparable, sessionCookie } from '../fixtures/hop-twins.ts';
import { chunked, head, type Wire } from '../fixtures/hop-wire.ts';

const settings = 'HTTP2-Settings: AAMAAABkAAQAAP__';

interface Offer {
  readonly requestLine?: string;
  readonly fields: readonly string[];
  readonly body?: string;
}

/** Requests that offer to speak another protocol, in earnest or not. */
const offers: Readonly<Record<string, Offer>> = {
  'h2c, as curl offers it': { fields: ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', settings] },
  'h2c without its settings': { fields: ['Connection: Upgrade', 'Upgrade: h2c'] },
  'h2c with a body': {
    requestLine: 'POST /with-body HTTP/1.1',
    fields: ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', settings, 'Content-Length: 4'],
    body: 'body',
  },
  'h2c with a body in chunks': {
    requestLine: 'PUT /with-chunks HTTP/1.1',
    fields: ['Connection: Upgrade', 'Upgrade: h2c', 'Transfer-Encoding: chunked', 'Trailer: X-T'],
    body: chunked(['bo', 'dy'], ['X-T: 1']),
  },
  'h2c with a body that is awaited': {
    requestLine: 'POST /awaited HTTP/1.1',
    fields: ['Connection: Upgrade', 'Upgrade: h2c', 'Expect: 100-continue', 'Content-Length: 4'],
    body: 'body',
  },
  'h2c on DELETE with a body': {
    requestLine: 'DELETE /deleted HTTP/1.1',
    fields: ['Connection: Upgrade', 'Upgrade: h2c', 'Content-Length: 4'],
    body: 'GET ',
  },
  'h2c on HEAD': { requestLine: 'HEAD / HTTP/1.1', fields: ['Connection: Upgrade', 'Upgrade: h2c'] },
  'h2c on OPTIONS *': { requestLine: 'OPTIONS * HTTP/1.1', fields: ['Connection: Upgrade', 'Upgrade: h2c'] },
  'h2c in HTTP/1.0': { requestLine: 'GET / HTTP/1.0', fields: ['Connection: Upgrade', 'Upgrade: h2c'] },
  'h2c in HTTP/1.0, to be kept alive': {
    requestLine: 'GET / HTTP/1.0',
    fields: ['Connection: keep-alive, Upgrade', 'Upgrade: h2c'],
  },
  'h2c, and to close': { fields: ['Connection: close, Upgrade', 'Upgrade: h2c'] },
  'h2c in fields of another case': { fields: ['CONNECTION: UPGRADE', 'uPGRADE: H2C'] },
  'h2c in two fields of Connection': { fields: ['Connection: keep-alive', 'Connection: Upgrade', 'Upgrade: h2c'] },
  'h2c with a field that only looks like one of a hop': {
    fields: ['Connection: Upgrade, Cookie, X-Session-Routing-Origin', 'Upgrade: h2c', 'X-Session-Routing-Upgrade: h2c'],
  },
  'several protocols': { fields: ['Connection: Upgrade', 'Upgrade: h2c, websocket, TLS/1.0'] },
  'several fields of protocols': { fields: ['Connection: Upgrade', 'Upgrade: h2c', 'Upgrade: websocket'] },
  'TLS within HTTP': { fields: ['Connection: Upgrade', 'Upgrade: TLS/1.0'] },
  'a WebSocket that is none': { fields: ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'] },
  'no protocol': { fields: ['Connection: Upgrade', 'Upgrade:'] },
  'an upgrade without a protocol': { fields: ['Connection: Upgrade'] },
  'an upgrade without a protocol, with a body': {
    requestLine: 'POST / HTTP/1.1',
    fields: ['Connection: upgrade', 'Content-Length: 4'],
    body: 'body',
  },
  'a protocol without an upgrade': { fields: ['Upgrade: h2c'] },
  'a protocol, and an upgrade to the proxy': { fields: ['Proxy-Connection: Upgrade', 'Upgrade: h2c'] },
};

/**
 * Makes an offer, and another request behind it once that is answered. (What comes along with an offer that nobody
 * listens for, Node itself drops.)
 */
async function converse(wire: Wire, { requestLine = 'GET / HTTP/1.1', fields, body = '' }: Offer): Promise<string> {
  wire.send([requestLine, 'Host: app.example', sessionCookie, ...fields, '', body].join('\r\n'));
  const first = await wire.until(requestLine.startsWith('HEAD') ? '\r\n\r\n' : ' end');
  wire.send(head('GET /second HTTP/1.1', sessionCookie));
  return first + (await wire.rest());
}

const answer: Case['answer'] = (response, { url, body }) => response.end(`served ${url} ${body} end`);

/** How many of the two requests reach the app where nobody listens for upgrades. */
function requestsOf(name: string): number {
  return /to close|in HTTP\/1\.0/.test(name) ? 1 : 2;
}

family('a request to an app that does not listen for upgrades, which offers', {
  cases: Object.fromEntries(
    Object.entries(offers).map(([name, offer]) => {
      return [name, { converse: (wire) => converse(wire, offer), answer, requests: requestsOf(name) }];
    }),
  ),
  textbook: /in chunks|in HTTP\/1\.0|two fields of Connection|looks like/,
});

/** Whether Node takes a request for an upgrade, where somebody listens for that. */
function isUpgrade(name: string): boolean {
  return !/without an upgrade|without a protocol|^no protocol/.test(name);
}

describe('an app that listens for upgrades', () => {
  const arrived: object[] = [];

  const prepare = (server: Server): void =>
    void server.on('upgrade', (request, socket, early: Buffer) => {
      const { method, url, httpVersion, rawHeaders, headers, headersDistinct } = request;
      const seen = { method, url, httpVersion, rawHeaders, headers, headersDistinct };
      arrived.push({ ...seen, early: early.toString('latin1') });
      socket.on('error', () => undefined).resume();
      const refusal = `no ${headers.upgrade} at the end`;
      socket.end(
        `HTTP/1.1 426 Upgrade Required\r\nUpgrade: spec\r\nContent-Length: ${refusal.length}\r\n\r\n${refusal}`,
      );
    });

  family('is asked by a request that offers', {
    prepare,
    cases: Object.fromEntries(
      Object.entries(offers).map(([name, offer]) => {
        const converseAndTell = async (wire: Wire): Promise<object> => {
          const reply = await converse(wire, offer);
          return { reply: comparable(reply), arrived: arrived.splice(0) };
        };
        return [name, { converse: converseAndTell, answer, requests: isUpgrade(name) ? 0 : requestsOf(name) }];
      }),
    ),
    textbook: /h2c/,
    check({ reply }, name) {
      if (isUpgrade(name))
        expect(reply)
          .to.have.nested.property('reply')
          .that.matches(/^HTTP\/1\.1 426 /);
    },
  });
});
