import { expect } from 'chai';
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import { apps } from '../fixtures/hop-apps.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { chunked, head, talk, Wire, type Port } from '../fixtures/hop-wire.ts';

const get = (target: string, connection = 'close'): string =>
  head(`GET ${target} HTTP/1.1`, sessionCookie, `Connection: ${connection}`);
const post = (length: number, connection = 'close'): string =>
  head('POST /first HTTP/1.1', sessionCookie, `Connection: ${connection}`, `Content-Length: ${length}`);

/** What one client and an app do, on a connection that another client's request may come on next. */
interface Trouble {
  readonly text: string;
  /** How much of the reply the client waits for. */
  readonly until?: RegExp;
  readonly serve: (request: IncomingMessage, response: ServerResponse) => unknown;
  /** What the app does once the other client's request is being served. */
  readonly late?: (request: IncomingMessage, response: ServerResponse, socket: IncomingMessage['socket']) => unknown;
}

const injected = 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil';
const isOk: Trouble['serve'] = (request, response) => request.resume().on('end', () => response.end('ok'));

const troubles: Record<string, Trouble> = {
  'a trailer that says that the connection ends': {
    text:
      head('POST /first HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked') +
      chunked(['hi'], ['Connection: close', 'proxy-connection: close']),
    serve: isOk,
  },
  'an early reply that ends the connection, to a body that nobody reads': {
    text: post(40_000) + 'x'.repeat(40_000),
    serve: (_request, response) => response.writeHead(401, { Connection: 'close' }).end('no'),
  },
  'an early reply in chunks that ends the connection, to a body that nobody reads': {
    text: post(40_000) + 'x'.repeat(40_000),
    serve: (_request, response) => (response.write('n'), response.end('o')),
  },
  'a late end of the socket': { text: get('/first'), serve: isOk, late: (_request, _response, socket) => socket.end() },
  'a late destruction of the socket': { text: get('/first'), serve: isOk, late: (request) => request.socket.destroy() },
  'a late destruction of the request': { text: get('/first'), serve: isOk, late: (request) => request.destroy() },
  'a late destruction of the reply': { text: get('/first'), serve: isOk, late: (_, response) => response.destroy() },
  'a late write to the socket': {
    text: get('/first'),
    serve: isOk,
    late: (_request, _response, socket) => socket.write(`+${injected}`),
  },
  'a late member of the socket': {
    text: get('/first'),
    serve: isOk,
    late: (_request, _response, socket) => Object.assign(socket, { _httpMessage: null, parser: null, server: null }),
  },
  'a timeout of the socket': {
    text: get('/first'),
    serve(request, response) {
      request.socket.setTimeout(10, () => request.socket.destroy());
      response.setTimeout(10, () => response.destroy());
      isOk(request, response);
    },
    late: () => new Promise((resolve) => setTimeout(resolve, 50)),
  },
  'a late listener for whatever happens': {
    text: get('/first'),
    serve: isOk,
    late: (_request, _response, socket) => socket.removeAllListeners().on('data', () => socket.pause()),
  },
  'an end that throws, and another': {
    text: get('/first'),
    serve(_request, response) {
      Object.assign(response, { strictContentLength: true });
      response.writeHead(200, { 'Content-Length': 5 }).write('abc');
      expect(() => response.end()).to.throw();
      response.end('de');
    },
  },
  'an end of the wrong type, and another': {
    text: get('/first'),
    serve(_request, response) {
      expect(() => response.end(123 as never)).to.throw();
      response.end('ok');
    },
  },
  'a length in a coding that is not in chunks': {
    text: get('/first'),
    serve: (_request, response) =>
      response.writeHead(200, { 'Transfer-Encoding': 'identity', 'Content-Length': 5 }).end('hello'),
  },
  'a length in a coding that is not in chunks, ended late': {
    text: get('/first'),
    until: /hello/,
    serve: (_request, response) =>
      response.writeHead(200, { 'Transfer-Encoding': 'identity', 'Content-Length': 5 }).write('hello'),
    late: (_request, response) => response.end(),
  },
  'the head of chunks that never come': {
    text: get('/first').replace('GET', 'HEAD'),
    until: /\r\n\r\n/,
    serve: (_request, response) => response.writeHead(200, { 'Transfer-Encoding': 'chunked' }).flushHeaders(),
    late: (_request, response) => response.end(),
  },
  'a last chunk that the app writes itself': {
    text: get('/first'),
    until: /0\r\n\r\n/,
    serve: (_request, response) => (response.flushHeaders(), response.socket!.write('0\r\n\r\n')),
  },
  'text that looks like a last chunk': {
    text: get('/first'),
    serve: (_request, response) => (response.write('0\r\n\r\n', 'latin1'), response.end('0\r\n\r\n', 'latin1')),
  },
  'a reply of status 102': { text: get('/first'), serve: (_request, response) => response.writeHead(102).end() },
  'a length that is told twice': {
    text: get('/first'),
    serve: (_request, response) => response.setHeader('Content-Length', ['2', '2']).end('ok'),
  },
};

for (const [kind, makeApp] of Object.entries(apps)) {
  describe(`a connection of the hop that may be used again (${kind})`, () => {
    let twins: Twins;
    let serve: RequestListener;

    before(async () => {
      const app = makeApp(seeded((request, response) => serve(request, response)));
      twins = await startTwins(() => createServer(app));
    });
    after(() => twins.close());

    /** One client's exchange, and what another gets while, and after that, on whatever connection. */
    async function exchange(port: Port, { text, until, serve: first, late }: Trouble): Promise<unknown[]> {
      let goOn: () => unknown = () => undefined;
      let executed = 0;
      serve = (request, response) => {
        if (request.url === '/first') {
          const { socket } = request;
          goOn = () => late?.(request, response, socket);
          return void first(request, response);
        }
        executed++;
        if (request.url === '/hello') return void response.end('hello');
        setImmediate(() => void Promise.resolve(goOn()).then(() => setImmediate(() => response.end('slow'))));
      };
      const wire = new Wire(port).send(text);
      const reply = until === undefined ? await wire.rest() : await wire.until(until);
      const others = [await talk(port, get('/slow')), await talk(port, get('/hello')), await talk(port, get('/hello'))];
      wire.socket.destroy();
      return [
        reply.replace(/^Date: .*\r\n/m, ''),
        ...others.map((other) => other.slice(9, 12) + other.slice(-5)),
        executed,
      ];
    }

    for (const [name, trouble] of Object.entries(troubles)) {
      it(`harms no other client after ${name}`, async () => {
        const direct = await exchange(twins.direct, trouble);
        expect(direct.slice(1)).to.deep.equal(['200\nslow', '200hello', '200hello', 3]);
        for (let index = 0; index < 3; index++) {
          expect(await exchange(twins.forwarded, trouble)).to.deep.equal(direct);
        }
      });
    }

    it('is not used where its end is under way, however many early replies and other requests there are', async () => {
      let executed = 0;
      serve = (request, response) => {
        if (request.method === 'POST') return void response.writeHead(401).end('no');
        executed++;
        response.end('ok');
      };
      for (const size of [40_000, 200_000]) {
        const all = Array.from({ length: 400 }, async (_, index) => {
          if (index % 2 === 0) return void (await talk(twins.forwarded, post(size) + 'x'.repeat(size)));
          expect(await talk(twins.forwarded, get('/'))).to.match(/^HTTP\/1\.1 200 [^]*ok$/);
        });
        await Promise.all(all);
      }
      expect(executed).to.equal(400);
    });

    it('keeps no listener of an app whose request is over', async () => {
      const counts: number[] = [];
      serve = (request, response) => {
        request.socket.on('close', () => undefined).once('error', () => undefined);
        request.socket.setTimeout(60_000, () => undefined);
        counts.push(request.socket.eventNames().reduce((sum, name) => sum + request.socket.listenerCount(name), 0));
        response.end('ok');
      };
      for (let index = 0; index < 20; index++) await talk(twins.forwarded, get('/'));
      expect(new Set(counts).size).to.equal(1);
    });

    it('shows a client what the app has put on its socket, whatever else its requests say', async () => {
      serve = (request, response) => {
        const socket = request.socket as { mark?: string };
        response.end(`${(socket.mark ??= request.url!)} `);
      };
      for (const port of [twins.direct, twins.forwarded]) {
        const wire = new Wire(port).send(get('/1', 'keep-alive'));
        await wire.until('/1 ');
        wire.send(get('/2', 'keep-alive, X-A'));
        await wire.until('/1 ');
        wire.send(get('/3'));
        expect(await wire.rest()).to.match(/\/1 $/);
      }
    });
  });
}
