import { expect } from 'chai';
import { createServer, type ServerResponse } from 'node:http';
import { startFront } from '../fixtures/hop-front.ts';
import { read, seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';

describe('the bytes of a reply to a forwarded request', () => {
  let twins: Twins;
  let answer: (response: ServerResponse) => void;

  before(async () => (twins = await startTwins(() => createServer(seeded((_request, response) => answer(response))))));
  after(() => twins.close());

  it('begin at the client before there is a body', async () => {
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

  it('are those of the interim replies at once', async () => {
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

  it('leave a connection that can be kept', async () => {
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

  it('come whole when the claimant answers early and closes, as it would come from one worker', async () => {
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

  describe('that are more than it says', () => {
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
      it(`end where it says, and the next reply is another client's own (${name})`, async () => {
        const front = await startFront();
        try {
          let first: ServerResponse | undefined;
          await front.serve((_request, response) => {
            if (first === undefined) return begin((first = response));
            goOn(first);
            response.end('mine');
          });
          const wire = new Wire(front.port).send(head('GET /longer HTTP/1.1'));
          await wire.until('ok');
          expect(await talk(front.port, head('GET /next HTTP/1.1'))).to.match(/\r\n\r\nmine$/);
          expect(await wire.rest()).to.equal('');
          expect(await talk(front.port, head('GET /next HTTP/1.1'))).to.match(/\r\n\r\nmine$/);
        } finally {
          await front.close();
        }
      });
    }

    it('end where it says when they are sent at once', async () => {
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

describe('a reply to a request whose body is still arriving', () => {
  it('reaches the client at once, and the connection can be used again', async () => {
    const twins = await startTwins(() => createServer(seeded((request, response) => response.end(request.url))));
    try {
      for (const port of [twins.direct, twins.forwarded]) {
        const size = 5 * 1024 * 1024;
        const wire = new Wire(port);
        wire.send(head('POST /early HTTP/1.1', sessionCookie, 'Connection: keep-alive', `Content-Length: ${size}`));
        expect(await wire.until('/early')).to.match(/^HTTP\/1\.1 200 /);
        wire.send(Buffer.alloc(size, 'GET /smuggled HTTP/1.1\r\nHost: app.example\r\n\r\n'));
        wire.send(head('GET /late HTTP/1.1', sessionCookie));
        expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 [^]*\/late$/);
      }
    } finally {
      await twins.close();
    }
  });

  it('still lets the app read that body to its end', async () => {
    const front = await startFront();
    const length = new Promise<number>((resolve) => {
      void front.serve((request, response) => {
        response.end('early');
        void read(request).then(({ body }) => resolve(body.length));
      });
    });
    try {
      const wire = new Wire(front.port);
      wire
        .send(head('POST / HTTP/1.1', 'Connection: keep-alive', 'Content-Length: 200000'))
        .send(Buffer.alloc(100_000));
      await wire.until('early');
      wire.send(Buffer.alloc(100_000));
      expect(await length).to.equal(200_000);
      wire.socket.destroy();
    } finally {
      await front.close();
    }
  });
});
