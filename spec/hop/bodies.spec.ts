import { expect } from 'chai';
import { family, type Answer, type Case } from '../fixtures/hop-family.ts';
import { read, sessionCookie, type Seen } from '../fixtures/hop-twins.ts';
import { chunked, head } from '../fixtures/hop-wire.ts';

/** What a hop that framed badly would take for a request of its own. */
const smuggled = 'GET /smuggled HTTP/1.1\r\nHost: app.example\r\n\r\n';
const utf8 = '\xc3\xa9';

const post = (...fields: string[]): string => head('POST /a HTTP/1.1', sessionCookie, ...fields);
const chunkedPost = (...fields: string[]): string => post('Transfer-Encoding: chunked', ...fields);

const methods = ['GET', 'HEAD', 'DELETE', 'OPTIONS', 'POST', 'PUT', 'PATCH', 'TRACE', 'PROPFIND', 'REPORT', 'M-SEARCH'];

/** Every way to frame a body, or none, on each method. */
const framings = methods.flatMap((method): [string, string][] => {
  const line = `${method} /a HTTP/1.1`;
  const length = `Content-Length: ${smuggled.length}`;
  return [
    [`${method}, in chunks`, head(line, sessionCookie, 'Transfer-Encoding: chunked') + chunked([smuggled, smuggled])],
    [`${method}, of a known length`, head(line, sessionCookie, length) + smuggled],
    [`${method}, of no bytes`, head(line, sessionCookie, 'Content-Length: 0')],
    [`${method}, of no chunks`, head(line, sessionCookie, 'transfer-encoding: Chunked') + chunked([])],
    [`${method}, without any`, head(line, sessionCookie)],
  ];
});

family('the body of a forwarded request, whatever the method', {
  cases: Object.fromEntries(framings),
  textbook: /^(POST|PUT|PATCH|PROPFIND|REPORT|M-SEARCH), without any/,
  check({ seen }, name) {
    const { body, headers } = seen[0] as Seen;
    const copies = name.endsWith('in chunks') ? 2 : name.endsWith('length') ? 1 : 0;
    expect(body).to.equal(smuggled.repeat(copies));
    if (!name.endsWith('without any')) return;
    expect(headers).not.to.have.any.keys('content-length', 'transfer-encoding');
  },
});

/** Sends a text in packets of their own. */
const inParts = (text: string, size: number): Case => ({
  async converse(wire) {
    wire.socket.setNoDelay(true);
    for (let at = 0; at < text.length; at += size) {
      await new Promise((resolve) => wire.socket.write(Buffer.from(text.slice(at, at + size), 'latin1'), resolve));
    }
    return wire.rest();
  },
});

/** Any bytes, NULs and line ends among them. */
const anyBytes = Buffer.from(Array.from({ length: 1024 }, (_, index) => (index * 7) % 256)).toString('latin1');

family('the body of a forwarded request, however it is framed', {
  cases: {
    'with trailers': chunkedPost('Trailer: X-T') + chunked(['hello'], ['X-T: 1', `x-t: ${utf8}`, 'Other:']),
    'with a trailer announced that never comes': chunkedPost('Trailer: X-T') + chunked(['hello']),
    'with trailers announced and no chunks': `${post('Trailer: X-T', 'Content-Length: 2')}hi`,
    'with trailers and no body': chunkedPost() + chunked([], ['X-T: 1']),
    'with many trailers':
      chunkedPost() +
      chunked(
        ['a'],
        Array.from({ length: 200 }, (_, index) => `X-${index}: 1`),
      ),
    'with extensions of chunks': `${chunkedPost()}5;a=1;b="2"\r\nhello\r\n00000;c\r\n\r\n`,
    'with lengths in any case and with zeros ahead': `${chunkedPost()}0000A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n`,
    'in a coding of its own below the chunks':
      post('Transfer-Encoding: gzip', 'Transfer-Encoding: chunked') + chunked(['zip']),
    'in a coding of its own in one field': post('Transfer-Encoding: gzip, chunked') + chunked(['zip']),
    'in chunks, by another case': post('TRANSFER-encoding:   CHUNKED') + chunked(['hello']),
    'of a length with zeros ahead': `${post('Content-Length: 005')}hello`,
    'of a length with blanks around': `${post('Content-Length: \t 5  ')}hello`,
    'of any bytes': post(`Content-Length: ${anyBytes.length}`) + anyBytes,
    'of any bytes, in chunks': chunkedPost() + chunked([anyBytes, '\r\n0\r\n\r\n', anyBytes]),
    'of many chunks': chunkedPost() + chunked(Array.from({ length: 3_000 }, (_, index) => String(index))),
    'of two requests': post(`Content-Length: ${2 * smuggled.length}`) + smuggled + smuggled,
    'that looks like the end of chunks': `${post('Content-Length: 5')}0\r\n\r\n`,
    'in packets of a byte': inParts(post('Content-Length: 45') + smuggled.padEnd(45), 1),
    'in packets of three bytes, in chunks': inParts(chunkedPost() + chunked([smuggled, 'a'], ['X-T: 1']), 3),
    'of HTTP/1.0': `${head('POST /a HTTP/1.0', sessionCookie, 'Content-Length: 2')}hi`,
    'of HTTP/1.0, on GET': `${head('GET /a HTTP/1.0', sessionCookie, 'Content-Length: 2')}hi`,
  },
  textbook: [
    'with trailers',
    'with trailers and no body',
    'with trailers announced and no chunks',
    'with many trailers',
  ],
});

/** Two requests on one connection: framing that were off by a byte would make another request of the second. */
const then = (first: string): Case => ({
  requests: 2,
  converse: (wire) => wire.send(first).send(head('GET /next HTTP/1.1', sessionCookie)).rest(),
});
const lasting = (line: string, ...fields: string[]): string =>
  head(line, sessionCookie, 'Connection: keep-alive', ...fields);

family('the request behind the body of a forwarded request', {
  cases: {
    'of a known length': then(lasting('POST /a HTTP/1.1', `Content-Length: ${smuggled.length}`) + smuggled),
    'in chunks': then(lasting('POST /a HTTP/1.1', 'Transfer-Encoding: chunked') + chunked([smuggled])),
    'in chunks, on GET': then(lasting('GET /a HTTP/1.1', 'Transfer-Encoding: chunked') + chunked([smuggled])),
    'in chunks, on DELETE': then(lasting('DELETE /a HTTP/1.1', 'Transfer-Encoding: chunked') + chunked([smuggled])),
    'with trailers': then(lasting('PUT /a HTTP/1.1', 'Transfer-Encoding: chunked') + chunked(['a'], ['X-T: 1'])),
    'of no bytes': then(lasting('POST /a HTTP/1.1', 'Content-Length: 0')),
    'of none': then(lasting('POST /a HTTP/1.1')),
    'with line ends between': then(`${lasting('POST /a HTTP/1.1', 'Content-Length: 2')}hi\r\n\r\n`),
  },
  textbook: ['of none', 'with trailers'],
  check({ seen }) {
    expect((seen as Seen[]).map(({ url }) => url)).to.have.members(['/a', '/next']);
  },
});

/** No whole request may reach the app. (That one has begun it may see, or not: its client may leave before it could.) */
const unsound = (text: string): Case => ({
  text,
  requests: 0,
  serve: (request, response, note) =>
    void read(request)
      .then(note, () => undefined)
      .then(() => response.end()),
});

/** The same once the app has the head. */
const broken = (rest: string): Case => ({
  requests: 1,
  serve(request, response, note) {
    response.writeProcessing();
    void read(request).then(note, () => note('broken off'));
  },
  async converse(wire) {
    const interim = await wire.send(chunkedPost()).until('\r\n\r\n');
    return interim + (await wire.send(rest).rest());
  },
});

family('a request whose framing is unsound', {
  cases: {
    'both in chunks and of a known length': unsound(chunkedPost('Content-Length: 3') + chunked(['a'])),
    'both of a known length and in chunks': unsound(post('Content-Length: 3', 'Transfer-Encoding: chunked') + 'abc'),
    'of two lengths': unsound(`${post('Content-Length: 2', 'Content-Length: 3')}abc`),
    'of the same length twice': unsound(`${post('Content-Length: 2', 'Content-Length: 2')}hi`),
    'of a length that is no number': unsound(`${post('Content-Length: 2a')}hi`),
    'of a negative length': unsound(`${post('Content-Length: -2')}hi`),
    'of a signed length': unsound(`${post('Content-Length: +2')}hi`),
    'of a coding that does not end in chunks': unsound(post('Transfer-Encoding: chunked, gzip') + chunked(['a'])),
    'of no coding': unsound(`${post('Transfer-Encoding: identity')}${smuggled}`),
    'with a blank ahead of the colon': unsound(`${post('Transfer-Encoding : chunked')}${chunked(['a'])}`),
    'with a folded line': unsound(post('X-A: 1\r\n Transfer-Encoding: chunked') + chunked(['a'])),
    'with a bare line feed': unsound(post('X-A: 1\nTransfer-Encoding: chunked') + chunked(['a'])),
    'with a NUL in a field': unsound(post('X-A: 1\0')),
    'whose chunks are nonsense': unsound(`${chunkedPost()}nonsense`),
    'whose second chunk is nonsense': unsound(`${chunkedPost()}1\r\na\r\nnonsense`),
    'whose chunk is longer than it says': unsound(`${chunkedPost()}1\r\nab\r\n0\r\n\r\n`),
    'whose chunk is of a length beyond all': unsound(`${chunkedPost()}fffffffffffffffff\r\na`),
    'whose trailer is nonsense': unsound(`${chunkedPost()}0\r\nX T: 1\r\n\r\n`),
    'with a length for a trailer': unsound(chunkedPost() + chunked(['hello'], ['Content-Length: 9'])),
    'with chunks for a trailer': unsound(chunkedPost() + chunked(['hello'], ['Transfer-Encoding: chunked'])),
    'whose chunks become nonsense once it has begun': broken('1\r\na\r\nnonsense'),
    'whose trailer becomes nonsense once it has begun': broken('1\r\na\r\n0\r\nX T: 1\r\n\r\n'),
  },
  textbook: /once it has begun$/,
  check({ reply }: Answer) {
    expect(reply).to.match(/HTTP\/1\.1 400 Bad Request\r\nConnection: close\r\n\r\n$/);
  },
});
