import { once } from 'node:events';
import { createServer, request, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import type express from 'express';
import { pathPattern, rolloutPaths, routePattern } from '../lib/route-pattern.ts';

describe('routePattern', () => {
  const matches = routePattern(['/seed_session', 'PUT /games/new', 'get /reset', '/a.b+(c)|[d]$']);

  const matching: [method: string, path: string][] = [
    ['POST', '/seed_session'],
    ['POST', '/seed_session/'],
    ['POST', '/Seed_SESSION'],
    ['POST', '/ng-rollout/r1/seed_session'],
    ['POST', '/ng-rollout/r1/training-token-capture/seed_session'],
    ['POST', '/NG-Rollout/r1/seed_session/'],
    ['PUT', '/games/new'],
    ['GET', '/reset'],
    ['HEAD', '/reset'],
    ['POST', '/a.b+(c)|[d]$'],
    ['POST', '/ng-rollout/r1/A.B+(C)|[D]$/'],
  ];
  for (const [method, path] of matching) {
    it(`matches ${method} ${path}`, () => {
      expect(matches(method, path)).to.equal(true);
    });
  }

  const others: [method: string, path: string][] = [
    ['GET', '/seed_session'],
    ['HEAD', '/seed_session'],
    ['PUT', '/seed_session'],
    ['POST', '/reset'],
    ['POST', '/games/new'],
    ['POST', '/'],
    ['POST', ''],
    ['POST', '/seed_session//'],
    ['POST', '//seed_session'],
    ['POST', '/seed_sessions'],
    ['POST', '/x/seed_session'],
    ['POST', '/seed_session/x'],
    ['POST', '/seed%5Fsession'],
    ['POST', '/ng-rollout/seed_session'],
    ['POST', '/ng-rollout//seed_session'],
    ['POST', '/ng-rollout/r1/a/b/seed_session'],
    ['POST', '/aXb+(c)|[d]$'],
    ['POST', '/a.b'],
    ['__proto__', '/seed_session'],
  ];
  for (const [method, path] of others) {
    it(`does not match ${method} ${path}`, () => {
      expect(matches(method, path)).to.equal(false);
    });
  }

  it('matches an app that answers at the root', () => {
    const isRoot = routePattern(['/']);
    expect(['/', '', '/ng-rollout/r1', '/ng-rollout/r1/'].map((path) => isRoot('POST', path))).to.not.include(false);
    expect(isRoot('POST', '/x')).to.equal(false);
  });

  it('takes a trailing slash of an entry for no difference', () => {
    expect(routePattern(['/reset/'])('POST', '/reset')).to.equal(true);
  });

  it('matches nothing if there are no entries', () => {
    expect(routePattern([])('POST', '/')).to.equal(false);
  });

  for (const entry of ['', 'reset', 'POST reset', 'POST', 'POST  /reset', '/re set', '/reset ', 'POST /a, /b']) {
    it(`refuses ${JSON.stringify(entry)}, and quotes it`, () => {
      expect(() => routePattern([entry])).to.throw(TypeError, JSON.stringify(entry));
    });
  }

  for (const version of ['express', 'express4']) {
    describe(`beside ${version}`, () => {
      let server: Server;
      before(async () => {
        const { default: createApp } = (await import(version)) as { default: typeof express };
        const app = createApp();
        app.post('/seed_session', (_request, response) => void response.end());
        app.get('/reset', (_request, response) => void response.end());
        server = createServer(app).listen(0, '127.0.0.1');
        await once(server, 'listening');
      });
      after(() => {
        server.close();
      });

      async function isServed(method: string, path: string): Promise<boolean> {
        const { port } = server.address() as AddressInfo;
        const sent = request({ host: '127.0.0.1', port, method, path, agent: false }).end();
        const [response] = (await once(sent, 'response')) as [IncomingMessage];
        response.resume();
        return response.statusCode === 200;
      }

      it('matches whatever a route does', async () => {
        let served = 0;
        for (const method of ['GET', 'HEAD', 'POST', 'PUT']) {
          for (const path of ['/seed_session', '/reset'].flatMap(spellings)) {
            if (!(await isServed(method, path))) continue;
            served++;
            expect(matches(method, path), `${method} ${path}`).to.equal(true);
          }
        }
        expect(served).to.be.greaterThan(8);
      });
    });
  }
});

describe('pathPattern', () => {
  const isBelow = pathPattern('/mcp');

  for (const path of [
    '/mcp',
    '/mcp/',
    '/mcp/x/y',
    '/mcp//',
    '/MCP',
    '/Mcp/X',
    '/ng-rollout/r1/mcp',
    '/NG-rollout/r1/part/mcp/x',
    '\\mcp',
    '/mcp\\x',
    '/ng-rollout\\r1\\mcp',
  ]) {
    it(`matches ${path}`, () => expect(isBelow(path)).to.equal(true));
  }

  for (const path of [
    '',
    '/',
    'mcp',
    '/mc',
    '/mcpx',
    '/mcp.x',
    '/mcp%2f',
    '/%6dcp',
    '/x/mcp',
    '//mcp',
    '/ng-rollout/mcp',
    '/ng-rollout//mcp',
    '/ng-rollout/a/b/c/mcp',
    '/mcp\n',
  ]) {
    it(`does not match ${JSON.stringify(path)}`, () => expect(isBelow(path)).to.equal(false));
  }

  it('takes a path literally, with or without a slash at its end', () => {
    for (const root of ['/a.b+(c)|[d]$', '/a.b+(c)|[d]$/']) {
      expect(pathPattern(root)('/A.b+(c)|[D]$/x')).to.equal(true);
      expect(['/aXb+(c)|[d]$', '/a.b', '/[d]$'].map(pathPattern(root))).to.deep.equal([false, false, false]);
    }
  });

  it('matches everything below the root', () => {
    const isAny = pathPattern('/');
    expect(['/', '', '/x', '/x/y', '/ng-rollout/r1'].map(isAny)).to.not.include(false);
  });

  for (const version of ['express', 'express4']) {
    it(`matches whatever ${version} takes for a path below one, under a rollout's prefix too`, async () => {
      const { default: createApp } = (await import(version)) as { default: typeof express };
      const app = createApp().set('env', 'test');
      app.use(rolloutPaths('/mcp'), (_request, response) => void response.end());
      const server = createServer(app).listen(0, '127.0.0.1');
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      let served = 0;
      for (const path of ['/mcp', '/ng-rollout/r1/mcp', '/ng-rollout/r1/x/mcp'].flatMap(spellings)) {
        const sent = request({ host: '127.0.0.1', port, path, agent: false }).end();
        const [response] = (await once(sent, 'response')) as [IncomingMessage];
        response.resume();
        if (response.statusCode !== 200) continue;
        served++;
        expect(isBelow(path), path).to.equal(true);
      }
      server.close();
      expect(served).to.be.greaterThan(12);
    });
  }
});

/** Spellings of a path, some of which a route takes for it. */
function spellings(path: string): string[] {
  const [letter = '', ...rest] = path.slice(1);
  const encoded = `/%${letter.charCodeAt(0).toString(16)}${rest.join('')}`;
  const beginnings = [
    path,
    path.toUpperCase(),
    `/${letter.toUpperCase()}${rest.join('')}`,
    encoded,
    `/${path}`,
    `/.${path}`,
  ];
  const endings = ['', '/', '//', '/.', '/..', '/x', 'x', ';x', '%20', '%2f', '.', ':', '/%2e'];
  return beginnings.flatMap((beginning) => endings.map((ending) => `${beginning}${ending}`));
}
