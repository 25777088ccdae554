import { expect } from 'chai';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { family, type Case } from '../fixtures/hop-family.ts';
import { endsOf, named } from '../fixtures/hop-ends.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

type Look = (request: IncomingMessage, response: ServerResponse) => unknown;

/** What an app may look at to learn of its client's connection. */
const looks: Readonly<Record<string, Look>> = {
  'request.socket': (request) => endsOf(request.socket),
  'request.connection': (request) => endsOf(request.connection),
  'request.client': (request) => endsOf((request as unknown as { client: Socket }).client),
  'response.socket': (_request, response) => endsOf(response.socket),
  'response.connection': (_request, response) => endsOf(response.connection),
  'response.req.socket': (_request, response) => endsOf(response.req.socket),
  'which of them are the same': (request, response) => {
    const { socket, connection } = request;
    const { client } = request as unknown as { client: Socket };
    return [connection, client, request.socket, response.socket, response.connection].map((each) => each === socket);
  },
  'the state that it is in': ({ socket }) => {
    const { destroyed, readable, writable, readyState, connecting, pending } = socket;
    return { destroyed, readable, writable, readyState, connecting, pending };
  },
  'what its methods return': ({ socket }) => {
    const returned = [socket.setNoDelay(true), socket.setKeepAlive(true), socket.setTimeout(0), socket.ref()];
    return returned.map(({ remoteAddress }) => remoteAddress);
  },
};

/** Looks at the connection three times while the request is served, and once its reply has been sent. */
function looking(look: Look): Case {
  return {
    async converse(wire) {
      wire.send(head('POST / HTTP/1.1', sessionCookie, 'Content-Length: 4', 'Connection: keep-alive') + 'body');
      const reply = await wire.until('end of it');
      wire.send(head('GET / HTTP/1.1', sessionCookie));
      return named(reply + (await wire.until('end of it')), wire.socket);
    },
    serve(request, response) {
      const seen = [look(request, response)];
      request.resume().once('end', () => {
        seen.push(look(request, response));
        response.setHeader('X-Ahead', JSON.stringify(look(request, response)));
        response.end(`${JSON.stringify(seen)} end of it`);
      });
    },
    requests: 0,
  };
}

for (const tls of [false, selfSigned()]) {
  family(`the connection of a forwarded request's client, over ${tls ? 'https' : 'http'}, as the app sees it by`, {
    tls,
    cases: Object.fromEntries(Object.entries(looks).map(([name, look]) => [name, looking(look)])),
    textbook: /^re/,
    check({ reply }, name) {
      if (name.startsWith('re')) expect(reply).to.match(/"remotePort":"of the client"[^]*"localPort":"of the server"/);
    },
  });
}
