import { expect } from 'chai';
import session from 'express-session';
import { once } from 'node:events';
import { createServer, get, IncomingMessage, ServerResponse, type RequestListener } from 'node:http';
import { Socket, type AddressInfo } from 'node:net';
import { SessionRoutingError } from '../lib/errors.ts';
import { checkSessionId, signCookie, signedCookieReader } from '../lib/session-id.ts';

const LONE_SURROGATES = ['\ud800', 'a\udfffb', '\udc00\ud800'];
const HOSTILE_IDS = [
  '../../x',
  '/etc/passwd',
  'a\0b',
  '__proto__',
  'constructor',
  ' spaced ',
  'a.b.c',
  '.',
  'semi;colon="quoted", comma',
  '%41%',
  's:nested.signature',
  'j:{"a":1}',
  'ID',
  'id',
  '\u00e9',
  'e\u0301',
  '\u{1f600}',
  'x'.repeat(4096),
];

describe('checkSessionId', () => {
  it('passes well-formed Unicode of up to 4,096 bytes on unchanged', () => {
    for (const id of [...HOSTILE_IDS, '\u00e9'.repeat(2048), '\u{1f600}'.repeat(1024)]) {
      expect(checkSessionId(id)).to.equal(id);
    }
  });

  it('refuses everything else without repeating it', () => {
    for (const id of [
      '',
      ...LONE_SURROGATES,
      'x'.repeat(4097),
      '\u00e9'.repeat(2049),
      '\u{1f600}'.repeat(1024) + 'x',
    ]) {
      const check = () => checkSessionId(id);
      expect(check).to.throw(SessionRoutingError).with.property('code', 'SESSION_ID_INVALID');
      if (id !== '') expect(check).to.throw().with.property('message').that.does.not.include(id);
    }
  });
});

describe('signedCookieReader', () => {
  const secrets = ['newest', 'older', 'oldest'];
  const names = ['connect.sid', 'a', '$+a*', 'a.c|b^`', '__proto__', 'toString', 'constructor', 'cookie'];

  for (const name of names) {
    it(`takes from any header the session ID that express-session takes, for a cookie named ${name}`, () => {
      const read = signedCookieReader(name, secrets);
      const readByExpressSession = expressSessionReader(name, secrets);
      const random = seededRandom(0x5e55);
      const found = { none: 0, some: 0, several: 0 };
      for (let count = 0; count < 4000; count += 1) {
        const header = randomHeader(random, name, secrets);
        const id = readByExpressSession(header);
        expect(read(header), `header ${JSON.stringify(header)}`).to.equal(id);
        found[id === undefined ? 'none' : 'some'] += 1;
        if (id !== undefined && header.split(name).length > 2) found.several += 1;
      }
      expect(found.none).to.be.above(500);
      if (name !== '__proto__') {
        expect(found.some).to.be.above(500);
        expect(found.several).to.be.above(200);
      }
    });
  }

  it('finds every hostile ID, signed with the newest secret or with a rotated one', () => {
    const read = signedCookieReader('connect.sid', secrets);
    for (const id of HOSTILE_IDS) {
      for (const secret of secrets) {
        expect(read(`connect.sid=${encodeURIComponent(signCookie(id, secret))}`)).to.equal(id);
      }
    }
  });

  it('counts an unsigned value, a foreign signature and an empty ID as no cookie', () => {
    const read = signedCookieReader('connect.sid', secrets);
    for (const value of ['plain', 's:', 's:plain', signCookie('id', 'foreign'), signCookie('', 'newest')]) {
      expect(read(`connect.sid=${encodeURIComponent(value)}`), value).to.equal(undefined);
    }
    expect(read(`connect.sid=${encodeURIComponent(`j:"${signCookie('id', 'newest')}"`)}`)).to.equal(undefined);
    expect(read(undefined)).to.equal(undefined);
    expect(read('')).to.equal(undefined);
  });

  it('keeps to the secrets that it was made with', () => {
    const rotated = ['newest'];
    const read = signedCookieReader('connect.sid', rotated);
    rotated.push('older');
    expect(read(`connect.sid=${encodeURIComponent(signCookie('id', 'older'))}`)).to.equal(undefined);
  });

  it('reads what Node makes of repeated Cookie fields as express-session reads it', async () => {
    const taken: unknown[] = [];
    const read = signedCookieReader('connect.sid', secrets);
    const readByExpressSession = expressSessionReader('connect.sid', secrets);
    await reply(
      (request, response) => {
        taken.push(read(request.headers.cookie), readByExpressSession(request.headers.cookie ?? ''));
        response.end();
      },
      {
        cookie: ['a=b', `connect.sid=${signCookie('first', 'older')}`, `connect.sid=${signCookie('second', 'newest')}`],
      },
    );
    expect(taken).to.deep.equal(['first', 'first']);
  });
});

describe('signCookie', () => {
  it('makes the value that express-session sends', async () => {
    for (const id of HOSTILE_IDS) {
      const middleware = session({
        name: 'sid',
        secret: ['newest', 'older'],
        genid: () => id,
        resave: false,
        saveUninitialized: true,
        store: new RecordingStore(),
      });
      const sent = await reply((request, response) =>
        middleware(request as never, response as never, () => response.end()),
      );
      expect(sent['set-cookie']?.[0]?.split(';')[0]).to.equal(`sid=${encodeURIComponent(signCookie(id, 'newest'))}`);
    }
  });
});

/** Remembers which session it was asked for, and knows none. */
class RecordingStore extends session.Store {
  asked: string | undefined;

  override get(sessionId: string, callback: (error: unknown, found?: session.SessionData | null) => void): void {
    this.asked = sessionId;
    callback(null, null);
  }

  override set(_sessionId: string, _data: session.SessionData, callback?: (error?: unknown) => void): void {
    callback?.();
  }

  override destroy(_sessionId: string, callback?: (error?: unknown) => void): void {
    callback?.();
  }
}

/** Which session ID a real express-session takes from a Cookie header: none where it throws. */
function expressSessionReader(name: string, secrets: string[]): (header: string) => string | undefined {
  const store = new RecordingStore();
  const middleware = session({ name, secret: secrets, store, resave: false, saveUninitialized: false });
  return (header) => {
    const request = new IncomingMessage(new Socket());
    Object.assign(request, { method: 'GET', url: '/' });
    request.headers.cookie = header;
    store.asked = undefined;
    try {
      middleware(request as never, new ServerResponse(request) as never, () => {});
    } catch (error) {
      // Under the name of a member of Object.prototype it takes the inherited member for a cookie.
      expect(name in {}).to.equal(true, String(error));
    }
    return store.asked;
  };
}

/** Serves one request with the listener and hands back the header of its reply. */
async function reply(
  listener: RequestListener,
  headers: { cookie?: string[] } = {},
): Promise<IncomingMessage['headers']> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const [response] = (await once(get({ port, host: '127.0.0.1', headers, agent: false }), 'response')) as [
    IncomingMessage,
  ];
  response.resume();
  await once(response, 'end');
  server.close();
  await once(server, 'close');
  return response.headers;
}

type Random = () => number;

/** Numbers from 0 to 1, always the same for a seed. */
function seededRandom(seed: number): Random {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

function pick<T>(random: Random, choices: readonly T[]): T {
  return choices[Math.floor(random() * choices.length)]!;
}

/** One to four cookies, most of them with the name or nearly so, joined soundly or not. */
function randomHeader(random: Random, name: string, secrets: string[]): string {
  const names = [
    name,
    name,
    name,
    name,
    name.toUpperCase(),
    `x${name}`,
    `${name}x`,
    encodeURIComponent(name),
    'other',
    '',
  ];
  let header = random() < 0.1 ? pick(random, [';', ' ', 'junk', 'junk; ', '=', '\t']) : '';
  const count = 1 + Math.floor(random() * 4);
  for (let index = 0; index < count; index += 1) {
    const equals = pick(random, ['=', '=', '=', '=', '=', '=', ' = ', '==', '']);
    header += pick(random, names) + equals + randomSpelling(random, randomValue(random, secrets));
    header += pick(random, ['; ', '; ', '; ', ';', ' ;\t', ';;', ', ', '']);
  }
  return header;
}

function randomValue(random: Random, secrets: string[]): string {
  const id = pick(random, [...HOSTILE_IDS, 'sess-1', 'sess-2', '']);
  const signed = signCookie(id, pick(random, [...secrets, ...secrets, 'foreign']));
  if (random() < 0.6) return signed;
  return pick(random, [
    `s:~${signed.slice(2)}`,
    `${signed.slice(0, -1)}~`,
    signed.slice(0, -1),
    signed.slice(2),
    `s:${signed}`,
    `S${signed.slice(1)}`,
    `j:${JSON.stringify(signed)}`,
    `j:{"id":"x"}`,
    id,
    's:',
    '',
  ]);
}

/** The value as clients may spell it: encoded as it should be, in odd ways, or brokenly. */
function randomSpelling(random: Random, value: string): string {
  const encoded = encodeURIComponent(value);
  const everyByte = Buffer.from(value).toString('hex').replace(/../g, '%$&');
  const asIs = /^[\t\x20-\x7e\x80-\xff]*$/.test(value) ? value : encoded;
  if (random() < 0.6) return encoded;
  return pick(random, [
    asIs,
    everyByte,
    encoded.toLowerCase(),
    encoded.replaceAll('%20', '+'),
    encodeURIComponent(encoded),
    `"${encoded}"`,
    `"${asIs}"`,
    `"${encoded}`,
    `  ${encoded}\t`,
    `${asIs}%`,
    `${encoded}%zz`,
    `%E0%A4${encoded}`,
    Buffer.from(value).toString('latin1'),
  ]);
}
