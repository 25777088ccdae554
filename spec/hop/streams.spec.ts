import { expect } from 'chai';
import type { ServerResponse } from 'node:http';
import { startRemoteFront, type RemoteFront } from '../fixtures/hop-front.ts';
import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';
import { until } from '../fixtures/routed.ts';

const rounds = 50;

function get(...fields: string[]): string {
  return head('GET /a HTTP/1.1', sessionCookie, 'Connection: keep-alive', ...fields);
}

/** An app that says something whenever its client has got what it said before. */
function speaks(begin: (response: ServerResponse) => void, what: (round: number) => string, text = get()): Case {
  let say: (() => void) | undefined;
  return {
    async converse(wire) {
      say = undefined;
      wire.send(text);
      const said = [await wire.until('\r\n\r\n')];
      await until(() => say !== undefined, 'the app speaks');
      for (let round = 0; round < rounds; round++) {
        say!();
        said.push(await wire.until(what(round)));
      }
      wire.socket.destroy();
      return said.join('');
    },
    serve(request, response, note) {
      note(request.url);
      let round = 0;
      begin(response);
      response.flushHeaders();
      say = () => response.write(what(round++));
    },
  };
}

/** An app that answers each part of a body that is never whole. */
function echoes(text: string, frame: (part: string) => string): Case {
  return {
    async converse(wire) {
      wire.send(text);
      const said: string[] = [];
      for (let round = 0; round < rounds; round++) {
        wire.send(frame(`part ${round};`));
        said.push(await wire.until(`PART ${round};`));
      }
      wire.socket.destroy();
      return said.join('');
    },
    serve(request, response, note) {
      note(request.url);
      request.on('error', () => undefined);
      request.on('data', (bytes: Buffer) => response.write(bytes.toString().toUpperCase()));
    },
  };
}

const sse = (response: ServerResponse): void =>
  void response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });

family('a stream', {
  cases: {
    'of events, each of which arrives before the next': speaks(sse, (round) => `id: ${round}\ndata: x\n\n`),
    'of single bytes': speaks(sse, (round) => String.fromCharCode(97 + (round % 26))),
    'of a known length': speaks(
      (response) => response.writeHead(200, { 'Content-Length': 100_000 }),
      (round) => `line ${round}\n`,
    ),
    'to a client of HTTP/1.0': speaks(sse, (round) => `line ${round}\n`, head('GET /a HTTP/1.0', sessionCookie)),
    // In chunks, their sizes would stand between the bytes that the client waits for.
    'of large parts': speaks(
      (response) => response.writeHead(200, { 'Content-Length': 100_000_000 }),
      (round) => `${'x'.repeat(200_000)}${round}\n`,
    ),
    'that answers a body in chunks as it comes': echoes(
      head('POST /a HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked'),
      (part) => `${part.length.toString(16)}\r\n${part}\r\n`,
    ),
    'that answers a body of a known length as it comes': echoes(
      head('POST /a HTTP/1.1', sessionCookie, 'Content-Length: 100000'),
      (part) => part,
    ),
  },
  textbook: ['of events, each of which arrives before the next'],
});

describe('many long streams', () => {
  let front: RemoteFront;

  before(async () => (front = await startRemoteFront()));
  after(() => front.close());

  it('each get their own events in order, and short requests beside them are answered', async () => {
    const streams = 1_000;
    const events = 10;
    const open = new Map<string, ServerResponse>();
    await front.serve((request, response) => {
      const { url = '' } = request;
      if (url === '/short') return void response.end('short');
      response.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders();
      open.set(url, response);
    });
    const wires = Array.from({ length: streams }, (_, index) =>
      new Wire(front.port).send(head(`GET /${index} HTTP/1.1`)),
    );
    await Promise.all(wires.map((wire) => wire.until('\r\n\r\n')));
    expect(open.size).to.equal(streams);

    for (let event = 0; event < events; event++) {
      for (const [url, response] of open) response.write(`id: ${event}\ndata: ${url}\n\n`);
      const replies = Array.from({ length: 20 }, () => talk(front.port, head('GET /short HTTP/1.1')));
      for (const reply of await Promise.all(replies)) expect(reply).to.match(/^HTTP\/1\.1 200 [^]*short$/);
    }
    for (const response of open.values()) response.end();
    for (const [index, wire] of wires.entries()) {
      const expected = Array.from({ length: events }, (_, event) => `id: ${event}\ndata: /${index}\n\n`).join('');
      expect(unchunked(await wire.rest())).to.equal(expected);
    }
  });
});

/** The data of a body in chunks. */
function unchunked(text: string): string {
  const [, size = '0'] = /^([\da-f]+)\r\n/i.exec(text) ?? [];
  const length = parseInt(size, 16);
  const start = size.length + 2;
  return length === 0 ? '' : text.slice(start, start + length) + unchunked(text.slice(start + length + 2));
}
