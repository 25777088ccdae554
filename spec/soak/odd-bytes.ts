import { randomBytes, randomInt } from 'node:crypto';

const latin1 = (text: string): Buffer => Buffer.from(text.replaceAll('\n', '\r\n'), 'latin1');
const head = (line: string, ...fields: string[]): Buffer =>
  latin1([line, 'Host: soak', ...fields, 'Connection: close', '', ''].join('\n'));

/** What no well-behaved client sends, and requests that end in the middle. */
const kinds: Readonly<Record<string, () => Buffer>> = {
  'no HTTP at all': () => randomBytes(randomInt(1, 5_000)),
  'a line feed for ever': () => Buffer.alloc(randomInt(1, 1_000), '\n'),
  'half a request line': () => latin1('GET /rea'),
  'half a head': () => latin1('POST /add HTTP/1.1\nHost: soak\nCook'),
  'half a body': () => Buffer.concat([head('POST /add HTTP/1.1', 'Content-Length: 100'), latin1('{"amount":')]),
  'a chunk of no length': () =>
    Buffer.concat([head('POST /add HTTP/1.1', 'Transfer-Encoding: chunked'), latin1('zz\n')]),
  'two lengths': () => head('POST /add HTTP/1.1', 'Content-Length: 1', 'Content-Length: 2'),
  'a length and chunks': () => head('POST /add HTTP/1.1', 'Content-Length: 5', 'Transfer-Encoding: chunked'),
  'a head of 100 kB': () => head('GET / HTTP/1.1', `X: ${'x'.repeat(100_000)}`),
  'a method that nobody knows': () => head('BREW /pot HTTP/1.1'),
  'a target that is none': () => head('GET /%zz/%00/..//\xff HTTP/1.1'),
  'another version of HTTP': () => head('GET / HTTP/3.7'),
  'a cookie with a bad signature': () => head('POST /read HTTP/1.1', 'Cookie: resources.sid=s%3Aabc.def'),
  'cookies of odd bytes': () => head('POST /read HTTP/1.1', `Cookie: resources.sid=${'%'.repeat(50)}\x80\xff; ;=;;`),
  'a token that is none': () => head('POST /mcp HTTP/1.1', 'X-NeMo-Gym-Session-Token: abc.def'),
  'a seed with a bad ID': () => {
    const body = '{"resources_session_id":"\\ud800"}';
    const fields = ['Content-Type: application/json', `Content-Length: ${body.length}`];
    return Buffer.concat([head('POST /seed_session HTTP/1.1', ...fields), latin1(body)]);
  },
  'an upgrade to nothing': () => latin1('GET / HTTP/1.1\nHost: soak\nConnection: Upgrade\nUpgrade:\n\n'),
  'many requests at once': () =>
    Buffer.concat(Array.from({ length: 8 }, () => latin1('GET / HTTP/1.1\nHost: soak\n\n'))),
};

/** Some odd bytes, and what they are. */
export function oddBytes(): { name: string; bytes: Buffer } {
  const names = Object.keys(kinds);
  const name = names[randomInt(names.length)]!;
  return { name, bytes: kinds[name]!() };
}
