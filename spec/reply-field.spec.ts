import { expect } from 'chai';
import express from 'express';
import expressSession from 'express-session';
import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type RequestListener } from 'node:http';
import type { ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { refuse, SessionRoutingError, silence } from '../lib/errors.ts';
import { watchReplyField } from '../lib/reply-field.ts';
import { listening, portOf, send, type RawReply } from './fixtures/routed.ts';

const field = 'x-game-id';

/** What is told of the replies of a listener, with their statuses, and whether their heads had been sent by then. */
async function watched(listener: RequestListener, method = 'GET'): Promise<{ named: unknown[]; reply: RawReply }> {
  const named: unknown[] = [];
  const server = await listening(
    createServer((request, response) => {
      const onNamed = (value: string, status: number): void => void named.push([value, status, response.headersSent]);
      watchReplyField(response, field, { openInReply: onNamed, refuse: () => undefined });
      listener(request, response);
    }),
  );
  try {
    return { named, reply: await send({ to: portOf(server), method }) };
  } finally {
    server.close();
  }
}

function valueIn({ rawHeaders }: RawReply): string | undefined {
  const at = rawHeaders.findIndex((each, index) => index % 2 === 0 && each.toLowerCase() === field);
  return rawHeaders[at + 1];
}

/** As Node takes them, though its types do not say so. */
type Fields = string[];

const naming: Record<string, (response: ServerResponse) => unknown> = {
  'setHeader() and end()': (response) => response.setHeader(field, 'g').end('body'),
  'setHeader() in another case': (response) => response.setHeader('X-Game-ID', 'g').end('body'),
  'setHeader() and end() without a body': (response) => response.setHeader(field, 'g').end(),
  'setHeader() and write()': (response) => response.setHeader(field, 'g').write('body') && response.end(),
  'setHeaders()': (response) => response.setHeaders(new Map([[field, 'g']])).end(),
  'appendHeader()': (response) => response.appendHeader('X-Game-Id', 'g').end(),
  'setHeader() and flushHeaders()': (response) => {
    response.setHeader(field, 'g').flushHeaders();
    response.end('body');
  },
  'setHeader() and writeHead()': (response) => response.setHeader(field, 'g').writeHead(200).end('body'),
  'setHeader() and writeHead() with a reason': (response) =>
    response.setHeader(field, 'g').writeHead(200, 'Fine').end(),
  'setHeader() and writeHead() with other fields': (response) =>
    response.setHeader(field, 'g').writeHead(200, { 'X-Other': 'o' }).end(),
  'an object of writeHead()': (response) => response.writeHead(200, { 'X-Other': 'o', 'X-Game-Id': 'g' }).end('body'),
  'an object behind a reason': (response) => response.writeHead(200, 'Fine', { 'X-Game-Id': 'g' }).end('body'),
  'an object that overrules setHeader()': (response) =>
    response.setHeader(field, 'old').writeHead(200, { 'X-Game-Id': 'g' }).end('body'),
  'a list of writeHead()': (response) => response.writeHead(200, ['X-Other', field, 'X-Game-Id', 'g'] as Fields).end(),
  'a list of writeHead() on a reply with fields': (response) =>
    response
      .setHeader('X-Own', 'o')
      .writeHead(200, ['X-Game-Id', 'g', 'X-Other', 'o'] as Fields)
      .end(),
  'a list in which another field has several values': (response) =>
    response
      .setHeader('X-Own', 'o')
      .writeHead(200, ['Set-Cookie', ['a=1', 'b=2'], 'X-Game-Id', 'g'] as unknown as Fields)
      .end(),
  'pairs of writeHead()': (response) =>
    response
      .writeHead(200, [
        ['Set-Cookie', ['a=1', 'b=2']],
        ['X-Game-Id', 'g'],
      ] as unknown as Fields)
      .end(),
  'a redirection': (response) => response.setHeader(field, 'g').writeHead(303, { Location: '/' }).end(),
  'a reply whose status is set ahead': (response) => {
    response.statusCode = 201;
    response.setHeader(field, 'g').end();
  },
  'a value with blanks around it, as its receiver has it': (response) => response.setHeader(field, ' g\t').end(),
  'a number': (response) => response.setHeader(field, 7).end(),
  'one that fails by writeHead()': (response) => response.writeHead(400, { [field]: 'g' }).end(),
  'one that fails by writeHead() against statusCode': (response) => response.setHeader(field, 'g').writeHead(500).end(),
  'one that fails by statusCode': (response) => {
    response.statusCode = 404;
    response.setHeader(field, 'g').end();
  },
};

const unnamed: Record<string, (response: ServerResponse) => unknown> = {
  'without the field': (response) => response.setHeader('x-game', 'g').end('body'),
  'with the field empty': (response) => response.setHeader(field, '').end('body'),
  'with the field as a value': (response) =>
    response.writeHead(200, ['X-Other', 'x-game-id', 'X', 'g'] as Fields).end(),
  'that took the field back': (response) => {
    response.setHeader(field, 'g').removeHeader(field);
    response.end();
  },
};

describe('watchReplyField()', () => {
  for (const [what, answer] of Object.entries(naming)) {
    it(`tells of ${what}, once, ahead of the head`, async () => {
      const { named, reply } = await watched((_request, response) => void answer(response));
      const value = what === 'a number' ? '7' : 'g';
      expect(named).to.deep.equal([[value, reply.status, false]]);
      expect(valueIn(reply)?.trim()).to.equal(value);
      expect(reply.status >= 400).to.equal(what.includes('fails'));
    });
  }

  for (const [which, answer] of Object.entries(unnamed)) {
    it(`tells nothing of a reply ${which}`, async () => {
      expect((await watched((_request, response) => void answer(response))).named).to.deep.equal([]);
    });
  }

  it('tells of several fields what their receiver makes of them', async () => {
    const { named } = await watched((_request, response) => void response.setHeader(field, ['a', 'b']).end());
    expect(named).to.deep.equal([['a, b', 200, false]]);
  });

  it('tells of the reply to HEAD', async () => {
    const { named } = await watched((_request, response) => void response.setHeader(field, 'g').end('body'), 'HEAD');
    expect(named).to.deep.equal([['g', 200, false]]);
  });

  it('tells of the final head behind informational ones, and not of those', async () => {
    const named: string[] = [];
    const server = await listening(
      createServer((_request, response) => {
        watchReplyField(response, field, { openInReply: (value) => void named.push(value), refuse: () => undefined });
        response.writeProcessing();
        response.writeEarlyHints({ link: '</x>; rel=preload', 'x-game-id': 'early' });
        expect(named).to.deep.equal([]);
        response.setHeader(field, 'g').end('body');
      }),
    );
    const sent = httpRequest({ port: portOf(server), host: '127.0.0.1', agent: false }).end();
    const statuses: number[] = [];
    sent.on('information', ({ statusCode }: { statusCode: number }) => statuses.push(statusCode));
    const [response] = (await once(sent, 'response')) as [IncomingMessage];
    response.resume();
    server.close();
    expect([statuses, response.headers[field], named]).to.deep.equal([[102, 103], 'g', ['g']]);
  });

  it('leaves a reply alone whose head is written already', async () => {
    const { named, reply } = await watched((_request, response) => {
      response.setHeader(field, 'g').write('a');
      expect(() => response.writeHead(200, { [field]: 'other' })).to.throw('Cannot write headers');
      response.end('b');
    });
    expect([named, reply.text]).to.deep.equal([[['g', 200, false]], 'ab']);
  });
});

describe('a reply that watchReplyField() does not let through', () => {
  const refusal = new SessionRoutingError('SESSION_CLAIMED_ELSEWHERE', 'Taken.');

  /**
   * The bytes with which a server answers two requests, of which the first is refused for what its reply names, and
   * what went wrong with the reply.
   */
  async function bytesFrom(
    listener: RequestListener,
    wrap = (_request: IncomingMessage, _response: ServerResponse) => {},
  ) {
    const failures: unknown[] = [];
    const note = (error: unknown): void => void failures.push(error);
    process.on('uncaughtExceptionMonitor', note);
    const server = await listening(
      createServer((request, response) => {
        if (request.url === '/next') return void response.end('next reply');
        const onNamed = (): void => {
          throw refusal;
        };
        const giveRefusal = (): void => {
          refuse(response, refusal);
          silence(response);
        };
        watchReplyField(response, field, { openInReply: onNamed, refuse: giveRefusal });
        wrap(request, response);
        listener(request, response);
      }),
    );
    const client = connect(portOf(server), '127.0.0.1');
    client.write('POST /start HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n');
    client.write('GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    let received = '';
    for await (const chunk of client) received += String(chunk);
    server.close();
    process.off('uncaughtExceptionMonitor', note);
    return { received, failures };
  }

  /** Expects the refusal, whole and alone, and the next reply on the same connection. */
  function expectRefusal({ received, failures }: { received: string; failures: unknown[] }): void {
    const [head = '', rest = ''] = received.split(/\r\n\r\n(.*)/s);
    const document = JSON.stringify(refusal);
    expect(head).to.match(/^HTTP\/1\.1 409 Conflict\r\n/);
    expect(head).to.match(new RegExp(`^content-length: ${document.length}$`, 'im'));
    expect(head).not.to.match(/^(x-game-id|content-encoding|transfer-encoding):/im);
    expect(rest.slice(0, document.length)).to.equal(document);
    expect(rest.slice(document.length)).to.match(/^HTTP\/1\.1 200 OK\r\n[^{]*\r\n\r\nnext reply$/);
    expect(failures).to.deep.equal([]);
  }

  const named = (response: ServerResponse): ServerResponse => response.setHeader(field, 'g');
  const answers: Record<string, RequestListener> = {
    'end() with a body': (_request, response) => named(response).end('the reply of the app'),
    'end() with a body and a length': (_request, response) =>
      named(response).setHeader('Content-Length', 20).end('the reply of the app'),
    'end() without a body': (_request, response) => named(response).end(),
    'write() and end()': (_request, response) => {
      named(response).write('the reply ');
      response.write('of the ');
      response.end('app');
    },
    'write() of bytes': (_request, response) => {
      named(response).write(Buffer.from('the reply '));
      setImmediate(() => response.end('of the app'));
    },
    'writeHead()': (_request, response) =>
      response.writeHead(200, { [field]: 'g', 'Content-Encoding': 'x' }).end('app'),
    'flushHeaders()': (_request, response) => {
      named(response).flushHeaders();
      response.end('the reply of the app');
    },
    'a pipe': (_request, response) => void pipeline(Readable.from(['the reply ', 'of the app']), named(response)),
    Express: (() => {
      const app = express();
      app.use((_request, response) => void response.set(field, 'g').json({ app: 'reply' }));
      return app;
    })(),
  };
  for (const [what, answer] of Object.entries(answers)) {
    it(`is another in its place, of ${what}`, async () => expectRefusal(await bytesFrom(answer)));

    it(`is another in its place, of ${what} behind an express-session`, async () => {
      const session = expressSession({ secret: 'x', resave: false, saveUninitialized: true });
      const wrap = (request: IncomingMessage, response: ServerResponse): void =>
        void session(request as express.Request, response as express.Response, () => undefined);
      expectRefusal(await bytesFrom(answer, wrap));
    });

    it(`is another in its place, of ${what} behind a middleware that compresses`, async () => {
      expectRefusal(await bytesFrom(answer, (_request, response) => recode(response)));
    });
  }

  /** Wraps a reply as middleware that compresses does: with Node's own methods kept, and called later. */
  function recode(response: ServerResponse): void {
    const { write, end, writeHead } = response;
    let hasHead = false;
    response.writeHead = (...args: unknown[]) => {
      if (!hasHead) response.setHeader('Content-Encoding', 'x').removeHeader('Content-Length');
      hasHead = true;
      return Reflect.apply(writeHead, response, args);
    };
    const begin = (): void => {
      if (!hasHead) (response as unknown as { _implicitHeader(): void })._implicitHeader();
    };
    response.write = (chunk: unknown) => {
      begin();
      setImmediate(() => Reflect.apply(write, response, [`<${String(chunk)}`]));
      return true;
    };
    response.end = (chunk?: unknown) => {
      begin();
      setImmediate(() => Reflect.apply(end, response, [`<${String(chunk)}>`]));
      return response;
    };
  }
});
