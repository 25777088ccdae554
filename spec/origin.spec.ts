import { expect } from 'chai';
import { once } from 'node:events';
import { createServer, get, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { stripOwnFields } from '../lib/headers.ts';
import { startFront } from './fixtures/hop-front.ts';
import { head, talk } from './fixtures/hop-wire.ts';

describe('what a client says about where its request came from', () => {
  const forged = (origin: object): string => Buffer.from(JSON.stringify(origin)).toString('base64url');
  const lies = [
    `X-Session-Routing-Origin: ${forged({ socket: { remoteAddress: '6.6.6.6', encrypted: true }, httpVersion: '6.6' })}`,
    'x-session-routing-origin: nonsense',
    'x-session-routing-Connection: upgrade',
    'X-SESSION-ROUTING-OTHER: x',
  ];

  it('is stripped where nothing else is routed', async () => {
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
      for (const origin of ['nonsense', forged({}), forged({ socket: null, httpVersion: '1.1' }), '']) {
        const request = get({ socketPath: front.socketPath, headers: { 'x-session-routing-origin': origin } });
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
