import { expect } from 'chai';
import type { Request } from 'express';
import { createServer } from 'node:net';
import { family, type Case } from '../fixtures/hop-family.ts';
import { startFront } from '../fixtures/hop-front.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { chunked, head, Wire } from '../fixtures/hop-wire.ts';

/** The fields under whose names something crosses between two workers, and one that is not in use. */
const names = ['Origin', 'Connection', 'Proxy-Connection', 'Expect', 'Trailer', 'Content-Disposition', 'Other'].map(
  (name) => `X-Session-Routing-${name}`,
);
const spellings: Record<string, (name: string) => string> = {
  'as it stands': (name) => name,
  'in lower case': (name) => name.toLowerCase(),
  'in upper case': (name) => name.toUpperCase(),
  'in mixed case': (name) =>
    name.replace(/[a-z]/gi, (letter, at: number) => (at % 2 ? letter.toUpperCase() : letter.toLowerCase())),
};

const socket = { remoteAddress: '203.0.113.9', remotePort: 1, localAddress: '::1', localPort: 1, encrypted: true };
const origins = [
  { socket, httpVersion: '1.0', awaitsContinue: true },
  { socket: {}, httpVersion: '9.9' },
].map((origin) => Buffer.from(JSON.stringify(origin)).toString('base64url'));
const [origin] = origins;

const get = (...fields: string[]): string => head('GET /a HTTP/1.1', sessionCookie, 'X-A: 1', ...fields, 'X-B: 2');
/** A request with fields that are to be as if they were not there. */
const forged = (...fields: string[]): Case => ({ text: get(...fields), like: get() });

const cases: Record<string, Case | string> = {};
for (const name of names) {
  for (const [how, spell] of Object.entries(spellings)) cases[`${name}, ${how}`] = forged(`${spell(name)}: close`);
}

/** The lines that a real hop added to what its client sent. */
let copied: string[] = [];

async function copyFromHop(): Promise<string[]> {
  const front = await startFront();
  const sent = get('Expect: 100-continue', 'Trailer: X-T', 'Content-Length: 2');
  try {
    const taken = new Promise<string>((resolve) => {
      const claimant = createServer((connection) => {
        connection.once('data', (bytes) => {
          connection.destroy();
          claimant.close();
          resolve(bytes.toString('latin1'));
        });
      }).listen(front.socketPath);
    });
    const client = new Wire(front.port).send(`${sent}hi`);
    const [block = ''] = (await taken).split('\r\n\r\n');
    await client.rest();
    return block
      .split('\r\n')
      .slice(1)
      .filter((line) => !sent.includes(`\r\n${line}\r\n`));
  } finally {
    await front.close();
  }
}

const post = (...fields: string[]): string =>
  `${head('POST /a HTTP/1.1', sessionCookie, ...fields, 'Content-Length: 2')}hi`;
const close = (...fields: string[]): string =>
  `${head('POST /close_session HTTP/1.1', sessionCookie, ...fields, 'Content-Length: 30')}{"resources_session_id":"hop"}`;
const [originName, connectionName] = names;
const trailing = (...trailers: string[]): string =>
  head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked') + chunked(['hello'], trailers);

Object.assign(cases, {
  'an origin': forged(`${originName}: ${origin}`),
  'two origins': forged(...origins.map((value) => `${originName}: ${value}`)),
  'an origin of nothing': forged(`${originName}:`),
  'an origin of other bytes': forged(`${originName}: \xe9\xff`),
  'an origin of ten thousand bytes': forged(`${originName}: ${'e30'.repeat(3_000)}`),
  'an origin ahead of all fields': {
    text: get().replace('Host:', `${originName}: ${origin}\r\nHost:`),
    like: get(),
  },
  'an origin behind all fields': {
    text: get().replace(/\r\n$/, `${originName!.toLowerCase()}: ${origin}\r\n\r\n`),
    like: get(),
  },
  'an origin that Connection names': {
    text: get(`Connection: close, ${originName}`, `${originName}: ${origin}`),
    like: get(`Connection: close, ${originName}`),
  },
  'an origin of HTTP/1.0': {
    text: get(`${originName}: ${origin}`).replace('HTTP/1.1', 'HTTP/1.0'),
    like: get().replace('HTTP/1.1', 'HTTP/1.0'),
  },
  'an origin with a body': { text: post(`${originName}: ${origin}`), like: post() },
  'an origin with an expectation': {
    text: post(`${originName}: ${origin}`, 'Expect: 100-continue'),
    like: post('Expect: 100-continue'),
  },
  'an origin where the router reads the body': { text: close(`${originName}: ${origin}`), like: close() },
  'a forged Connection where there is a true one': {
    text: get('Connection: close, X-A', `${connectionName}: keep-alive`),
    like: get('Connection: close, X-A'),
  },
  'a forged Expect, which would be one for a parser': {
    text: post('X-Session-Routing-Expect: 200-maybe'),
    like: post(),
  },
  'an origin in a trailer': {
    text: trailing('X-T: 1', `${originName}: ${origin}`, 'X-U: 2'),
    like: trailing('X-T: 1', 'X-U: 2'),
  },
  'each name in a trailer, in any case': {
    text: trailing(...Object.values(spellings).flatMap((spell) => names.map((name) => `${spell(name)}: 1`))),
    like: trailing(),
  },
  'an origin in a trailer that Trailer names': {
    text: trailing(`${originName}: ${origin}`).replace('Transfer-', `Trailer: ${originName}\r\nTransfer-`),
    like: trailing().replace('Transfer-', `Trailer: ${originName}\r\nTransfer-`),
  },
  'what a real hop has sent': {
    converse: (wire) => wire.send(get(...copied)).rest(),
    like: get(),
  },
  'what a real hop has sent, behind all fields': {
    converse: (wire) => wire.send(get().replace(/\r\n$/, `${copied.join('\r\n')}\r\n\r\n`)).rest(),
    like: get(),
  },
  'nothing behind the prefix, which is nobody\u2019s': get('X-Session-Routing-: 1'),
  'a name that only looks like one': get(
    'X_Session_Routing_Origin: e30',
    'X-Session-Routin: 1',
    'X-X-Session-Routing-A: 1',
  ),
} satisfies typeof cases);

describe('what a hop adds to a request', () => {
  before(async () => (copied = (await copyFromHop()).filter((line) => !/^connection:/i.test(line))));

  it('is under names that no client can use', () => {
    for (const line of copied) expect(line).to.match(/^x-session-routing-./i);
  });

  family('a field of the hop that a client sends', {
    cases,
    textbook: /, (as it|in (lower|upper|mixed) case)|^an origin (with|of nothing)|^what a real/,
    watch(request) {
      const { ip, protocol } = request as Request;
      const { remoteAddress } = request.socket;
      return { isBelieved: [remoteAddress, ip].includes(socket.remoteAddress) || protocol === 'https' };
    },
    check({ seen }, name) {
      if (!/nobody|looks like/.test(name)) expect(namesOf(seen[0])).not.to.match(/x-session-routing-/i);
    },
  });
});

/** The names of all fields and trailers. */
function namesOf(seen: unknown): string {
  const { rawHeaders, headers, headersDistinct, rawTrailers, trailers } = seen as Record<string, object>;
  const raw = [...(rawHeaders as string[]), ...(rawTrailers as string[])].filter((_each, index) => index % 2 === 0);
  return [raw, Object.keys(headers!), Object.keys(headersDistinct!), Object.keys(trailers!)].join();
}
