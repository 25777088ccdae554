import { expect } from 'chai';
import type { ServerResponse } from 'node:http';
import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

const utf8 = '\xc3\xa9';
type Answer = (response: ServerResponse) => void;

/** Replies, as an app makes them. */
const answers: Record<string, Answer> = {
  'of no length': (response) => response.end('ok'),
  'of a known length': (response) => response.writeHead(200, { 'Content-Length': 2 }).end('ok'),
  'in chunks': (response) => {
    response.write('one');
    response.write('two');
    setImmediate(() => response.end('three'));
  },
  'in chunks, of another coding': (response) =>
    response.writeHead(200, ['Transfer-Encoding', 'gzip, chunked']).end(Buffer.from('zipped')),
  'with trailers': (response) => {
    response.writeHead(200, { Trailer: 'X-T' });
    response.write('body');
    response.addTrailers([
      ['X-T', '1'],
      ['x-t', utf8],
    ]);
    response.end();
  },
  'with fields in any case and order, and repeated': (response) =>
    response.writeHead(200, ['x-B', '1', 'X-a', '2', 'X-b', '3', 'Vary', 'A', 'x-A', '', 'vary', 'B']).end(),
  'with several cookies': (response) =>
    response.writeHead(200, ['Set-Cookie', 'a=1', 'X-A', '1', 'Set-Cookie', 'b=2', 'set-cookie', 'c=3']).end(),
  'with any bytes': (response) =>
    response.writeHead(200, `Fine ${utf8}`, { 'X-A': `${utf8}\xe9\ta` }).end(Buffer.from('ok')),
  'with any bytes, before its body': (response) => {
    response.writeHead(200, { 'X-A': utf8 });
    response.flushHeaders();
    setImmediate(() => response.end('ok'));
  },
  'with a reason of its own': (response) => response.writeHead(299, 'Rather Fine').end('ok'),
  'without a reason': (response) => response.writeHead(200, '').end('ok'),
  'with a file name': (response) =>
    response
      .writeHead(200, { 'Content-Disposition': `attachment; filename="${utf8}"`, 'Content-Length': 2 })
      .end(Buffer.from('ok')),
  'without a date': (response) => {
    response.sendDate = false;
    response.end('ok');
  },
  'that closes': (response) => response.writeHead(200, { 'X-A': '1', connection: 'close' }).end('ok'),
  'that names a field of the connection': (response) =>
    response.writeHead(426, { Connection: 'Upgrade, close', Upgrade: 'websocket' }).end(),
  'of status 204': (response) => response.writeHead(204).end(),
  'of status 205': (response) => response.writeHead(205, { 'Content-Length': 0 }).end(),
  'of status 304': (response) => response.writeHead(304, { ETag: '"a"', 'Content-Length': 5 }).end(),
  'of status 304 that says it has chunks': (response) =>
    response.writeHead(304, { 'Transfer-Encoding': 'chunked' }).end(),
  'of status 500': (response) => response.writeHead(500).end('no'),
  'of status 999': (response) => response.writeHead(999).end(),
  'after hints': (response) => {
    response.writeEarlyHints({ link: ['</a.css>; rel=preload', '</b.css>; rel=preload'], 'x-a': '1' });
    response.writeProcessing();
    response.writeEarlyHints({ link: '</c.css>; rel=preload' });
    response.end('ok');
  },
  'after a 100 that nobody asked for': (response) => {
    response.writeContinue();
    response.end('ok');
  },
  'after interim replies of any kind': (response) => {
    response.socket!.write('HTTP/1.1 199 Whatever\r\nx-A: 1\r\nX-a: 2\r\n\r\nHTTP/1.1 102 \r\n\r\n');
    response.end('ok');
  },
  'with a file name behind its length': (response) =>
    response
      .writeHead(200, ['Content-Length', '2', 'Content-Disposition', `attachment; filename="${utf8}"`])
      .end(Buffer.from('ok')),
  'with fields of the connection and of the hop': (response) =>
    response
      .writeHead(200, [
        'Keep-Alive',
        'timeout=99',
        'Proxy-Connection',
        'a',
        'TE',
        'b',
        'X-Session-Routing-Origin',
        'e30',
      ])
      .end('ok'),
  'with fields set one by one': (response) => {
    response.setHeader('x-A', '1');
    response.setHeader('Set-Cookie', ['a=1', 'b=2', 'a=1']);
    response.setHeader('Vary', ['A', 'B']);
    response.setHeader('Content-Length', 2);
    response.end('ok');
  },
  'with lengths and dates of its own': (response) =>
    response.writeHead(200, ['content-LENGTH', '02', 'DATE', 'Thu, 01 Jan 1970 00:00:00 GMT']).end('ok'),
  'of any bytes': (response) => response.end(Buffer.from(Array.from({ length: 512 }, (_, index) => index % 256))),
  'of bytes like another reply': (response) => {
    response.write('HTTP/1.1 200 OK\r\n\r\n');
    setImmediate(() => response.end('0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil'));
  },
  'in many chunks': (response) => {
    for (let index = 0; index < 2_000; index++) response.write(String(index));
    response.end();
  },
  'of a megabyte': (response) =>
    response.writeHead(200, { 'Content-Length': 1_000_000 }).end(Buffer.alloc(1_000_000, 'a')),
  'of nothing, in chunks': (response) => {
    response.flushHeaders();
    setImmediate(() => response.end());
  },
  'of no bytes': (response) => response.writeHead(200, { 'Content-Length': 0 }).end(),
  'of status 204 with a body and a length': (response) => response.writeHead(204, { 'Content-Length': 2 }).end('ok'),
  'of status 304 with a body': (response) => response.writeHead(304).end('ok'),
  'of status 301': (response) => response.writeHead(301, { Location: `//other/${utf8}?a=%zz` }).end(),
  'of status 401': (response) =>
    response.writeHead(401, ['WWW-Authenticate', 'Basic', 'www-authenticate', 'Bearer a="b, c"']).end(),
};

const cases: Record<string, Case> = {};
for (const line of ['GET / HTTP/1.1', 'HEAD / HTTP/1.1', 'GET / HTTP/1.0']) {
  for (const [name, answer] of Object.entries(answers)) {
    // Node lets no app send trailers to a client of HTTP/1.0, or without a body.
    if (name === 'with trailers' && line !== 'GET / HTTP/1.1') continue;
    cases[`${name} (${line})`] = { text: head(line, sessionCookie), answer };
  }
}

cases['shorter than it says'] = {
  text: head('GET / HTTP/1.1', sessionCookie),
  answer: (response) => response.writeHead(200, { 'Content-Length': 10 }).end('ok'),
};
cases['that keeps the connection in its own words'] = {
  converse: (wire) => wire.send(head('GET / HTTP/1.1', sessionCookie)).until(/\r\n\r\nok$/),
  answer: (response) =>
    response.writeHead(200, ['connection', 'Keep-Alive', 'keep-alive', 'timeout=7', 'Content-Length', '2']).end('ok'),
};

family('the reply to a forwarded request', {
  cases,
  textbook: /^(with (trailers|any bytes \(|fields set)|without a|after).*1\.1/,
  check: ({ reply }) => expect(reply).to.match(/^HTTP\/1\.1 \d{3} /),
});
