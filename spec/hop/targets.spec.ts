import { expect } from 'chai';
import express from 'express';
import type { IncomingMessage, RequestListener } from 'node:http';
import { createRequire } from 'node:module';
import type { SessionRouting } from '../../lib/session-routing.ts';
import { family } from '../fixtures/hop-family.ts';
import { sessionCookie, type Seen } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;

const long = `/${'long/'.repeat(1_500)}?${'a=1&'.repeat(500)}`;

/** What Express makes of a target. */
function whereabouts(request: IncomingMessage): object {
  const { url, originalUrl, baseUrl, path, query } = request as express.Request;
  return { url, originalUrl, baseUrl, path, query };
}

/** Targets, each as the last word of a request line. */
const requested = (method: string, targets: readonly string[]): Record<string, string> =>
  Object.fromEntries(
    targets.map((target) => [
      `${method} ${target.length > 100 ? 'a target of ten thousand bytes' : target}`,
      head(`${method} ${target} HTTP/1.1`, sessionCookie),
    ]),
  );

family('the target of a forwarded request', {
  cases: {
    ...requested('OPTIONS', ['*', '/*', 'http://app.example', 'http://app.example/*']),
    ...requested('GET', [
      '/',
      '//',
      '//double',
      '//double//slash//',
      '///app.example/a',
      '//other.example:80/a?b',
      '/api/x/../y?a=1&&b=%2F..%2f&c=%zz',
      '/a/../b/./c;x=1',
      '/..',
      '/%2e%2e/%5c?',
      '/%',
      '/%00%0d%0a',
      '/a?',
      '/a??b#c',
      '/a#b',
      '/?a[]=1&a[]=2&__proto__=3&a=+%20',
      '/"quoted"<>[]{}|\\^`',
      '/\\back\\slash',
      'http://app.example/absolute?x=1',
      'http://app.example?x=1',
      'HTTP://other.example:80',
      'https://user:secret@other.example:8443/a',
      'http://[::1]:3000/a',
      'ftp://other.example/a',
      '/http://app.example/a',
      '/seed_session/../a',
      // As one crosses the hop itself.
      `/1.1:9:${Buffer.from('{"remoteAddress":"203.0.113.9"}').toString('base64url')}~/a`,
      '/~/~a',
      long,
    ]),
    'GET /a HTTP/1.0': head('GET //a?b HTTP/1.0', sessionCookie),
    'GET after blank lines': `\r\n\r\n${head('GET /a HTTP/1.1', sessionCookie)}`,
    'GET /a#b with a body': `${head('GET /a#b HTTP/1.1', sessionCookie, 'Content-Length: 2')}hi`,
  },
  watch: whereabouts,
  textbook: ['GET /a HTTP/1.0'],
  check({ seen }, name) {
    const [, target] = name.split(' ');
    if (target?.startsWith('/') && !name.includes('HTTP/1.0')) expect((seen[0] as Seen).url).to.equal(target);
  },
});

family('a target that no server takes', {
  cases: {
    'without a slash': { text: head('GET a HTTP/1.1', sessionCookie), requests: 0 },
    'of two words': { text: head('GET /a b HTTP/1.1', sessionCookie), requests: 0 },
    'with a tab': { text: head('GET /a\tb HTTP/1.1', sessionCookie), requests: 0 },
    'with a NUL': { text: head('GET /a\0b HTTP/1.1', sessionCookie), requests: 0 },
    'of CONNECT, for which nobody listens': { text: head('CONNECT a:80 HTTP/1.1', sessionCookie), requests: 0 },
    'without a path': { text: head('GET ?a=1 HTTP/1.1', sessionCookie), requests: 0 },
    'with bytes beyond ASCII': { text: head('GET /\xc3\xa9?\xe9 HTTP/1.1', sessionCookie), requests: 0 },
  },
  textbook: 'passes',
});

/** How an app may nest what it mounts: around the router, below it, or both. */
const nestings: Record<
  string,
  (routing: SessionRouting, listener: RequestListener, make: typeof express) => express.Express
> = {
  'where the router stands ahead of the mount': (routing, listener, make) =>
    make().use(routing).use('/api', make.Router().use('/v1', listener)),
  'where the router stands below the mount': (routing, listener, make) =>
    make().use('/api', make.Router().use('/v1', make.Router().use(routing).use(listener))),
  'where the router stands between two mounts': (routing, listener, make) =>
    make().use('/api', make.Router().use(routing).use('/v1', make.Router().use(listener))),
  'where each mount is an app of its own': (routing, listener, make) =>
    make().use('/api', make().use('/v1', make().use(routing).use(listener))),
};

for (const [where, nest] of Object.entries(nestings)) {
  family(`the target of a forwarded request, ${where}`, {
    attach: false,
    seedPath: '/api/v1/seed_session',
    kind: where.includes('ahead') ? { basePath: '/api/v1' } : where.includes('between') ? { basePath: '/v1' } : {},
    apps: {
      'Express 4': (listener, routing) => nest(routing, listener, express4),
      'Express 5': (listener, routing) => nest(routing, listener, express),
    },
    cases: {
      ...requested('GET', [
        '/api/v1',
        '/api/v1/',
        '/api/v1?a=1',
        '/api/v1//double',
        '/api/v1/x/../y?a=1&&b=%2F..%2f&c=%zz',
        '/API/V1/a',
        'http://app.example/api/v1/a?b',
        '/api/v1/api/v1/a',
      ]),
      'POST with a body': `${head('POST /api/v1/a?b HTTP/1.1', sessionCookie, 'Content-Length: 2')}hi`,
    },
    watch: whereabouts,
    textbook: /^GET/,
    textbookMount: (forward) => express().use('/api', express.Router().use('/v1', forward)),
    check({ seen }, name) {
      const { originalUrl } = (seen[0] as { watched: { originalUrl: string } }).watched;
      if (name.startsWith('GET')) expect(originalUrl).to.equal(name.split(' ')[1]);
    },
  });
}
