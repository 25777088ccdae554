import { expect } from 'chai';
import { existsSync } from 'node:fs';
import { inspect } from 'node:util';
import { z } from 'zod';
import { checked } from '../lib/checked.ts';
import { sessionKind } from '../lib/custom-kind.ts';
import { mcpHandle, mcpSessions } from '../lib/mcp-kinds.ts';
import { completeOptions, type SessionRoutingOptions } from '../lib/options.ts';
import { createRuntimeDirectory } from '../lib/runtime-directory.ts';
import { resources, web, type ResourcesOptions, type WebOptions } from '../lib/session-kinds.ts';
import { sessionRouting } from '../lib/session-routing.ts';
import { firstOf, fromCookie, fromHeader } from '../lib/session-sources.ts';

const secret = 'a secret for specs';

/** Options that a program without types, or with a cast, may pass, and what the error has to say. */
type Refusals = [options: unknown, message: string | RegExp][];

function itRefuses(caller: string, call: (options: never) => unknown, refusals: Refusals): void {
  for (const [options, message] of refusals) {
    it(`refuse ${shown(options)} with a TypeError that says why`, () => {
      expect(() => call(options as never))
        .to.throw(TypeError, message)
        .with.property('message')
        .that.includes(caller);
    });
  }
}

function shown(options: unknown): string {
  if (typeof options !== 'object' || options === null) return String(options);
  const isKind = (value: unknown): boolean => typeof value === 'object' && value !== null && 'createLifetimes' in value;
  const entries = Object.entries(options).map(([key, value]) => [key, isKind(value) ? 'a kind' : value] as const);
  return inspect(Object.fromEntries(entries), { breakLength: Infinity });
}

describe('the options of sessionRouting()', () => {
  it('have defaults', () => {
    const { kind, ...others } = completeOptions({ secret });
    expect(kind).to.include({ kind: 'web', claimsExpireSeconds: 86_400 });
    expect(others).to.deep.equal({
      secrets: [secret],
      name: 'connect.sid',
      runtimeDirectory: undefined,
      bodyLimit: 64 * 1024 * 1024,
      routing: true,
    });
  });

  it('are taken as they are', async () => {
    const directory = await createRuntimeDirectory();
    const kind = web();
    const options: SessionRoutingOptions = {
      kind,
      secret: ['newest', 'older'],
      name: '__Host-sid',
      runtimeDirectory: directory.path,
      bodyLimit: 1,
      routing: false,
    };
    const { secret: secrets, ...others } = options;
    expect(completeOptions(options)).to.deep.equal({ ...others, secrets });
    directory.remove();
  });

  it('may have undefined for what has a default', () => {
    const options = { secret, kind: undefined, name: undefined, bodyLimit: undefined, routing: undefined };
    const { kind, ...others } = completeOptions(options as unknown as SessionRoutingOptions);
    expect(kind.kind).to.equal('web');
    const { kind: _, ...defaults } = completeOptions({ secret });
    expect(others).to.deep.equal(defaults);
  });

  const kind = resources();
  itRefuses('sessionRouting()', sessionRouting, [
    [undefined, '"secret": must be a non-empty string or a list of them'],
    [{}, '"secret": must be a non-empty string'],
    [{ secret: undefined }, '"secret": must be a non-empty string'],
    [{ secret: '' }, '"secret"'],
    [{ secret: [] }, '"secret"'],
    [{ secret: ['a', ''] }, '"secret.1": must not be empty'],
    [{ secret: 7 }, '"secret"'],
    [{ secret, kind: 'resources' }, '"kind": must be a kind, such as resources(), agent() or web()'],
    [{ secret, kind: resources }, '"kind": must be a kind'],
    [{ secret, kind: {} }, '"kind": must be a kind'],
    [{ secret, kind: null }, '"kind"'],
    [{ secret, name: '' }, '"name": must be a cookie name'],
    [{ secret, name: 'my sid' }, '"name": must be a cookie name'],
    [{ secret, name: 'sid=' }, '"name": must be a cookie name'],
    [{ secret, name: 'sid\n' }, '"name": must be a cookie name'],
    [{ secret, runtimeDirectory: 'run' }, '"runtimeDirectory": must be an absolute path'],
    [{ secret, runtimeDirectory: '' }, '"runtimeDirectory": must be an absolute path'],
    [{ secret, bodyLimit: '1mb' }, '"bodyLimit"'],
    [{ secret, bodyLimit: 0 }, '"bodyLimit"'],
    [{ secret, bodyLimit: 1.5 }, '"bodyLimit"'],
    [{ secret, bodyLimit: Infinity }, '"bodyLimit"'],
    [{ secret, routing: 'false' }, '"routing"'],
    [{ secret, routing: null }, '"routing"'],
    [{ secret, kind, secrets: ['a'] }, 'has no option "secrets"; did you mean "secret"?'],
    [{ secret, kinds: kind }, 'has no option "kinds"; did you mean "kind"?'],
    [{ secret, runtimeDir: '/run' }, 'has no option "runtimeDir"; did you mean "runtimeDirectory"?'],
    [{ secret, limit: 1 }, 'has no option "limit"; did you mean "bodyLimit"?'],
    [{ secret, Name: 'sid' }, 'has no option "Name"; did you mean "name"?'],
    [{ secret, cookieName: 'sid' }, 'has no option "cookieName"; did you mean "name"?'],
    [{ secret, route: false }, 'has no option "route"'],
    [{ secret, cookie: {} }, /has no option "cookie"$/],
    [{ secret, resave: false }, /has no option "resave"$/],
  ]);

  const withoutCookie = [sessionKind({ from: [fromHeader('x-game-id')] }), mcpSessions(), mcpHandle('game')];
  for (const kind of withoutCookie) {
    it(`need no secret for the kind "${kind.kind}", whose sessions no cookie names`, () => {
      expect(completeOptions({ kind })).to.deep.include({ kind, secrets: [], name: `${kind.kind}.sid` });
      expect(completeOptions({ kind, secret }).secrets).to.deep.equal([secret]);
      expect(() => completeOptions({ kind, secret: '' })).to.throw(TypeError, '"secret"');
    });
  }

  const withCookie = [
    web(),
    resources(),
    sessionKind({ from: [fromCookie()], kind: 'alone' }),
    sessionKind({ from: [firstOf(fromHeader('x-game-id'), fromCookie())], kind: 'among-others' }),
  ];
  for (const kind of withCookie) {
    it(`need a secret for the kind "${kind.kind}", whose sessions a cookie may name`, () => {
      expect(() => completeOptions({ kind })).to.throw(
        TypeError,
        'sessionRouting(): option "secret": must be a non-empty string or a list of them',
      );
      expect(completeOptions({ kind, secret }).name).to.equal(kind.cookieName);
    });
  }

  it('leave nothing behind where they are refused', async () => {
    const directory = await createRuntimeDirectory();
    const options = { runtimeDirectory: directory.path, secret: '' };
    expect(() => sessionRouting(options)).to.throw(TypeError);
    expect(existsSync(`${directory.path}/session-claims`)).to.equal(false);
    directory.remove();
  });
});

describe('the runtime directory of sessionRouting()', () => {
  const variable = 'SESSION_ROUTING_DIR';
  const before = process.env[variable];
  afterEach(() => {
    if (before === undefined) delete process.env[variable];
    else process.env[variable] = before;
  });

  it('comes from the environment, unless there is an option or routing: false', async () => {
    const [directory, other] = [await createRuntimeDirectory(), await createRuntimeDirectory()];
    const claims = (path: string): boolean => existsSync(`${path}/session-claims`);
    process.env[variable] = directory.path;
    await sessionRouting({ secret, routing: false }).close();
    await sessionRouting({ secret, runtimeDirectory: other.path }).close();
    expect([claims(directory.path), claims(other.path)]).to.deep.equal([false, true]);
    await sessionRouting({ secret }).close();
    expect(claims(directory.path)).to.equal(true);
    directory.remove();
    other.remove();
  });

  it('is none where the variable is empty', () => {
    process.env[variable] = '';
    expect(sessionRouting({ secret }).workerId).to.match(/^[0-9a-f]{32}$/);
  });

  it('is refused where it does not exist, or others may enter it', async () => {
    process.env[variable] = '/nonexistent/esr';
    expect(() => sessionRouting({ secret })).to.throw(Error, '"/nonexistent/esr" does not exist');
    process.env[variable] = 'relative';
    expect(() => sessionRouting({ secret })).to.throw(Error, 'is not an absolute path');
    expect(() => sessionRouting({ secret, runtimeDirectory: '/' })).to.throw(Error, 'The runtime directory "/"');
  });
});

describe('the options of resources()', () => {
  itRefuses('resources()', (options: ResourcesOptions) => resources(options), [
    [{ seedPath: 'seed_session' }, '"seedPath": must begin with a slash'],
    [{ seedPath: '/seed session' }, '"seedPath"'],
    [{ closePath: '/close_session?now' }, '"closePath"'],
    [{ closePath: 7 }, '"closePath"'],
    [{ starts: ['reset'] }, '"starts.0": must be "/path" or "METHOD /path"'],
    [{ starts: '/reset' }, '"starts"'],
    [{ ends: ['/verify', 'GET  /end'] }, '"ends.1": must be "/path" or "METHOD /path"'],
    [{ closeFollowsHeader: '' }, '"closeFollowsHeader"'],
    [{ closeRetryWindowSeconds: 0 }, '"closeRetryWindowSeconds"'],
    [{ closeRetryWindowSeconds: -1 }, '"closeRetryWindowSeconds"'],
    [{ closeRetryWindowSeconds: Infinity }, '"closeRetryWindowSeconds"'],
    [{ closeRetryWindowSeconds: NaN }, '"closeRetryWindowSeconds"'],
    [{ closeRetryWindowSeconds: '300' }, '"closeRetryWindowSeconds"'],
    [{ basePath: 'api' }, '"basePath": must be a path that begins with a slash'],
    [{ basePath: '/api?x' }, '"basePath"'],
    [{ basepath: '/api' }, 'has no option "basepath"; did you mean "basePath"?'],
    [{ seedpath: '/seed' }, 'has no option "seedpath"; did you mean "seedPath"?'],
    [{ closeRetryWindow: 300 }, 'has no option "closeRetryWindow"; did you mean "closeRetryWindowSeconds"?'],
    [{ idleSeconds: 300 }, /has no option "idleSeconds"$/],
    [{ sessionTokenHeader: 'x token' }, '"sessionTokenHeader": must be a field name'],
    [{ sessionTokenHeader: '' }, '"sessionTokenHeader": must be a field name'],
    [{ mcpPath: 'mcp' }, '"mcpPath": must begin with a slash'],
    [{ mcpPath: '/mcp?x' }, '"mcpPath"'],
    [{ tokenHeader: 'x-token' }, 'has no option "tokenHeader"; did you mean "sessionTokenHeader"?'],
  ]);
});

describe('the options of web()', () => {
  itRefuses('web()', (options: WebOptions) => web(options), [
    [{ idleSeconds: 0 }, '"idleSeconds"'],
    [{ idleSeconds: '60' }, '"idleSeconds"'],
    [{ idle: 60 }, 'has no option "idle"; did you mean "idleSeconds"?'],
    [{ idleseconds: 60 }, 'did you mean "idleSeconds"?'],
    [{ basePath: '/api' }, /has no option "basePath"$/],
  ]);
});

describe('routing.session()', () => {
  for (const key of ['genid', 'name', 'key', 'secret']) {
    it(`refuses the option "${key}", which is the routing's own`, () => {
      const options = { [key]: 'x' };
      expect(() => sessionRouting({ secret }).session(options)).to.throw(TypeError, `"${key}"`);
    });
  }
});

describe('checked()', () => {
  const schema = z.strictObject({ alpha: z.string(), nested: z.object({ beta: z.int() }).optional() });

  it('gives back what the schema makes of the options', () => {
    expect(checked('make()', schema.extend({ gamma: z.int().default(3) }), { alpha: 'a' })).to.deep.equal({
      alpha: 'a',
      gamma: 3,
    });
  });

  it('names a key by its whole path', () => {
    const options = { alpha: 'a', nested: { beta: 'b' } };
    expect(() => checked('make()', schema, options)).to.throw(TypeError, 'make(): option "nested.beta": ');
  });

  it('refuses what are no options at all', () => {
    for (const options of ['options', 7, [], true]) {
      expect(() => checked('make()', schema, options)).to.throw(TypeError, 'make(): the options: ');
    }
  });
});
