import { expect } from 'chai';
import express from 'express';
import type { IncomingMessage, RequestListener } from 'node:http';
import { createRequire } from 'node:module';
import type { SessionRouting } from '../../lib/session-routing.ts';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { family } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;

/** Whether a proxy at an address is to be believed, as `trust proxy` has it. */
const trusts: Readonly<Record<string, unknown>> = {
  nobody: false,
  everybody: true,
  'one hop': 1,
  'two hops': 2,
  loopback: 'loopback',
  'a list': ['loopback', '10.0.0.0/8'],
  'an address of nobody': '192.0.2.1',
  'a function': (address: string | undefined, index: number) => address === '127.0.0.1' && index < 1,
};

const origin = { socket: { remoteAddress: '6.6.6.6', encrypted: true }, httpVersion: '6.6' };

/** What a client says of where it is, or of a proxy that it pretends to be. */
const claims: Readonly<Record<string, readonly string[]>> = {
  nothing: ['Host: www.app.example'],
  'a chain of proxies': [
    'Host: www.app.example',
    'X-Forwarded-For: 203.0.113.7, 198.51.100.2, 10.0.0.9',
    'X-Forwarded-Proto: https',
    'X-Forwarded-Host: www.public.example:8443, inner.example',
  ],
  'an address of this machine': ['Host: x', 'X-Forwarded-For: 127.0.0.1', 'x-forwarded-for: ::1'],
  'several fields of addresses': ['Host: x', 'X-Forwarded-For: 203.0.113.7', 'X-FORWARDED-FOR: 198.51.100.2,127.0.0.1'],
  'addresses that are none': ['Host: x', 'X-Forwarded-For: unknown, , _hidden, 999.1.1.1:80, 10.0.0.9'],
  'addresses of the longer kind': ['Host: x', 'X-Forwarded-For: [2001:db8::1]:80, 2001:db8::2, ::ffff:127.0.0.1'],
  'several protocols': ['Host: x', 'X-Forwarded-Proto: https, http', 'X-Forwarded-Proto: HTTPS'],
  'the plain protocol': ['Host: x', 'X-Forwarded-Proto: http'],
  'empty values': ['Host: x', 'X-Forwarded-For:', 'X-Forwarded-Host: ', 'X-Forwarded-Proto:'],
  'a host with a port': ['Host: A.B.App.Example:8080'],
  'a host that is an address': ['Host: [::1]:3000', 'X-Forwarded-Host: [2001:db8::1]'],
  'an empty host': ['Host:'],
  'two hosts': ['Host: one.example', 'Host: two.example'],
  'the standard field': ['Host: x', 'Forwarded: for=6.6.6.6;proto=https;host=evil.example;by=127.0.0.1'],
  'fields of other proxies': [
    'Host: x',
    'X-Real-IP: 6.6.6.6',
    'True-Client-IP: 6.6.6.6',
    'X-Forwarded-Port: 443',
    'X-Forwarded-Ssl: on',
    'X-Forwarded-Server: evil.example',
    'Front-End-Https: on',
    'Via: 1.1 evil.example',
  ],
  'a field of a hop': [
    'Host: x',
    `X-Session-Routing-Origin: ${Buffer.from(JSON.stringify(origin)).toString('base64url')}`,
  ],
};

/** What a request tells of its origin: the socket's part of it, and, in Express, the rest under every trust. */
function whereabouts(request: IncomingMessage): object {
  const { remoteAddress, remoteFamily, localAddress, localFamily } = request.socket;
  const { encrypted } = request.socket as { encrypted?: boolean };
  const hasEncrypted = 'encrypted' in request.socket;
  const ofSocket = { remoteAddress, remoteFamily, localAddress, localFamily, encrypted, hasEncrypted };
  const { app } = request as Partial<express.Request>;
  if (app === undefined) return ofSocket;
  const under = Object.entries(trusts).map(([whom, trust]) => {
    app.set('trust proxy', trust);
    const { ip, ips, protocol, secure, hostname, host, subdomains } = request as express.Request;
    return [whom, { ip, ips, protocol, secure, hostname, host, subdomains }] as const;
  });
  return { ...ofSocket, ...Object.fromEntries(under) };
}

type MakeApp = (listener: RequestListener, routing: SessionRouting) => RequestListener;

const apps: Readonly<Record<string, MakeApp>> = {
  'node:http':
    (listener, routing): RequestListener =>
    (request, response) =>
      routing(request, response, () => listener(request, response)),
  'Express 4': (listener, routing) => express4().use(routing, listener),
  'Express 5': (listener, routing) => express().use(routing, listener),
};

describe('where a forwarded request comes from', () => {
  const heedless = (): void => undefined;
  before(() => void process.on('deprecation', heedless)); // Express 4 would print that `req.host` is an old name
  after(() => void process.off('deprecation', heedless));

  for (const tls of [false, selfSigned()]) {
    for (const attach of [true, false]) {
      const how = attach ? 'ahead of the app' : 'as its middleware';
      family(`over ${tls ? 'https' : 'http'}, routed ${how}, where the client says`, {
        attach,
        tls,
        apps,
        cases: Object.fromEntries(
          Object.entries(claims).map(([name, fields]) => {
            const lines = ['GET / HTTP/1.1', ...fields, sessionCookie, 'Connection: close', '', ''];
            return [name, lines.join('\r\n')];
          }),
        ),
        textbook: /./,
        watch: whereabouts,
        check({ seen }, name) {
          const [{ watched }] = seen as [{ watched: Record<string, unknown> }];
          expect(watched).to.include({ remoteAddress: '127.0.0.1', hasEncrypted: Boolean(tls) });
          if (name !== 'a chain of proxies' || watched['nobody'] === undefined) return;
          const secure = Boolean(tls);
          expect(watched['nobody']).to.deep.include({ ip: '127.0.0.1', ips: [], secure, hostname: 'www.app.example' });
          expect(watched['everybody']).to.deep.include({ ip: '203.0.113.7', secure: true, protocol: 'https' });
          expect(watched['a function']).to.deep.include({ ips: ['10.0.0.9'], hostname: 'www.public.example' });
        },
      });
    }
  }
});
