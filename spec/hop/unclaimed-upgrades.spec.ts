import { expect } from 'chai';
import { createServer, type RequestListener } from 'node:http';
import { signCookie } from '../../lib/session-id.ts';
import { apps } from '../fixtures/hop-apps.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { head, talk, Wire, type Port } from '../fixtures/hop-wire.ts';
import { secret } from '../fixtures/routed.ts';

function cookieOf(sessionId: string, by = secret): string {
  return `Cookie: resources.sid=${encodeURIComponent(signCookie(sessionId, by))}`;
}

for (const [kind, makeApp] of Object.entries(apps)) {
  describe(`an upgrade for a session that nobody has (${kind})`, () => {
    let twins: Twins;
    const wires: Wire[] = [];

    before(async () => {
      twins = await startTwins((_routing, worker) => {
        const app: RequestListener = (_request, response) => void response.end(`worker ${worker} end`);
        return createServer(makeApp(seeded(app))).on('upgrade', (request, socket) => {
          socket.on('error', () => undefined);
          if (request.url === '/refused') return socket.resume().end(`HTTP/1.1 401 No\r\n\r\nworker ${worker} end`);
          socket.write(`HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nworker ${worker} end`);
          socket.pipe(socket);
        });
      });
    });
    after(() => twins.close());
    afterEach(() => {
      for (const { socket } of wires.splice(0)) socket.destroy();
    });

    /** Asks for an upgrade, and tells which worker answered. The connection stays until the end of the spec. */
    async function upgrade(port: Port, target: string, ...fields: string[]): Promise<string> {
      const wire = new Wire(port);
      wires.push(wire);
      wire.send(head(`GET ${target} HTTP/1.1`, 'Connection: Upgrade', 'Upgrade: spec', ...fields));
      return workerOf(await wire.until(' end'));
    }

    function workerOf(reply: string): string {
      return /worker (\d) end$/.exec(reply)?.[1] ?? reply;
    }

    const ports = (): readonly Port[] => [twins.direct, twins.forwarded];

    it('is served where it arrives, and holds the session there', async () => {
      for (const [index, port] of ports().entries()) {
        const cookie = cookieOf(`served by ${index}`);
        expect(await upgrade(port, '/', cookie)).to.equal(`${index}`);
        for (const other of ports()) {
          expect(await upgrade(other, '/', cookie)).to.equal(`${index}`);
          expect(workerOf(await talk(other, head('GET / HTTP/1.1', cookie)))).to.equal(`${index}`);
        }
      }
    });

    it('may be refused there', async () => {
      for (const [index, port] of ports().entries()) {
        expect(await upgrade(port, '/refused', cookieOf(`refused by ${index}`))).to.equal(`${index}`);
      }
    });

    it('is served where it arrives without a cookie, or with one that is not ours', async () => {
      for (const [index, port] of ports().entries()) {
        for (const fields of [[], [cookieOf('hop', 'another secret')], ['Cookie: resources.sid=hop']]) {
          expect(await upgrade(port, '/', ...fields)).to.equal(`${index}`);
        }
      }
    });

    it('is not one for a session that somebody has', async () => {
      for (const port of ports()) expect(await upgrade(port, '/', sessionCookie)).to.equal('0');
    });

    it('claims a session for one worker only, when both are asked at once', async () => {
      for (let round = 0; round < 20; round++) {
        const cookie = cookieOf(`contested ${round}`);
        const workers = await Promise.all(ports().map((port) => upgrade(port, '/', cookie)));
        expect(workers[0])
          .to.match(/^[01]$/)
          .and.equal(workers[1]);
      }
    });
  });
}
