import { expect } from 'chai';
import express, { type Request } from 'express';
import { once } from 'node:events';
import { createServer, get, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { stripOwnFields } from '../lib/headers.ts';
import { selfSigned } from './fixtures/hop-certificate.ts';
import { startFront } from './fixtures/hop-front.ts';
import { seeded, sessionCookie, startTwins, type Twins } from './fixtures/hop-twins.ts';
import { head, talk, Wire, type Port } from './fixtures/hop-wire.ts';

/** Whether a proxy at an address is to be believed. */
const trusts: Record<string, unknown> = {
  nobody: false,
  everybody: true,
  'one hop': 1,
  'two hops': 2,
  loopback: 'loopback',
  'a list': ['loopback', '10.0.0.0/8'],
  'an address of nobody': '192.0.2.1',
  'a function': (address: string | undefined, index: number) => address === '127.0.0.1' && index < 1,
};

const proxied = [
  'X-Forwarded-For: 203.0.113.7, 198.51.100.2, 10.0.0.9',
  'X-Forwarded-Proto: https',
  'X-Forwarded-Host: public.example:8443, inner.example',
];

/** What Express says of where a request came from. */
function whereabouts(request: Request): object {
  const { ip, ips, protocol, secure, hostname, subdomains, socket } = request;
  const { remoteAddress, remoteFamily, localAddress, localFamily } = socket;
  const { encrypted = false } = socket as { encrypted?: boolean };
  const own = {
    remoteAddress,
    remoteFamily,
    localAddress,
    localFamily,
    encrypted,
    hasEncrypted: 'encrypted' in socket,
  };
  return { ip, ips, protocol, secure, hostname, subdomains, ...own };
}

describe('where a forwarded request came from', () => {
  let tls: ReturnType<typeof selfSigned>;
  before(() => (tls = selfSigned()));

  for (const scheme of ['http', 'https']) {
    for (const how of ['ahead of the app', 'as its middleware']) {
      for (const [whom, trust] of Object.entries(trusts)) {
        it(`is what it is on a direct one: ${scheme}, routed ${how}, trusting ${whom}`, async () => {
          const twins = await startTwins(
            (routing) => {
              const app = express().set('trust proxy', trust);
              if (how === 'as its middleware') app.use(routing);
              app.use((request, response) => void response.json(whereabouts(request)));
              return scheme === 'http' ? createServer(app) : createHttpsServer(tls, app);
            },
            { attach: how === 'ahead of the app', tls: scheme === 'https' },
          );
          try {
            for (const fields of [[], proxied]) {
              const ask = async (port: Port): Promise<unknown> => {
                const reply = await talk(port, head('GET / HTTP/1.1', sessionCookie, ...fields));
                return JSON.parse(reply.slice(reply.indexOf('\r\n\r\n')));
              };
              const direct = await ask(twins.direct);
              expect(await ask(twins.forwarded)).to.deep.equal(direct);
              expect(direct).to.include({ remoteAddress: '127.0.0.1', encrypted: scheme === 'https' });
            }
          } finally {
            await twins.close();
          }
        });
      }
    }
  }
});

describe('the socket of a forwarded request', () => {
  let twins: Twins;
  let serve: (request: IncomingMessage, response: ServerResponse) => void;

  before(async () => (twins = await startTwins(() => createServer(seeded((...exchange) => serve(...exchange))))));
  after(() => twins.close());

  it('has the ports and the address of its client', async () => {
    for (const port of [twins.direct, twins.forwarded]) {
      serve = ({ socket, connection }, response) => {
        const { remotePort, localPort } = socket;
        response.end(JSON.stringify({ remotePort, localPort, ...socket.address(), same: socket === connection }));
      };
      const wire = new Wire(port).send(head('GET / HTTP/1.1', sessionCookie));
      const reply = await wire.until('}');
      expect(JSON.parse(reply.slice(reply.indexOf('{')))).to.deep.equal({
        remotePort: (wire.socket.address() as AddressInfo).port,
        localPort: port.port,
        address: '127.0.0.1',
        family: 'IPv4',
        port: port.port,
        same: true,
      });
      wire.socket.destroy();
    }
  });

  it('keeps them when the request is over and another client uses its connection', async () => {
    const seen: { socket: IncomingMessage['socket']; handle: unknown }[] = [];
    const ports: number[] = [];
    serve = (request, response) => {
      const { socket } = request;
      seen.push({ socket, handle: (socket as unknown as { _handle: unknown })._handle });
      // While the second request is being served, the first is read again.
      ports.push(...seen.map((each) => each.socket.remotePort ?? 0));
      response.end('ok');
    };
    const wires: Wire[] = [];
    for (let index = 0; index < 2; index++) {
      const wire = new Wire(twins.forwarded).send(head('GET / HTTP/1.1', sessionCookie));
      await wire.until('ok');
      wires.push(wire);
    }
    expect(seen[0]!.handle).to.equal(seen[1]!.handle);
    const [first, second] = wires.map(({ socket }) => (socket.address() as AddressInfo).port);
    expect(ports).to.deep.equal([first, first, second]);
    for (const { socket } of wires) socket.destroy();
  });

  it('is otherwise the one on which the request is served', async () => {
    const outcome = new Promise<string>((resolve) => {
      serve = (request) => {
        const { socket } = request;
        socket.once('close', () => resolve(`closed ${socket.destroyed}`));
        Object.assign(socket, { mark: 'set' });
        expect((socket as { mark?: string }).mark).to.equal('set');
        expect(socket.setTimeout(60_000).timeout).to.equal(60_000);
        socket.destroy();
      };
    });
    await talk(twins.forwarded, head('GET / HTTP/1.1', sessionCookie));
    expect(await outcome).to.equal('closed true');
  });
});

describe('what a client says about where its request came from', () => {
  const forged = (origin: object): string => Buffer.from(JSON.stringify(origin)).toString('base64url');
  const lies = [
    `X-Session-Routing-Origin: ${forged({ socket: { remoteAddress: '6.6.6.6', encrypted: true }, httpVersion: '6.6' })}`,
    'x-session-routing-origin: nonsense',
    'x-session-routing-Connection: upgrade',
    'X-SESSION-ROUTING-OTHER: x',
  ];

  it('has no effect and is never seen by the app, forwarded or not', async () => {
    const twins = await startTwins(() => {
      const app = express().use((request, response) => {
        const { rawHeaders, headers, headersDistinct, httpVersion } = request;
        response.json({ ...whereabouts(request), rawHeaders, headers, headersDistinct, httpVersion });
      });
      return createServer(app);
    });
    try {
      const replies: string[] = [];
      for (const port of [twins.direct, twins.forwarded]) {
        for (const fields of [[], lies]) {
          const reply = await talk(port, head('GET / HTTP/1.1', ...fields, sessionCookie, 'X-Last: 1'));
          replies.push(reply.slice(reply.indexOf('\r\n\r\n')));
        }
      }
      expect(new Set(replies).size).to.equal(1);
      expect(replies[0]).to.match(/"ip":"127.0.0.1"/);
    } finally {
      await twins.close();
    }
  });

  it('is stripped where nothing else is routed, too', async () => {
    const server = createServer((request, response) => {
      stripOwnFields(request);
      response.end(JSON.stringify([request.rawHeaders, request.headers, request.headersDistinct]));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    try {
      const { port } = server.address() as AddressInfo;
      const reply = await talk({ port }, head('GET / HTTP/1.1', ...lies));
      expect(reply).not.to.match(/routing|6\.6/i);
      expect(reply).to.contain('"connection":["close"]');
    } finally {
      server.close();
    }
  });

  it('leaves a private socket unharmed when another program of the same user says nonsense', async () => {
    const front = await startFront();
    try {
      await front.serve((request, response) => response.end(`from ${request.socket.remoteAddress}`));
      const origins = [
        'nonsense',
        '6.6:1:',
        `1.1:1:${forged({})}`,
        `1.1:1:${Buffer.from('null').toString('base64url')}`,
      ];
      for (const path of ['/', '/~/', ...origins.map((origin) => `/${origin}~/`)]) {
        const request = get({ socketPath: front.socketPath, path });
        const [reply] = (await once(request, 'response')) as [IncomingMessage];
        expect(String(await reply.toArray())).to.equal('from undefined');
      }
    } finally {
      await front.close();
    }
  });

  it('is stripped by the forwarder itself, too', async () => {
    const front = await startFront();
    try {
      await front.serve((request, response) => response.end(`${request.socket.remoteAddress} ${request.httpVersion}`));
      expect(await talk(front.port, head('GET / HTTP/1.1', ...lies))).to.match(/127\.0\.0\.1 1\.1$/);
    } finally {
      await front.close();
    }
  });
});
