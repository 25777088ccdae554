import { expect } from 'chai';
import express from 'express';
import { createServer, type ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import { startFront } from './fixtures/hop-front.ts';
import { comparable, sessionCookie, startNotingTwins, startTwins } from './fixtures/hop-twins.ts';
import { head, talk, Wire } from './fixtures/hop-wire.ts';

const utf8 = '\xc3\xa9';
type Answer = (response: ServerResponse) => void;

/** Replies, as an app makes them. */
const answers: Record<string, Answer> = {
  'of no length': (response) => response.end('ok'),
  'of a known length': (response) => response.writeHead(200, { 'Content-Length': 2 }).end('ok'),
  'in chunks': (response) => {
    response.write('one');
    response.write('two');
    setImmediate(() => response.end('three'));
  },
  'in chunks, of another coding': (response) =>
    response.writeHead(200, ['Transfer-Encoding', 'gzip, chunked']).end(Buffer.from('zipped')),
  'with trailers': (response) => {
    response.writeHead(200, { Trailer: 'X-T' });
    response.write('body');
    response.addTrailers([
      ['X-T', '1'],
      ['x-t', utf8],
    ]);
    response.end();
  },
  'with fields in any case and order, and repeated': (response) =>
    response.writeHead(200, ['x-B', '1', 'X-a', '2', 'X-b', '3', 'Vary', 'A', 'x-A', '', 'vary', 'B']).end(),
  'with several cookies': (response) =>
    response.writeHead(200, ['Set-Cookie', 'a=1', 'X-A', '1', 'Set-Cookie', 'b=2', 'set-cookie', 'c=3']).end(),
  'with any bytes': (response) =>
    response.writeHead(200, `Fine ${utf8}`, { 'X-A': `${utf8}\xe9\ta` }).end(Buffer.from('ok')),
  'with any bytes, before its body': (response) => {
    response.writeHead(200, { 'X-A': utf8 });
    response.flushHeaders();
    setImmediate(() => response.end('ok'));
  },
  'with a reason of its own': (response) => response.writeHead(299, 'Rather Fine').end('ok'),
  'without a reason': (response) => response.writeHead(200, '').end('ok'),
  'with a file name': (response) =>
    response
      .writeHead(200, { 'Content-Disposition': `attachment; filename="${utf8}"`, 'Content-Length': 2 })
      .end(Buffer.from('ok')),
  'without a date': (response) => {
    response.sendDate = false;
    response.end('ok');
  },
  'that closes': (response) => response.writeHead(200, { 'X-A': '1', connection: 'close' }).end('ok'),
  'that names a field of the connection': (response) =>
    response.writeHead(426, { Connection: 'Upgrade, close', Upgrade: 'websocket' }).end(),
  'of status 204': (response) => response.writeHead(204).end(),
  'of status 205': (response) => response.writeHead(205, { 'Content-Length': 0 }).end(),
  'of status 304': (response) => response.writeHead(304, { ETag: '"a"', 'Content-Length': 5 }).end(),
  'of status 304 that says it has chunks': (response) =>
    response.writeHead(304, { 'Transfer-Encoding': 'chunked' }).end(),
  'of status 500': (response) => response.writeHead(500).end('no'),
  'of status 999': (response) => response.writeHead(999).end(),
  'after hints': (response) => {
    response.writeEarlyHints({ link: ['</a.css>; rel=preload', '</b.css>; rel=preload'], 'x-a': '1' });
    response.writeProcessing();
    response.writeEarlyHints({ link: '</c.css>; rel=preload' });
    response.end('ok');
  },
  'after a 100 that nobody asked for': (response) => {
    response.writeContinue();
    response.end('ok');
  },
  'with many fields': (response) => {
    const fields = Array.from({ length: 3_000 }, (_, index) => [`X-${index}`, 'x'.repeat(50)]).flat();
    response.writeHead(200, fields).end('ok');
  },
};

describe('the reply to a forwarded request', () => {
  let twins: Awaited<ReturnType<typeof startNotingTwins>>;
  let answer: Answer;

  before(async () => (twins = await startNotingTwins((_seen, response) => answer(response))));
  after(() => twins.close());

  for (const [name, made] of Object.entries(answers)) {
    for (const line of ['GET / HTTP/1.1', 'HEAD / HTTP/1.1', 'GET / HTTP/1.0']) {
      // Express alone would say 500 here: Node lets no app send trailers to a client of HTTP/1.0, or without a body.
      if (name === 'with trailers' && line !== 'GET / HTTP/1.1') continue;
      it(`is the claimant's, ${name} (${line})`, async () => {
        answer = made;
        const { direct, forwarded } = await twins.both(head(line, sessionCookie));
        expect(forwarded.reply).to.equal(direct.reply);
        expect(direct.reply).to.match(/^HTTP\/1\.1 \d{3} /);
      });
    }
  }

  it('has its head at the client before there is a body', async () => {
    let response: ServerResponse | undefined;
    answer = (made) => {
      response = made.writeHead(200, { 'Content-Type': 'text/event-stream' });
      response.flushHeaders();
    };
    const wire = new Wire(twins.forwarded).send(head('GET / HTTP/1.1', sessionCookie));
    expect(await wire.until('\r\n\r\n')).to.match(/text\/event-stream/);
    for (const event of ['one', 'two']) {
      response!.write(`data: ${event}\n\n`);
      expect(await wire.until('\n\n\r\n')).to.contain(event);
    }
    response!.end();
    expect(await wire.rest()).to.equal('0\r\n\r\n');
  });

  it('comes with the interim replies at once', async () => {
    let response: ServerResponse | undefined;
    answer = (made) => {
      response = made;
      made.writeEarlyHints({ link: '</a.css>; rel=preload' });
    };
    const wire = new Wire(twins.forwarded).send(head('GET / HTTP/1.1', sessionCookie));
    expect(await wire.until('\r\n\r\n')).to.equal('HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n');
    response!.end('ok');
    expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 /);
  });

  it('keeps a connection that it can keep', async () => {
    answer = (response) => response.end('ok');
    for (const port of [twins.direct, twins.forwarded]) {
      const wire = new Wire(port);
      for (let index = 0; index < 3; index++) {
        wire.send(head('GET / HTTP/1.1', sessionCookie, 'Connection: keep-alive'));
        expect(await wire.until('ok')).to.match(/^Keep-Alive: timeout=5\r$/m);
      }
      wire.socket.destroy();
    }
  });

  it('comes whole when the claimant answers early and closes, as it would come from one worker', async () => {
    const front = await startFront();
    try {
      await front.serve((_request, response) => response.writeHead(413, { Connection: 'close' }).end('too large'));
      for (let index = 0; index < 20; index++) {
        const wire = new Wire(front.port);
        wire.send(head('POST / HTTP/1.1', 'Connection: keep-alive', 'Content-Length: 9000000'));
        wire.send(Buffer.alloc(index * 1_000)).send(Buffer.alloc(8_000_000));
        expect(await wire.until('too large')).to.match(/^HTTP\/1\.1 413 /);
        wire.socket.destroy();
      }
    } finally {
      await front.close();
    }
  });

  it('says the name of a file in the same bytes, where the length stands ahead of it', async () => {
    answer = (response) =>
      response
        .writeHead(200, ['Content-Length', '2', 'Content-Disposition', `attachment; filename="${utf8}"`])
        .end(Buffer.from('ok'));
    const { direct, forwarded } = await twins.both(head('GET / HTTP/1.1', sessionCookie));
    const field = /^Content-Disposition: .*/m;
    expect(field.exec(forwarded.reply)?.[0]).to.equal(field.exec(direct.reply)?.[0]);
  });

  describe('that is longer than it says', () => {
    const injected = 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil';
    /** Ways to begin a reply of two bytes, and to go on. */
    const longer: Record<string, [(response: ServerResponse) => void, (response: ServerResponse) => void]> = {
      text: [
        (response) => response.writeHead(200, { 'Content-Length': 2 }).write('ok'),
        (response) => response.end(injected),
      ],
      bytes: [
        (response) => response.setHeader('Content-Length', 2).write(Buffer.from('ok')),
        (response) => response.write(Buffer.from(injected), () => response.end()),
      ],
      'text of another encoding': [
        (response) => response.setHeader('Content-Length', '2').write('b2t4', 'base64'),
        (response) => response.end(injected, 'latin1'),
      ],
    };

    for (const [name, [begin, goOn]] of Object.entries(longer)) {
      it(`ends where it says, and the next reply is another client's own (${name})`, async () => {
        const front = await startFront();
        try {
          let first: ServerResponse | undefined;
          await front.serve((_request, response) => {
            if (first === undefined) return begin((first = response));
            // By now the next client's request has come on the same connection.
            expect(response.socket).to.equal(null);
            goOn(first);
            response.end('mine');
          });
          expect(await talk(front.port, head('GET /longer HTTP/1.1'))).to.match(/\r\n\r\nok$/);
          expect(await talk(front.port, head('GET /next HTTP/1.1'))).to.match(/\r\n\r\nmine$/);
        } finally {
          await front.close();
        }
      });
    }

    it('ends where it says when it is sent at once', async () => {
      const front = await startFront();
      try {
        await front.serve((_request, response) => response.setHeader('Content-Length', 2).end(`ok${injected}`));
        for (let index = 0; index < 2; index++) {
          expect(await talk(front.port, head('GET / HTTP/1.1'))).to.match(/\r\n\r\nok$/);
        }
      } finally {
        await front.close();
      }
    });
  });
});

describe('the reply to a request that an app forwards by its middleware', () => {
  const express4 = createRequire(import.meta.url)('express4') as typeof express;
  const makers = { 'Express 5': express, 'Express 4': express4 };

  for (const [name, make] of Object.entries(makers)) {
    it(`has every cookie and field of the claimant, and none of the other worker's (${name})`, async () => {
      const twins = await startTwins(
        (routing, index) =>
          createServer(
            make()
              .use((_request, response, next) => {
                // As helmet and the like do; what stands ahead of the router runs on both workers.
                response.setHeader('X-Worker', String(index));
                response.cookie('ahead', String(index));
                next();
              })
              .use(routing)
              .use((_request, response) => {
                response.append('Set-Cookie', ['a=1', 'b=2']).append('Vary', 'A').append('Vary', 'B');
                response.json({ a: 1 });
              }),
          ),
        { attach: false },
      );
      try {
        const request = head('GET / HTTP/1.1', sessionCookie);
        const [direct, forwarded] = [await talk(twins.direct, request), await talk(twins.forwarded, request)];
        expect(comparable(forwarded)).to.equal(comparable(direct));
        expect(direct.match(/^Set-Cookie: .*/gm)).to.have.length(3);
      } finally {
        await twins.close();
      }
    });

    const ahead: Record<string, express.RequestHandler> = {
      'set a field and took it back': (_request, response, next) => {
        response.setHeader('X-A', '1');
        response.removeHeader('X-A');
        next();
      },
      'takes a list of fields apart, as older releases of on-headers do': (_request, response, next) => {
        const { writeHead } = response;
        response.writeHead = (status: number, _reason?: unknown, fields: string[] = []) => {
          for (let index = 0; index < fields.length; index += 2) response.setHeader(fields[index]!, fields[index + 1]!);
          return writeHead.call(response, status);
        };
        next();
      },
    };
    for (const [what, middleware] of Object.entries(ahead)) {
      it(`has every cookie where something ahead ${what} (${name})`, async () => {
        const twins = await startTwins(
          (routing) =>
            createServer(
              make()
                .disable('x-powered-by')
                .use(middleware)
                .use(routing)
                .use((_request, response) => void response.append('Set-Cookie', ['a=1', 'b=2']).send('ok')),
            ),
          { attach: false },
        );
        try {
          const request = head('GET / HTTP/1.1', sessionCookie);
          const [direct, forwarded] = [await talk(twins.direct, request), await talk(twins.forwarded, request)];
          expect(comparable(forwarded)).to.equal(comparable(direct));
          expect(direct.match(/^Set-Cookie: .*/gm)).to.have.length(2);
        } finally {
          await twins.close();
        }
      });
    }
  }

  it('closes the connection where something ahead says so, for its own worker', async () => {
    const twins = await startTwins(
      (routing, index) =>
        createServer(
          express()
            .use((_request, response, next) => {
              if (index === 1) response.setHeader('Connection', 'close');
              next();
            })
            .use(routing)
            .use((_request, response) => void response.send('ok')),
        ),
      { attach: false },
    );
    try {
      const reply = await talk(twins.forwarded, head('GET / HTTP/1.1', sessionCookie, 'Connection: keep-alive'));
      expect(reply.match(/^Connection: \S+/gim)).to.deep.equal(['Connection: close']);
    } finally {
      await twins.close();
    }
  });
});
