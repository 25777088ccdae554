import { family } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

const utf8 = '\xc3\xa9';
const get = (...fields: string[]): string => head('GET /a HTTP/1.1', sessionCookie, ...fields);
const post = (...fields: string[]): string =>
  `${head('POST /a HTTP/1.1', sessionCookie, ...fields, 'Content-Length: 2')}hi`;

family('the fields of a forwarded request', {
  cases: {
    'in any case and order, and repeated': get('x-A: 1', 'X-B: 2', 'X-a: 3', 'X-b:', 'Accept: a', 'accept: b'),
    'of which Node keeps the first': get('User-Agent: a', 'User-Agent: b', 'Referer: a', 'referer: b', 'From: a'),
    'of which Node makes a list': get('Set-Cookie: a=1', 'set-cookie: b=2', 'Cookie: a=1', 'cookie: b=2'),
    'in any bytes': get(`X-A: ${utf8}`, 'X-B: \xe9', 'X-C: a\tb', 'X-D: \xff\x80'),
    'in any bytes, ahead of a body': post(`X-A: ${utf8}`, 'X-B: \xe9'),
    'with blanks around their values': get('X-A:  \t a \t ', 'X-B:b', 'X-C: \t'),
    'with any signs in their names': get("!#$%&'*+-.^_`|~: 1", '1: 2', '-: 3'),
    'that begin like those of an object': get('__proto__: 1', 'constructor: 2', 'hasOwnProperty: 3', 'toString: 4'),
    'that Connection names': get('Connection: X-A, close', 'X-A: 1', 'Keep-Alive: timeout=9', 'TE: trailers'),
    'that Connection names, the session among them': get('Connection: cookie, host, close'),
    'that Connection names, one a line': get('Connection: X-A', 'connection: close', 'X-A: 1'),
    'that ask for another time than the hop does': get('Keep-Alive: timeout=1, max=1'),
    'about a proxy': get(
      'Proxy-Connection: keep-alive',
      'Via: 1.1 a',
      'Proxy-Authorization: x',
      'Proxy-Authenticate: y',
    ),
    'about where it came from': get(
      'X-Forwarded-For: 1.2.3.4, 5.6.7.8',
      'Forwarded: for=a',
      'X-Real-IP: 1',
      'X-Forwarded-For: 9',
    ),
    'that name trailers which never come': get('Trailer: X-T'),
    'about codings': get('TE: trailers, deflate;q=0.5', 'Accept-Encoding: gzip;q=0'),
    // (Node 22 refuses it.)
    'about a coding that is none': { text: get('Transfer-Encoding:'), requests: null },
    'that offer another protocol to a server that knows none': get('Connection: Upgrade, close', 'Upgrade: h2c'),
    'that offer another protocol by way of a proxy': get(
      'Proxy-Connection: Upgrade, close',
      'Upgrade: h2c',
      'Connection: close',
    ),
    'of a file name in UTF-8': post(`Content-Disposition: attachment; filename="${utf8}"`),
    'of a file name in no encoding': post('Content-Disposition: attachment; filename="\xe9"'),
    'of HTTP/1.0': head('GET /a HTTP/1.0', sessionCookie),
    'of HTTP/1.0, that know chunks': head('GET /a HTTP/1.0', sessionCookie, 'TE: chunked'),
    'of HTTP/1.0, without a host': `GET /a HTTP/1.0\r\n${sessionCookie}\r\n\r\n`,
    'without a host, which HTTP/1.1 asks for': {
      text: `GET /a HTTP/1.1\r\n${sessionCookie}\r\nConnection: close\r\n\r\n`,
      requests: 0,
    },
    'with an empty host': `GET /a HTTP/1.1\r\nHost:\r\n${sessionCookie}\r\nConnection: close\r\n\r\n`,
    'with two hosts': get('Host: other.example'),
  },
  textbook: [
    'in any case and order, and repeated',
    'of which Node keeps the first',
    'that Connection names, one a line',
    'of HTTP/1.0, without a host',
  ],
});

family('the fields of a forwarded request of HTTP/1.0 whose connection is to last', {
  cases: {
    'and whose reply has a length': {
      text: head('GET /a HTTP/1.0', sessionCookie, 'Connection: keep-alive') + head('GET /b HTTP/1.0', sessionCookie),
      requests: 2,
      answer: (response) => response.writeHead(200, { 'Content-Length': 2 }).end('ok'),
    },
    'and whose reply has none': {
      text: head('GET /a HTTP/1.0', sessionCookie, 'Connection: keep-alive'),
      answer: (response) => {
        response.write('in ');
        setImmediate(() => response.end('parts'));
      },
    },
    'and whose reply is in chunks, for a client that knows them': {
      text: head('GET /a HTTP/1.0', sessionCookie, 'TE: chunked'),
      answer: (response) => {
        response.write('in ');
        setImmediate(() => response.end('parts'));
      },
    },
    'and whose expectation does not count': `${head('POST /a HTTP/1.0', sessionCookie, 'Expect: 100-continue', 'Content-Length: 2')}hi`,
  },
  textbook: /none|chunks/,
});
