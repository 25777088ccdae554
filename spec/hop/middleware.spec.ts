import { expect } from 'chai';
import express from 'express';
import { AsyncLocalStorage } from 'node:async_hooks';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { comparable, sessionCookie, startTwins } from '../fixtures/hop-twins.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';

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

describe('a request that an app forwards by its middleware', () => {
  it('is a 500 when something has read its body, and leaves its connection in use', async () => {
    const twins = await startTwins(
      (routing) =>
        createServer(
          express()
            .use((request, response, next) =>
              request.url.startsWith('/eaten') ? express.json()(request, response, next) : next(),
            )
            .use(routing)
            .use((_request, response) => void response.end('ok')),
        ),
      { attach: false },
    );
    try {
      const wire = new Wire(twins.forwarded);
      const fields = [sessionCookie, 'Connection: keep-alive', 'Content-Type: application/json', 'Content-Length: 2'];
      wire.send(`${head('POST /eaten HTTP/1.1', ...fields)}{}`);
      expect(await wire.until('}')).to.match(/^HTTP\/1\.1 500 [^]*BODY_ALREADY_READ/);
      wire.send(head('GET /other HTTP/1.1', sessionCookie));
      expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 /);
    } finally {
      await twins.close();
    }
  });
});

describe('a request that an app forwards behind its other middleware', () => {
  it('is answered to the end, however slow its client, where that middleware takes listeners of the reply', async () => {
    const size = 8 * 1024 * 1024;
    const twins = await startTwins(
      (routing) =>
        createServer(
          express()
            .use((_request, response, next) => {
              // As compression does, until it knows whether to compress.
              const { on } = response;
              response.on = ((event: string, listener: () => void) =>
                event === 'drain' ? response : on.call(response, event, listener)) as typeof response.on;
              next();
            })
            .use(routing)
            .use((_request, response) => void response.end(Buffer.alloc(size, 'x'))),
        ),
      { attach: false },
    );
    try {
      for (const port of [twins.direct, twins.forwarded]) {
        expect((await talk(port, head('GET / HTTP/1.1', sessionCookie))).length).to.be.above(size);
      }
    } finally {
      await twins.close();
    }
  });

  it('keeps its own asynchronous context, on whatever connection it was forwarded', async () => {
    const storage = new AsyncLocalStorage<string>();
    const seen: string[] = [];
    const twins = await startTwins(
      (routing) =>
        createServer(
          express()
            .use((request, response, next) => {
              storage.run(request.url, () => {
                response.on('finish', () => seen.push(`${request.url} finishes in ${storage.getStore()}`));
                response.on('close', () => seen.push(`${request.url} closes in ${storage.getStore()}`));
                next();
              });
            })
            .use(routing)
            .use((_request, response) => void response.end('ok')),
        ),
      { attach: false },
    );
    try {
      for (const port of [twins.direct, twins.forwarded]) {
        for (const target of ['/alice', '/bob', '/carol']) {
          await talk(port, head(`GET ${target} HTTP/1.1`, sessionCookie));
        }
      }
      const clients = [...new Set(seen)].filter((each) => !each.startsWith('/seed_session'));
      expect(clients.filter((each) => !/^(\/\w+) \w+ in \1$/.test(each))).to.deep.equal([]);
      expect(clients).to.have.length(6);
    } finally {
      await twins.close();
    }
  });
});
