import { expect } from 'chai';
import { createServer, type Server } from 'node:http';
import { family, type Case } from '../fixtures/hop-family.ts';
import { read, seeded, sessionCookie, startTwins } from '../fixtures/hop-twins.ts';
import { chunked, head, talk } from '../fixtures/hop-wire.ts';

const expecting = (value: string, ...fields: string[]): string =>
  head('POST /a HTTP/1.1', sessionCookie, 'X-A: \xc3\xa9', ...fields, `Expect: ${value}`);
const length = 'Content-Length: 2';

/** Sends a head, waits for what comes, then sends the body after all. */
const waiting = (text: string, rest: string): Case => ({
  async converse(wire) {
    const first = await wire.send(text).until('\r\n\r\n');
    return [first, await wire.send(rest).rest()];
  },
});
const asked: Record<string, Case> = {
  'of a known length': waiting(expecting('100-continue', length), 'hi'),
  'in chunks': waiting(expecting('100-continue', 'Transfer-Encoding: chunked'), chunked(['hi'], ['X-T: 1'])),
  'by another case': waiting(expecting('100-Continue', length), 'hi'),
};
/** The first part of what came back, ahead of the body. */
const firstOf = (reply: unknown): string => (reply as string[])[0]!;

family('a forwarded request that expects 100 Continue where nobody listens for it', {
  cases: {
    ...asked,
    'with its body at once': `${expecting('100-continue', length)}hi`,
    'without a body': expecting('100-continue'),
    'of no bytes': expecting('100-continue', 'Content-Length: 0'),
    twice: `${expecting('100-continue', length, 'Expect: 100-continue')}hi`,
    'for which the router waits': {
      converse: async (wire) => {
        const seed = head('POST /seed_session HTTP/1.1', 'Content-Length: 30', 'Expect: 100-continue');
        const first = await wire.send(seed).until('\r\n\r\n');
        return first + (await wire.send('{"resources_session_id":"hop"}').rest());
      },
    },
  },
  textbook: ['without a body'],
  check: ({ reply }) => expect([reply].flat().join('')).to.match(/^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 /),
});

/** An app that decides by itself, by a header or at all. */
const listens = (server: Server): void =>
  void server.on('checkContinue', (request, response) => {
    response.writeContinue();
    server.emit('request', request, response);
  });
family('a forwarded request that expects 100 Continue where the app listens for it', {
  prepare: listens,
  cases: { ...asked, 'with its body at once': `${expecting('100-continue', length)}hi` },
  textbook: Object.keys(asked),
  check: ({ reply }) => expect([reply].flat().join('')).to.match(/^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 /),
});

/** What an app sends in place of `100 Continue`, and the client its body after all. */
const refusals: Record<string, (server: Server) => unknown> = {
  'with 417': (server) => server.on('checkContinue', (_request, response) => response.writeHead(417).end()),
  'with 413 and a body': (server) =>
    server.on('checkContinue', (_request, response) => response.writeHead(413, { 'X-A': '1' }).end('too large')),
  'with an answer of its own': (server) => server.on('checkContinue', (_request, response) => response.end('done')),
};
for (const [how, prepare] of Object.entries(refusals)) {
  family(`a forwarded request that expects 100 Continue and is refused ${how}`, {
    prepare,
    cases: Object.fromEntries(Object.entries(asked).map(([name, one]) => [name, { ...one, requests: 0 }])),
    textbook: Object.keys(asked),
    check: ({ reply }) => expect(firstOf(reply)).to.match(/^HTTP\/1\.1 (417|413|200) /),
  });
}

const others = {
  'that is none': `${expecting('200-maybe', length)}hi`,
  'of nothing': `${expecting('', length)}hi`,
  'among others': `${expecting('100-continue, other', length)}hi`,
  'on GET': head('GET /a HTTP/1.1', sessionCookie, 'Expect: other'),
};
family('a forwarded request of another expectation, for which nobody listens', {
  cases: Object.fromEntries(
    Object.entries(others).map(([name, text]) => [name, { text, requests: /among/.test(name) ? 1 : 0 }]),
  ),
  textbook: ['among others'],
});
family('a forwarded request of another expectation, for which the app listens', {
  prepare: (server) =>
    server.on('checkExpectation', (request, response) => {
      void read(request).then(() => response.writeHead(200, { 'X-Expect': request.headers.expect }).end('checked'));
    }),
  cases: Object.fromEntries(
    Object.entries(others).map(([name, text]) => [name, { text, requests: /among/.test(name) ? 1 : 0 }]),
  ),
  textbook: Object.keys(others),
});

describe('a request of another expectation', () => {
  it('is checked by the app of the worker that holds its session', async () => {
    const twins = await startTwins((_routing, index) =>
      createServer(seeded((_request, response) => response.end())).on('checkExpectation', (_request, response) => {
        response.end(`worker ${index}`);
      }),
    );
    try {
      const text = head('GET /a HTTP/1.1', sessionCookie, 'Expect: other');
      const replies = [await talk(twins.direct, text), await talk(twins.forwarded, text)];
      for (const reply of replies) expect(reply).to.match(/worker 0$/);
    } finally {
      await twins.close();
    }
  });
});
