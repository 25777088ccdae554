import { expect } from 'chai';
import { createServer, type ServerResponse } from 'node:http';
import { apps } from '../fixtures/hop-apps.ts';
import { closed } from '../fixtures/hop-front.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';

interface Unfinished {
  readonly method?: string;
  readonly begin: (response: ServerResponse) => unknown;
  /** What its client gets of it. */
  readonly whole: RegExp;
}

/** Replies of which the app has sent everything, but that it has not ended. */
const replies: Record<string, Unfinished> = {
  'to HEAD, on a route that streams': {
    method: 'HEAD',
    begin: (response) => response.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders(),
    whole: /^HTTP\/1\.1 200 [^]*\r\n\r\n$/,
  },
  'to HEAD, of a known length': {
    method: 'HEAD',
    begin: (response) => response.writeHead(200, { 'Content-Length': 5 }).flushHeaders(),
    whole: /^HTTP\/1\.1 200 [^]*\r\n\r\n$/,
  },
  'of status 204': {
    begin: (response) => response.writeHead(204).flushHeaders(),
    whole: /^HTTP\/1\.1 204 [^]*\r\n\r\n$/,
  },
  'of status 304': {
    begin: (response) => response.writeHead(304).flushHeaders(),
    whole: /^HTTP\/1\.1 304 [^]*\r\n\r\n$/,
  },
  'of a known length': {
    begin: (response) => response.writeHead(200, { 'Content-Length': 5 }).write('whole'),
    whole: /whole$/,
  },
  'of a known length, in parts': {
    begin(response) {
      response.writeHead(200, { 'Content-Length': 5 }).write('who');
      setImmediate(() => response.write('le'));
    },
    whole: /whole$/,
  },
  'of no bytes': {
    begin: (response) => response.writeHead(200, { 'Content-Length': 0 }).flushHeaders(),
    whole: /^HTTP\/1\.1 200 [^]*\r\n\r\n$/,
  },
  'that was written to the connection itself': {
    begin: (response) => response.socket!.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole'),
    whole: /whole$/,
  },
};

for (const [kind, makeApp] of Object.entries(apps)) {
  describe(`a forwarded reply that is not ended, though all of it was sent (${kind})`, () => {
    let twins: Twins;
    let begin: Unfinished['begin'];
    let unfinished: ServerResponse[];

    before(async () => {
      const app = makeApp(
        seeded((request, response) => {
          if (request.url === '/hello') return void response.end('hello');
          unfinished.push(response);
          begin(response);
        }),
      );
      twins = await startTwins(() => createServer(app));
    });
    after(() => twins.close());

    const hello = (connection: string): string =>
      head('GET /hello HTTP/1.1', sessionCookie, `Connection: ${connection}`);

    for (const [name, reply] of Object.entries(replies)) {
      const text = head(`${reply.method ?? 'GET'} /unfinished HTTP/1.1`, sessionCookie, 'Connection: keep-alive');

      it(`holds up no other client, and its own as long as with one worker: ${name}`, async () => {
        begin = reply.begin;
        for (const port of [twins.direct, twins.forwarded]) {
          unfinished = [];
          const wire = new Wire(port).send(text);
          await wire.until(reply.whole);
          wire.send(hello('close'));
          for (let index = 0; index < 5; index++) expect(await talk(port, hello('close'))).to.match(/hello$/);
          expect(wire.received).to.equal('');
          if (name === 'that was written to the connection itself') {
            wire.socket.destroy(); // Node would send a reply of its own, too
            continue;
          }
          unfinished[0]!.end();
          expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 [^]*hello$/);
        }
      });

      it(`is closed when its client leaves, and leaves no other client without a reply: ${name}`, async () => {
        begin = reply.begin;
        for (const port of [twins.direct, twins.forwarded]) {
          unfinished = [];
          const wire = new Wire(port).send(text);
          await wire.until(reply.whole);
          wire.socket.destroy();
          await closed(unfinished[0]!);
          expect(await talk(port, hello('close'))).to.match(/hello$/);
        }
      });
    }
  });
}
