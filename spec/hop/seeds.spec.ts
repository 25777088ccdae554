import { expect } from 'chai';
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib';
import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie, type Seen } from '../fixtures/hop-twins.ts';
import { chunked, head } from '../fixtures/hop-wire.ts';

const json = '{ "resources_session_id": "hop", "caf\\u00e9": "caf\u00e9", "n": 1e400 , "n": [] }';
const latin1 = (bytes: Buffer): string => bytes.toString('latin1');
const plain = latin1(Buffer.from(json));
const large = latin1(Buffer.from(JSON.stringify({ resources_session_id: 'hop', data: '\u00e9'.repeat(1_000_000) })));

/** Bodies that name the session, and those that do not and are found by the cookie. */
const bodies: Record<string, [body: string, ...fields: string[]]> = {
  plain: [plain, 'Content-Type: application/json'],
  'of no content type': [plain],
  'of another content type': [plain, 'Content-Type: text/plain; charset=utf-8'],
  'of a content type that is none': [plain, 'Content-Type: nonsense'],
  'of two content types': [plain, 'Content-Type: application/json', 'Content-Type: text/plain'],
  'in UTF-16': [latin1(Buffer.from(`\ufeff${json}`, 'utf16le')), 'Content-Type: application/json; charset=utf-16'],
  'in UTF-16, without a mark': [
    latin1(Buffer.from(json, 'utf16le')),
    'Content-Type: application/json; charset="utf-16le"',
  ],
  'with a mark of its order': [latin1(Buffer.from(`\ufeff${json}`)), 'Content-Type: application/json'],
  'in gzip': [latin1(gzipSync(json)), 'Content-Type: application/json', 'Content-Encoding: gzip'],
  'in gzip, by another case': [latin1(gzipSync(json)), 'content-TYPE: application/json', 'content-ENCODING: GZIP'],
  'in deflate': [latin1(deflateSync(json)), 'Content-Type: application/json', 'Content-Encoding: deflate'],
  'in brotli': [latin1(brotliCompressSync(json)), 'Content-Type: application/json', 'Content-Encoding: br'],
  'in no coding': [plain, 'Content-Type: application/json', 'Content-Encoding: identity'],
  'in a coding that nobody knows': [plain, 'Content-Type: application/json', 'Content-Encoding: zstd, rot13'],
  'in a coding that it is not': [plain, 'Content-Type: application/json', 'Content-Encoding: gzip'],
  'in a charset that nobody knows': [plain, 'Content-Type: application/json; charset=klingon'],
  'with a digest': [plain, 'Content-Type: application/json', 'Digest: sha-256=abc', 'Content-MD5: x'],
  'of no JSON': ['{"resources_session_id": ', 'Content-Type: application/json'],
  'of any bytes': [latin1(Buffer.from([0, 255, 13, 10, 48, 13, 10, 13, 10]))],
  'of blanks': [' \r\n\t ', 'Content-Type: application/json'],
  'of two megabytes': [large, 'Content-Type: application/json'],
};

const cases: Record<string, Case | string> = {};
for (const [name, [body, ...fields]] of Object.entries(bodies)) {
  // A body that names no session is one of the session that its cookie names.
  const named = [sessionCookie, ...fields];
  cases[`a seed, ${name}`] = head('POST /seed_session HTTP/1.1', ...named, `Content-Length: ${body.length}`) + body;
  const parts = [body.slice(0, 7), body.slice(7, 8), body.slice(8)].filter((part) => part !== '');
  cases[`a seed in chunks, ${name}`] =
    head('POST /seed_session HTTP/1.1', ...named, 'Transfer-Encoding: chunked') +
    chunked(parts, ['X-T: 1', 'x-t: \xe9']);
}

const length = `Content-Length: ${plain.length}`;
const type = 'Content-Type: application/json';
Object.assign(cases, {
  'a seed without a cookie': head('POST /seed_session HTTP/1.1', type, length) + plain,
  'a seed without a cookie, in gzip and chunks':
    head('POST /seed_session HTTP/1.1', type, 'Content-Encoding: gzip', 'Transfer-Encoding: chunked') +
    chunked([latin1(gzipSync(json))], ['X-T: 1']),
  'a seed by another spelling': head('POST /Seed_Session/?a=1&&b HTTP/1.1', type, length) + plain,
  'a seed under a rollout': head('POST /ng-rollout/1/seed_session HTTP/1.1', type, length) + plain,
  'a seed by its absolute target': head('POST http://app.example/seed_session HTTP/1.1', type, length) + plain,
  'a seed of HTTP/1.0': head('POST /seed_session HTTP/1.0', type, length) + plain,
  'a close': head('POST /close_session HTTP/1.1', sessionCookie, type, length) + plain,
  'a close without a cookie': head('POST /close_session HTTP/1.1', type, length) + plain,
  'a close without a body': head('POST /close_session HTTP/1.1', sessionCookie),
  'a close of no bytes': head('POST /close_session HTTP/1.1', sessionCookie, 'Content-Length: 0'),
  'a close of no chunks':
    head('POST /close_session HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked') + chunked([]),
  'a close of no chunks, with trailers':
    head('POST /close_session HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked') + chunked([], ['X-T: 1']),
  'a close whose body comes late': {
    async converse(wire) {
      const interim = await wire
        .send(head('POST /close_session HTTP/1.1', type, length, 'Expect: 100-continue'))
        .until('\r\n\r\n');
      return interim + (await wire.send(plain).rest());
    },
  },
  'a seed and a close on one connection': {
    requests: 2,
    text:
      head('POST /seed_session HTTP/1.1', type, length, 'Connection: keep-alive') +
      plain +
      head('POST /close_session HTTP/1.1', type, length) +
      plain,
  },
} satisfies typeof cases);

family('a forwarded request whose body the router has read', {
  cases,
  textbook: /chunks, (?:(?!of no chunks).)*$|two content types|HTTP\/1\.0|close without a body/,
  check({ seen, reply }, name) {
    expect(reply).to.match(/HTTP\/1\.1 200 /);
    const { body } = seen[0] as Seen;
    const [, kind = ''] = /^a seed(?: in chunks)?, (.*)/.exec(name) ?? [];
    if (kind !== '') expect(body === bodies[kind]![0]).to.equal(true);
  },
});
