import { expect } from 'chai';
import { createServer, type ServerResponse } from 'node:http';
import { family, type Case } from '../fixtures/hop-family.ts';
import { read, seeded, sessionCookie, startTwins } from '../fixtures/hop-twins.ts';
import { chunked, head, talk, type Port } from '../fixtures/hop-wire.ts';

const get = (...fields: string[]): string => head('GET /a HTTP/1.1', sessionCookie, ...fields);
const fieldOf = (bytes: number): string => `X-Large: ${'x'.repeat(bytes)}`;
const fields = (count: number, value = ''): string[] =>
  Array.from({ length: count }, (_, index) => `X-${index}: ${value}`);
const refused = (text: string): Case => ({
  text,
  requests: 0,
  serve: (request, response, note) =>
    void read(request)
      .then(note, () => undefined)
      .then(() => response.end('ok')),
});
const chunkedPost = head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked');

family('a header block within the limits of a server', {
  cases: {
    'one field of 15,000 bytes': get(fieldOf(15_000)),
    'one field of 15,000 bytes, of HTTP/1.0': head('GET /a HTTP/1.0', sessionCookie, fieldOf(15_000)),
    'one field of 15,000 bytes, with a body': `${head('POST /a HTTP/1.1', sessionCookie, fieldOf(15_000), 'Content-Length: 2')}hi`,
    'a field whose name has 15,000 bytes': get(`X-${'x'.repeat(15_000)}: 1`),
    'a target of 15,000 bytes': head(`GET /${'x'.repeat(15_000)} HTTP/1.1`, sessionCookie),
    'a cookie beside 14,000 bytes of others': get(`Cookie: ${'a=1; '.repeat(2_800)}`),
    '400 fields about the connection': get(...Array.from({ length: 400 }, () => 'Connection: close')),
    '400 fields about trailers': get(...Array.from({ length: 400 }, () => 'Trailer: X-T')),
    '990 fields': get(...fields(990)),
    'trailers of 15,000 bytes': chunkedPost + chunked(['a'], [fieldOf(15_000)]),
    'many trailers': chunkedPost + chunked(['a'], fields(900)),
    'an extension of a chunk of 15,000 bytes': `${chunkedPost}1;x=${'x'.repeat(15_000)}\r\na\r\n0\r\n\r\n`,
    'a seed with 14,000 bytes': `${head('POST /seed_session HTTP/1.1', sessionCookie, fieldOf(14_000), 'Content-Length: 2')}{}`,
  },
  textbook: [
    '400 fields about the connection',
    '400 fields about trailers',
    'trailers of 15,000 bytes',
    'many trailers',
  ],
  check: ({ reply }) => expect(reply).to.match(/^HTTP\/1\.1 200 /),
});

family('a header block beyond the limits of a server', {
  cases: {
    'one field of 17,000 bytes': refused(get(fieldOf(17_000))),
    'fields of 17,000 bytes in all': refused(get(...fields(170, 'x'.repeat(100)))),
    'a field whose name has 17,000 bytes': refused(get(`${'x'.repeat(17_000)}: 1`)),
    'a target of 17,000 bytes': refused(head(`GET /${'x'.repeat(17_000)} HTTP/1.1`, sessionCookie)),
    'ahead of the session that it names': refused(head('GET /a HTTP/1.1', fieldOf(17_000), sessionCookie)),
    'with a body': refused(`${head('POST /a HTTP/1.1', sessionCookie, fieldOf(17_000), 'Content-Length: 2')}hi`),
    'of trailers': refused(chunkedPost + chunked(['a'], [fieldOf(17_000)])),
  },
  textbook: 'passes',
  check: ({ reply }) =>
    expect(reply).to.equal('HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n'),
});

/** Node 20 hides what is more; later versions refuse the request. */
const hides = Number(process.versions.node.split('.', 1)[0]) < 22;
const crowded = (text: string): Case => ({ text, requests: null });

family('a header block of more fields than a server counts', {
  cases: {
    'by default': crowded(get(...fields(1_200))),
    'by default, with a body': crowded(
      `${head('POST /a HTTP/1.1', sessionCookie, 'Content-Length: 2', ...fields(1_200))}hi`,
    ),
    'by default, behind them the one that says how it ends': crowded(
      get(...fields(1_200))
        .replace('Connection: close\r\n', '')
        .replace('X-0', 'Connection: close\r\nX-0'),
    ),
    'by default, behind them the one that says how long its body is': crowded(
      `${head('POST /a HTTP/1.1', sessionCookie, 'Connection: close', ...fields(1_200), 'Content-Length: 2')}hi`,
    ),
    'by default, behind them the one that says that its body is in chunks': crowded(
      `${head('POST /a HTTP/1.1', sessionCookie, 'Connection: close', ...fields(1_010), 'Transfer-Encoding: chunked')}${chunked(['hi'])}`,
    ),
  },
  textbook: hides ? /default(?!.* how long)/ : 'passes',
});

family('a header block of more fields than a server of few counts', {
  prepare: (server) => (server.maxHeadersCount = 10),
  cases: {
    'one more': crowded(get(...fields(8))),
    'three times as many': crowded(get(...fields(30))),
    'many times as many': crowded(get(...fields(300))),
    'many times as many, with a body': crowded(
      `${head('POST /a HTTP/1.1', sessionCookie, 'Content-Length: 2', 'Connection: close', ...fields(300))}hi`,
    ),
    'many times as many, behind them the length of the body': crowded(
      `${head('POST /a HTTP/1.1', sessionCookie, 'Connection: close', ...fields(300), 'Content-Length: 2')}hi`,
    ),
    'a few more, behind them the length of the body': crowded(
      `${head('POST /a HTTP/1.1', sessionCookie, 'Connection: close', ...fields(12), 'Content-Length: 2')}hi`,
    ),
    'with the end of the connection behind': crowded(
      get('Connection: close', ...fields(7), 'Expect: x', 'Trailer: X-T', 'Content-Disposition: a'),
    ),
  },
  textbook: hides ? ['with the end of the connection behind'] : /./,
});

const size = 256 * 1024;

family('a header block of a server that has raised its limits', {
  server: { maxHeaderSize: size },
  prepare: (server) => (server.maxHeadersCount = 0),
  cases: {
    'one field of 200,000 bytes': get(fieldOf(200_000)),
    'a target of 200,000 bytes': head(`GET /${'x'.repeat(200_000)} HTTP/1.1`, sessionCookie),
    '5,000 fields': get(...fields(5_000, 'x'.repeat(30))),
    '5,000 fields of one name': get(...Array.from({ length: 5_000 }, (_, index) => `X-A: ${index}`)),
    '5,000 fields about the connection': get(...Array.from({ length: 5_000 }, () => 'Connection: close')),
    'trailers of 200,000 bytes': chunkedPost + chunked(['a'], [fieldOf(200_000)]),
    'beyond them': refused(get(fieldOf(size))),
    'beyond them, of trailers': refused(chunkedPost + chunked(['a'], [fieldOf(size)])),
  },
  textbook: /^5,000 fields|^trailers/,
  check: ({ reply }, name) =>
    expect(reply).to.match(name.startsWith('beyond') ? /^HTTP\/1\.1 431 / : /^HTTP\/1\.1 200 /),
});

const replying = (answer: (response: ServerResponse) => void): Case => ({ text: get(), answer });
const many = Array.from({ length: 5_000 }, (_, index) => [`X-${index}`, 'x'.repeat(50)]).flat();

family('the header block of a reply', {
  cases: {
    'one field of 15,000 bytes': replying((response) => response.setHeader('X-Large', 'x'.repeat(15_000)).end('ok')),
    'one field of 1,000,000 bytes': replying((response) =>
      response.setHeader('X-Large', 'x'.repeat(1_000_000)).end('ok'),
    ),
    '5,000 fields': replying((response) => response.writeHead(200, many).end('ok')),
    '5,000 cookies': replying((response) =>
      response
        .setHeader(
          'Set-Cookie',
          Array.from({ length: 5_000 }, (_, index) => `a${index}=1`),
        )
        .end('ok'),
    ),
    'a reason of 100,000 bytes': replying((response) => response.writeHead(200, 'x'.repeat(100_000)).end('ok')),
    'hints of 100,000 bytes': replying((response) => {
      response.writeEarlyHints({ link: `</${'x'.repeat(100_000)}>; rel=preload` });
      response.end('ok');
    }),
    'trailers of 100,000 bytes': replying((response) => {
      response.writeHead(200, { Trailer: 'X-Large' }).write('ok');
      response.addTrailers({ 'X-Large': 'x'.repeat(100_000) });
      response.end();
    }),
    '5,000 trailers': replying((response) => {
      response.writeHead(200, { Trailer: 'X-0' }).write('ok');
      response.addTrailers(Array.from({ length: 5_000 }, (_, index) => [`X-${index}`, '1'] as [string, string]));
      response.end();
    }),
    'of a reply without a body': replying((response) => response.writeHead(204, many).end()),
  },
  textbook: /000,000|5,000 [fc]|100,000/,
  check: ({ reply }) => expect(reply).to.match(/^HTTP\/1\.1 [12]/),
});

describe('the header block of a forwarded request', () => {
  for (const [what, raised] of Object.entries({ 'by default': undefined, 'where it was raised': 40_000 })) {
    it(`may be as large as that of a direct one, to the byte, and no larger (${what})`, async () => {
      const options = raised === undefined ? {} : { maxHeaderSize: raised };
      const twins = await startTwins(() =>
        createServer(
          options,
          seeded((_request, response) => response.end('ok')),
        ),
      );
      const status = async (port: Port, bytes: number): Promise<string> =>
        (await talk(port, get(fieldOf(bytes)))).slice(9, 12);
      try {
        let [fits, tooLarge] = [1_000, 50_000];
        while (tooLarge - fits > 1) {
          const middle = Math.floor((fits + tooLarge) / 2);
          if ((await status(twins.direct, middle)) === '200') fits = middle;
          else tooLarge = middle;
        }
        const forwarded = [await status(twins.forwarded, fits), await status(twins.forwarded, tooLarge)];
        expect(forwarded).to.deep.equal(['200', '431']);
      } finally {
        await twins.close();
      }
    });
  }
});
