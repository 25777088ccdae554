import { expect } from 'chai';
import type { Request } from 'express';
import { once } from 'node:events';
import { createServer, request as httpRequest, type IncomingMessage, type Server } from 'node:http';
import type { ListenOptions } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { SessionRouting } from '../../lib/session-routing.ts';
import { apps } from '../fixtures/hop-apps.ts';
import { endsOf } from '../fixtures/hop-ends.ts';
import { seeded, sessionCookie, startTwins, type Twins } from '../fixtures/hop-twins.ts';
import { portOf } from '../fixtures/routed.ts';

const hasIpv6 = Object.values(networkInterfaces()).some((all) => all?.some(({ address }) => address === '::1'));

/** Where a server listens, whence a client comes to it, and what the app is to see of that. */
interface Place {
  readonly host?: string;
  readonly from?: string;
  readonly seen: { remoteAddress?: string; remoteFamily?: string };
  readonly isTrusted?: boolean;
}

const ofIpv6: Readonly<Record<string, Place>> = {
  'over IPv6': { host: '::1', from: '::1', seen: { remoteAddress: '::1', remoteFamily: 'IPv6' }, isTrusted: true },
  'over IPv6, to a server of both kinds': {
    host: '::',
    from: '::1',
    seen: { remoteAddress: '::1', remoteFamily: 'IPv6' },
    isTrusted: true,
  },
  'over IPv4, to a server of both kinds': {
    host: '::',
    from: '127.0.0.1',
    seen: { remoteAddress: '::ffff:127.0.0.1', remoteFamily: 'IPv6' },
    isTrusted: true,
  },
};

const places: Readonly<Record<string, Place>> = {
  'over IPv4': {
    host: '127.0.0.1',
    from: '127.0.0.1',
    seen: { remoteAddress: '127.0.0.1', remoteFamily: 'IPv4' },
    isTrusted: true,
  },
  // Behind a proxy of the same machine. Express trusts an address that there is not only under `true`.
  'over a Unix socket': { seen: {} },
  ...(hasIpv6 ? ofIpv6 : {}),
};

/** What a request tells of where it came from, under three kinds of trust. */
function whereabouts(request: IncomingMessage): object {
  const { app } = request as Partial<Request>;
  const under = [false, 'loopback', true].map((trust) => {
    app?.set('trust proxy', trust);
    const { ip, ips, protocol, secure, hostname } = request as Request;
    return { ip, ips, protocol, secure, hostname };
  });
  return { ...endsOf(request.socket), under };
}

for (const [kind, makeApp] of Object.entries(apps)) {
  describe(`where a forwarded request comes from, whose client came (${kind})`, () => {
    let twins: Twins;
    const routings: SessionRouting[] = [];
    const servers: Server[] = [];
    const app = makeApp(seeded((request, response) => response.end(JSON.stringify(whereabouts(request)))));

    before(async () => {
      twins = await startTwins((routing) => {
        routings.push(routing);
        return createServer(app);
      });
    });
    after(() => twins.close());
    afterEach(() => {
      for (const server of servers.splice(0)) server.close().closeAllConnections();
    });

    for (const [name, { host, from, seen, isTrusted }] of Object.entries(places)) {
      it(name, async () => {
        const told: unknown[] = [];
        // Each worker listens at one more place.
        for (const index of [0, 1]) {
          const server = createServer(app);
          servers.push(server);
          await routings[index]!.attach(server);
          const path = join(twins.directory.path, `${kind.replace(/\W/g, '-')}-${index}.sock`);
          const listen: ListenOptions = host === undefined ? { path } : { host, port: 0 };
          await new Promise<void>((resolve) => server.listen(listen, resolve));

          const where = from === undefined ? { socketPath: path } : { host: from, port: portOf(server) };
          const headers = ['Host', 'app.example', ...sessionCookie.split(': '), 'X-Forwarded-For', '203.0.113.7'];
          const request = httpRequest({ ...where, agent: false, setHost: false, headers }).end();
          const [reply] = (await once(request, 'response')) as [IncomingMessage];
          const { localPort } = request.socket ?? {};
          const ports = { [`:${localPort},`]: ':"of the client",', [`:${from && portOf(server)}`]: ':"of the server"' };
          let whole = await text(reply);
          for (const [port, its] of Object.entries(ports)) whole = whole.replaceAll(port, its);
          told.push(JSON.parse(whole));
        }
        expect(told[1]).to.deep.equal(told[0]);
        expect(told[1]).to.include(seen);
        if (kind === 'node:http') return;
        const ips = (told[1] as { under: { ip?: string }[] }).under.map(({ ip }) => ip);
        expect(ips).to.deep.equal([seen.remoteAddress, isTrusted ? '203.0.113.7' : seen.remoteAddress, '203.0.113.7']);
      });
    }
  });
}
