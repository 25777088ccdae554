import { expect } from 'chai';
import type { Request } from 'express';
import { createServer, type IncomingMessage, type RequestListener } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout } from 'node:timers/promises';
import { apps } from '../fixtures/hop-apps.ts';
import { endsOf, named } from '../fixtures/hop-ends.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { head, Wire, type Port } from '../fixtures/hop-wire.ts';
import { Gate } from '../fixtures/routed.ts';

/** A request by a client that says that a proxy has passed it on for an address. */
function requestFor(address: string, target = '/'): string {
  const fields = [`X-Forwarded-For: ${address}`, 'X-Forwarded-Proto: https', 'Connection: keep-alive'];
  return head(`GET ${target} HTTP/1.1`, sessionCookie, ...fields);
}

/** What a request tells of its client, by whatever it offers. */
function tell(request: IncomingMessage): string {
  (request as Partial<Request>).app?.set('trust proxy', true);
  const { ip, ips, protocol, hostname } = request as Request;
  return JSON.stringify({ ip, ips, protocol, hostname, ...endsOf(request.socket) });
}

/** What a socket is about within Node: of two that have the same, one was made of the other. */
function handleOf(socket: Socket): unknown {
  return (socket as unknown as { _handle: unknown })._handle;
}

for (const [kind, makeApp] of Object.entries(apps)) {
  describe(`clients whose requests share a connection between two workers (${kind})`, () => {
    let twins: Twins;
    let serve: RequestListener;
    const wires: Wire[] = [];

    before(async () => {
      const app = makeApp(seeded((request, response) => serve(request, response)));
      twins = await startTwins(() => createServer(app));
    });
    after(() => twins.close());
    afterEach(() => {
      for (const { socket } of wires.splice(0)) socket.destroy();
    });

    function connect(port: Port): Wire {
      const wire = new Wire(port);
      wires.push(wire);
      return wire;
    }

    /** Does the same with both workers, and expects the same of both. */
    async function both(run: (port: Port) => Promise<string>): Promise<string> {
      const direct = await run(twins.direct);
      expect(await run(twins.forwarded)).to.equal(direct);
      return direct;
    }

    it('tell of themselves 50 ms after the reply, while another is being served', async () => {
      const told = await both(async (port) => {
        const [isSecond, isTold] = [new Gate(), new Gate()];
        const handles: unknown[] = [];
        let late: Promise<string> | undefined;
        serve = (request, response) => {
          handles.push(handleOf(request.socket));
          if (late === undefined) {
            late = isSecond.opened.then(() => setTimeout(50)).then(() => tell(request));
            response.end('first');
          } else {
            isSecond.open();
            void isTold.opened.then(() => response.end(`${tell(request)} second`));
          }
        };
        const first = connect(port).send(requestFor('192.0.2.1'));
        await first.until('first');
        const second = connect(port).send(requestFor('192.0.2.2'));
        const toldLate = named(await late!, first.socket);
        isTold.open();
        const toldBySecond = named(await second.until('second'), second.socket);
        expect(handles[0] === handles[1]).to.equal(port === twins.forwarded); // else nothing was shared
        return toldLate + toldBySecond.slice(toldBySecond.indexOf('{'));
      });
      expect(told.match(/"of the client"/g)).to.have.length(2);
      if (kind !== 'node:http') expect(told).to.match(/"ip":"192\.0\.2\.1"[^]*"ip":"192\.0\.2\.2"/);
    });

    it('tell of themselves when the reply has been sent, and when it is over', async () => {
      const told = await both(async (port) => {
        const events: string[] = [];
        const isClosed = new Gate();
        serve = (request, response) => {
          response.once('finish', () => events.push(tell(request)));
          response.once('close', () => {
            events.push(tell(request));
            isClosed.open();
          });
          response.end('ok');
        };
        const wire = connect(port).send(requestFor('192.0.2.1'));
        await wire.until('ok');
        await isClosed.opened;
        return named(events.join('\n'), wire.socket);
      });
      expect(told.match(/"of the client"/g)).to.have.length(2);
    });

    it('tell whose they were, if they have before, once they have left', async () => {
      await both(async (port) => {
        const [isServed, hasLeft] = [new Gate(), new Gate()];
        const whose = (request: IncomingMessage): object => {
          const { remoteAddress, remoteFamily, remotePort } = request.socket;
          const { ip, ips, protocol } = request as Request;
          return { ip, ips, protocol, remoteAddress, remoteFamily, isTheClients: remotePort === clientPort };
        };
        let clientPort: number | undefined;
        let before = {};
        let after = {};
        serve = (request, response) => {
          clientPort = wire.socket.localPort;
          before = whose(request);
          response.once('close', () => {
            after = whose(request);
            hasLeft.open();
          });
          isServed.open();
        };
        const wire = connect(port).send(requestFor('192.0.2.1'));
        await isServed.opened;
        wire.socket.destroy();
        await hasLeft.opened;
        expect(after).to.deep.equal(before);
        expect(after).to.include({ isTheClients: true });
        return JSON.stringify(after);
      });
    });

    it('are one client for all requests of their own connection, one after another and at once', async () => {
      serve = (request, response) => {
        const told = tell(request);
        response.end(`${told} end`);
      };
      const told = await both(async (port) => {
        const wire = connect(port);
        const all: string[] = [];
        for (let index = 0; index < 3; index++) all.push(await wire.send(requestFor('192.0.2.1')).until('end'));
        wire.send(requestFor('192.0.2.2') + requestFor('192.0.2.3') + requestFor('192.0.2.4'));
        for (let index = 0; index < 3; index++) all.push(await wire.until('end'));
        return named(all.map((each) => each.slice(each.indexOf('{'))).join('\n'), wire.socket);
      });
      expect(told.match(/"of the client"/g)).to.have.length(6);
      if (kind !== 'node:http')
        expect(told.match(/"ip":"192\.0\.2\.\d"/g)?.map((each) => each.at(-2))).to.have.ordered.members([...'111234']);
    });

    it('are never taken for one another, however they interleave', async () => {
      let served = 0;
      serve = async (request, response) => {
        const before = tell(request);
        await setTimeout(served++ % 3);
        response.end(`${before}${tell(request)} end`);
      };
      const client = async (port: Port, index: number): Promise<string[]> => {
        const wire = connect(port);
        const all: string[] = [];
        for (let round = 0; round < 10; round++) {
          const reply = await wire.send(requestFor(`192.0.2.${index}`, `/${index}`)).until('end');
          all.push(named(reply.slice(reply.indexOf('{')), wire.socket));
        }
        return all;
      };
      const told = await both(async (port) => {
        const all = await Promise.all(Array.from({ length: 8 }, (_, index) => client(port, index)));
        return JSON.stringify(all);
      });
      expect(told.match(/of the client/g)).to.have.length(8 * 10 * 2);
    });

    it('do not find on their socket what the app has put on the socket of another', async () => {
      await both(async (port) => {
        const handles: unknown[] = [];
        serve = ({ socket }, response) => {
          handles.push(handleOf(socket));
          const marked = socket as { mark?: string };
          const before = marked.mark;
          marked.mark = 'of somebody';
          response.end(`${before} ${marked.mark} end`);
        };
        const told: string[] = [];
        for (let index = 0; index < 20; index++) {
          const reply = await connect(port).send(requestFor('192.0.2.1')).until('end');
          told.push(reply.slice(reply.indexOf('\r\n\r\n')));
        }
        expect(new Set(handles).size < 20).to.equal(port === twins.forwarded); // else nothing was shared
        return told.join();
      });
    });

    it('are not held to a time limit that the app has set for another', async () => {
      await both(async (port) => {
        const replies: string[] = [];
        serve = async ({ socket, url }, response) => {
          if (url === '/limited') socket.setTimeout(20, () => void socket.destroy());
          else await setTimeout(60);
          response.end(`${url} end`);
        };
        for (const target of ['/limited', '/slow']) {
          const reply = await connect(port).send(requestFor('192.0.2.1', target)).until('end');
          replies.push(reply.slice(reply.indexOf('\r\n\r\n')));
        }
        return replies.join();
      });
    });

    it('have a socket that is otherwise the one on which the request is served', async () => {
      await both(async (port) => {
        const isClosed = new Gate();
        const seen: unknown[] = [];
        serve = ({ socket }) => {
          seen.push(socket.setTimeout(60_000).timeout, socket.destroyed, typeof socket.write);
          socket.once('close', () => {
            seen.push(socket.destroyed, socket.writable);
            isClosed.open();
          });
          socket.destroy();
        };
        connect(port).send(requestFor('192.0.2.1'));
        await isClosed.opened;
        return JSON.stringify(seen);
      });
    });
  });
}
