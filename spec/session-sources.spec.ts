import { expect } from 'chai';
import express from 'express';
import type { IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import { sessionKind } from '../lib/custom-kind.ts';
import { SessionRoutingError } from '../lib/errors.ts';
import { pathBelow } from '../lib/exchange.ts';
import {
  firstOf,
  fromBody,
  fromCookie,
  fromFunction,
  fromHeader,
  fromPath,
  fromQuery,
  type SessionIdSource,
} from '../lib/session-sources.ts';
import { cookieOf, portOf, send, startWorkers, until, type RawReply, type Workers } from './fixtures/routed.ts';
import { warningsOf } from './fixtures/warnings.ts';

/** Whether the specs run on Express 4, as `npm run test:nodes` has them do, whose paths have another syntax. */
const isExpress4 = 'lazyrouter' in express.application;

const cookieName = 'session.sid';

/** The session that a source finds in a head, or the code of its refusal. */
function found(source: SessionIdSource, url: string, headers: IncomingMessage['headers'] = {}): string | undefined {
  const request = { method: 'GET', url, headers } as IncomingMessage;
  return answer(() => source.readHead({ request, path: pathBelow('', url), cookieId: 'of the cookie' }));
}

/** The session that a source finds in the body of `POST /join`, or the code of its refusal. */
function foundInBody(source: SessionIdSource, json: string, isNamed = false): string | undefined {
  return answer(() => source.bodyReader?.('POST', '/join', isNamed)?.(JSON.parse(json)));
}

function answer(find: () => string | undefined): string | undefined {
  try {
    return find();
  } catch (error) {
    return (error as SessionRoutingError).code;
  }
}

const [invalid, mismatch] = ['SESSION_ID_INVALID', 'SESSION_MISMATCH'];
const body = fromBody('/game/id', { routes: ['/join', 'PUT /join'] });
const byFunction = (value: unknown): SessionIdSource => fromFunction(() => value as string);

describe('fromCookie()', () => {
  it('is the signed cookie, verified', () => {
    expect(found(fromCookie(), '/?game=g')).to.equal('of the cookie');
    expect(fromCookie()).to.include({ isVerified: true, readsCookie: true });
  });
});

describe('fromHeader()', () => {
  const cases: [name: string, headers: IncomingMessage['headers'], expected: string | undefined][] = [
    ['X-Game-Id', { 'x-game-id': 'g' }, 'g'],
    ['x-game-id', { 'x-game-id': 'G%20 "x", y' }, 'G%20 "x", y'],
    ['x-game-id', { 'x-game-id': '' }, undefined],
    ['x-game-id', { 'x-game': 'g' }, undefined],
    ['set-cookie', { 'set-cookie': ['a', 'b'] }, 'a, b'],
    ['set-cookie', { 'set-cookie': [] }, undefined],
    ['__proto__', {}, undefined],
    ['constructor', {}, undefined],
    ['constructor', { constructor: 'g' } as never, 'g'],
  ];
  for (const [name, headers, expected] of cases) {
    it(`reads ${expected} from ${JSON.stringify(headers)} as ${name}`, () => {
      expect(found(fromHeader(name), '/', headers)).to.equal(expected);
    });
  }

  for (const name of ['', 'x game', 'x:game', 'x\r\ny', 'ü', undefined, 7]) {
    it(`refuses ${JSON.stringify(name)} for a name`, () => {
      expect(() => fromHeader(name as string)).to.throw(TypeError, 'fromHeader(): option "name"');
    });
  }
});

describe('fromQuery()', () => {
  const cases: [target: string, expected: string | undefined][] = [
    ['/?game=g', 'g'],
    ['/x/y?a=b&game=g&c', 'g'],
    ['/?game=a+b%20c%2Bd', 'a b c+d'],
    ['/?game=%C3%BC', 'ü'],
    ['/?game=%EF%BB%BFg', '\uFEFFg'],
    ['/?%67ame=g', 'g'],
    ['/?game=g=h', 'g=h'],
    ['/?game=g?h', 'g?h'],
    ['/?game=g\\h', 'g\\h'],
    ['/?game=g#h', 'g'],
    ['http://host/?game=g', 'g'],
    ['/?game=%zz', '%zz'],
    ['/?game=g&game=g', 'g'],
    ['/?game=&game=g', 'g'],
    ['/?game=g&game=h', mismatch],
    ['/?game=g&game=G', mismatch],
    ['/?game=', undefined],
    ['/?game', undefined],
    ['/?Game=g', undefined],
    ['/?game[]=g', undefined],
    ['/?games=g', undefined],
    ['/?', undefined],
    ['/game=g', undefined],
    ['/#?game=g', undefined],
    ['/?a#?game=g', undefined],
    ['*', undefined],
  ];
  for (const [target, expected] of cases) {
    it(`reads ${expected} from ${target}`, () => expect(found(fromQuery('game'), target)).to.equal(expected));
  }

  it('knows no parameter that a prototype has', () => {
    for (const name of ['__proto__', 'constructor', 'length']) {
      expect(found(fromQuery(name), '/?a=b')).to.equal(undefined);
      expect(found(fromQuery(name), `/?${name}=g`)).to.equal('g');
    }
  });

  for (const name of ['', undefined, null, 7]) {
    it(`refuses ${JSON.stringify(name)} for a name`, () => {
      expect(() => fromQuery(name as string)).to.throw(TypeError, 'fromQuery(): option "name"');
    });
  }
});

describe('fromPath()', () => {
  const cases: [target: string, expected: string | undefined][] = [
    ['/games/g', 'g'],
    ['/games/g/', 'g'],
    ['/Games/G/moves/7', 'G'],
    ['/games/g?game=h', 'g'],
    ['/games/g#h', 'g'],
    ['/games/g;h', 'g;h'],
    ['/games/a%20b%2Fc', 'a b/c'],
    ['/games/%C3%BC', 'ü'],
    ['/games/a+b', 'a+b'],
    ['/games/g%', invalidPath()],
    ['/games/%zz', invalidPath()],
    ['/games/%C3', invalidPath()],
    ['/games/g/%zz', 'g'],
    ['/games/__proto__', '__proto__'],
    ['http://host/games/g', 'g'],
    ['http://host:1/games/g?x', 'g'],
    ['/games/a\\b', 'a\\b'],
    ['/games/a\\b#', 'a'],
    ['http://host/games\\a', 'a'],
    ['/games\\a', undefined],
    ['/games', undefined],
    ['/games/', undefined],
    ['/game/g', undefined],
    ['/x/games/g', undefined],
    ['/', undefined],
    ['*', undefined],
  ];
  for (const [target, expected] of cases) {
    it(`reads ${expected} from ${target}`, () => expect(found(fromPath('/games/:game'), target)).to.equal(expected));
  }

  /** A path that Express cannot decode is the app's to answer. */
  function invalidPath(): undefined {
    return undefined;
  }

  it('reads the parameter that it is told', () => {
    const pattern = '/games/:game/players/:player';
    expect(found(fromPath(pattern, 'game'), '/games/g/players/p')).to.equal('g');
    expect(found(fromPath(pattern, 'player'), '/games/g/players/p')).to.equal('p');
    expect(found(fromPath(pattern, 'player'), '/games/g')).to.equal(undefined);
  });

  it('reads a parameter of any name', () => {
    // Express 4 knows only ASCII letters, digits and underscores in names.
    for (const name of ['constructor', 'toString', 'length', ...(isExpress4 ? [] : ['über', '$a_1'])]) {
      expect(found(fromPath(`/games/:${name}`), '/games/g')).to.equal('g');
      expect(found(fromPath(`/games/:${name}`), '/games')).to.equal(undefined);
    }
  });

  it('reads nothing where an optional parameter is left out', () => {
    const pattern = isExpress4 ? '/games/:game?' : '/games{/:game}';
    expect(found(fromPath(pattern), '/games/g')).to.equal('g');
    expect(found(fromPath(pattern), '/games')).to.equal(undefined);
  });

  const refused: [pattern: unknown, parameter: unknown, message: string | RegExp][] = [
    ['games/:game', undefined, 'option "pattern": must begin with a slash'],
    ['', undefined, 'option "pattern"'],
    [undefined, undefined, 'option "pattern"'],
    ['/games/:game', '', 'option "parameter"'],
    ['/games', undefined, 'the path /games has no parameter'],
    ['/games/:game', 'player', 'the path /games/:game has the parameters game'],
    ['/games/:game', 'constructor', 'has the parameters game'],
    ['/games/:game/:player', undefined, 'has the parameters game, player; say which'],
    ['/games/:game(', undefined, 'Express refuses the path /games/:game('],
  ];
  for (const [pattern, parameter, message] of refused) {
    it(`refuses ${JSON.stringify([pattern, parameter])}`, () => {
      expect(() => fromPath(pattern as string, parameter as string)).to.throw(TypeError, message);
    });
  }
});

describe('fromBody()', () => {
  const cases: [json: string, expected: string | undefined][] = [
    ['{"game":{"id":"g"}}', 'g'],
    ['{"game":{"id":" g "}}', ' g '],
    ['{"game":{"id":7}}', '7'],
    ['{"game":{"id":-7}}', '-7'],
    ['{"game":{"id":0}}', '0'],
    ['{"game":{"id":7.0}}', '7'],
    ['{"game":{"id":1e3}}', '1000'],
    ['{"game":{"id":9007199254740991}}', '9007199254740991'],
    ['{"game":{"id":"a","id":"b"}}', 'b'],
    ['{"game":{"id":9007199254740993}}', invalid],
    ['{"game":{"id":1e400}}', invalid],
    ['{"game":{"id":7.5}}', invalid],
    ['{"game":{"id":true}}', invalid],
    ['{"game":{"id":false}}', invalid],
    ['{"game":{"id":["g"]}}', invalid],
    ['{"game":{"id":[]}}', invalid],
    ['{"game":{"id":{}}}', invalid],
    ['{"game":{"id":null}}', undefined],
    ['{"game":{"id":""}}', undefined],
    ['{"game":{"Id":"g"}}', undefined],
    ['{"game":"g"}', undefined],
    ['{"game":null}', undefined],
    ['[{"id":"g"}]', undefined],
    ['{}', undefined],
    ['null', undefined],
    ['"g"', undefined],
  ];
  for (const [json, expected] of cases) {
    it(`reads ${expected} from ${json}`, () => expect(foundInBody(body, json)).to.equal(expected));
  }

  it('reads the whole body by the pointer that is empty', () => {
    const whole = fromBody('', { routes: ['/join'] });
    expect(['"g"', '7', '""', 'null', '{}'].map((json) => foundInBody(whole, json))).to.deep.equal([
      'g',
      '7',
      undefined,
      undefined,
      invalid,
    ]);
  });

  it('reads members that a prototype has only from the document', () => {
    for (const name of ['__proto__', 'constructor', 'length']) {
      const member = fromBody(`/${name}`, { routes: ['/join'] });
      for (const json of ['{}', '[1]', '"text"']) expect(foundInBody(member, json)).to.equal(undefined);
      expect(foundInBody(member, `{"${name}":"g"}`)).to.equal('g');
    }
  });

  it('reads the bodies of its routes alone, whether the head names a session or not', () => {
    for (const [method, path, isRead] of [
      ['POST', '/join', true],
      ['PUT', '/join', true],
      ['POST', '/Join/', true],
      ['PATCH', '/join', false],
      ['GET', '/join', false],
      ['POST', '/join/more', false],
      ['POST', '/', false],
    ] as const) {
      for (const isNamed of [true, false]) {
        expect(body.bodyReader?.(method, path, isNamed) !== undefined, `${method} ${path}`).to.equal(isRead);
      }
    }
    expect(found(body, '/join')).to.equal(undefined);
  });

  const refused: [pointer: unknown, options: unknown, message: string][] = [
    ['/id', undefined, 'fromBody(): option "routes"'],
    ['/id', {}, 'fromBody(): option "routes"'],
    ['/id', { routes: [] }, 'fromBody(): option "routes"'],
    ['/id', { routes: '/join' }, 'fromBody(): option "routes"'],
    ['/id', { routes: ['join'] }, 'fromBody(): option "routes.0"'],
    ['/id', { route: ['/join'], routes: ['/join'] }, 'did you mean "routes"?'],
    ['id', { routes: ['/join'] }, 'JSON pointer'],
    [undefined, { routes: ['/join'] }, 'JSON pointer'],
  ];
  for (const [pointer, options, message] of refused) {
    it(`refuses ${JSON.stringify([pointer, options])}`, () => {
      expect(() => fromBody(pointer as string, options as { routes: [] })).to.throw(TypeError, message);
    });
  }
});

describe('fromFunction()', () => {
  const cases: [value: unknown, expected: string | undefined][] = [
    ['g', 'g'],
    [7, '7'],
    ['', undefined],
    [null, undefined],
    [undefined, undefined],
    [7.5, invalid],
    [NaN, invalid],
    [true, invalid],
    [{}, invalid],
    [['g'], invalid],
    [Symbol('g'), invalid],
    [7n, invalid],
    [() => 'g', invalid],
  ];
  for (const [value, expected] of cases) {
    it(`makes ${expected} of what returns ${String(value)}`, () => {
      expect(found(byFunction(value), '/')).to.equal(expected);
    });
  }

  it('gets the request, and reads what it finds there', () => {
    const source = fromFunction(({ headers }) => headers.authorization?.slice('Bearer '.length));
    expect(found(source, '/', { authorization: 'Bearer g' })).to.equal('g');
    expect(found(source, '/')).to.equal(undefined);
  });

  it('is a failure of the server where it throws, and warns', async () => {
    const source = fromFunction(() => {
      throw new Error('secret detail');
    });
    const warnings = await warningsOf(() => void expect(found(source, '/')).to.equal('SESSION_SOURCE_FAILED'));
    expect(warnings.map(({ message }) => message)).to.deep.equal(['A function that reads session IDs failed.']);
  });

  it('is one where it returns a promise, whose own failure ends nothing', async () => {
    for (const promise of [() => Promise.resolve('g'), () => Promise.reject(new Error('no'))]) {
      const source = fromFunction(promise as never);
      const warnings = await warningsOf(() => void expect(found(source, '/')).to.equal('SESSION_SOURCE_FAILED'));
      expect(warnings).to.have.length(1);
    }
  });

  it('refuses with what it throws, where that is a refusal', async () => {
    const refusal = new SessionRoutingError('SESSION_GONE', 'Over.');
    const source = fromFunction(() => {
      throw refusal;
    });
    const request = { url: '/', headers: {} } as IncomingMessage;
    const warnings = await warningsOf(() => {
      expect(() => source.readHead({ request, path: '/', cookieId: undefined }))
        .to.throw()
        .that.equals(refusal);
    });
    expect(warnings).to.deep.equal([]);
  });

  it('is unverified unless it is said to check', () => {
    expect(fromFunction(() => 'g').isVerified).to.equal(false);
    expect(fromFunction(() => 'g', { verified: true }).isVerified).to.equal(true);
  });

  it('refuses what is no function, and options that it does not have', () => {
    for (const read of [undefined, null, 'g', {}]) {
      expect(() => fromFunction(read as never)).to.throw(
        TypeError,
        'fromFunction(): option "read": must be a function',
      );
    }
    expect(() => fromFunction(() => 'g', { verified: 'yes' } as never)).to.throw(TypeError, 'option "verified"');
    expect(() => fromFunction(() => 'g', { isVerified: true } as never)).to.throw(TypeError, 'mean "verified"?');
  });
});

describe('firstOf()', () => {
  const [header, query] = [fromHeader('x-game-id'), fromQuery('game')];

  it('counts the first that names a session, whatever the others say', () => {
    const headers = { 'x-game-id': 'h' };
    expect(found(firstOf(header, query), '/?game=q', headers)).to.equal('h');
    expect(found(firstOf(query, header), '/?game=q', headers)).to.equal('q');
    expect(found(firstOf(query, header), '/?game=', headers)).to.equal('h');
    expect(found(firstOf(header, query), '/?game=a&game=b', headers)).to.equal('h');
    expect(found(firstOf(header, query), '/?game=a&game=b')).to.equal(mismatch);
    expect(found(firstOf(header, query), '/')).to.equal(undefined);
    expect(found(firstOf(header, firstOf(query, fromCookie())), '/')).to.equal('of the cookie');
  });

  it('reads the body only where no head names a session', () => {
    const source = firstOf(header, body);
    expect(source.bodyReader?.('POST', '/join', true)).to.equal(undefined);
    expect(source.bodyReader?.('POST', '/other', false)).to.equal(undefined);
    expect(foundInBody(source, '{"game":{"id":"g"}}')).to.equal('g');
    expect(firstOf(header).bodyReader?.('POST', '/join', false)).to.equal(undefined);
  });

  it('counts the first of two members of a body', () => {
    const source = firstOf(body, fromBody('/id', { routes: ['/join'] }));
    expect(foundInBody(source, '{"game":{"id":"g"},"id":"h"}')).to.equal('g');
    expect(foundInBody(source, '{"game":{"id":""},"id":"h"}')).to.equal('h');
    expect(foundInBody(source, '{"game":{"id":"g"},"id":[]}')).to.equal('g');
  });

  it('is verified if all are, and reads cookies if one does', () => {
    const checks = fromFunction(() => 'g', { verified: true });
    expect(firstOf(fromCookie(), checks)).to.include({ isVerified: true, readsCookie: true });
    expect(firstOf(fromCookie(), header)).to.include({ isVerified: false, readsCookie: true });
    expect(firstOf(checks)).to.include({ isVerified: true, readsCookie: false });
  });

  it('refuses none, and what are no sources', () => {
    for (const sources of [[], [undefined], [fromHeader], ['x-game-id'], [header, {}]]) {
      expect(() => firstOf(...(sources as SessionIdSource[]))).to.throw(TypeError, 'firstOf(): option "from');
    }
  });
});

const json = { 'Content-Type': 'application/json' };

/** How requests name a session, each in a place of its own. */
const places: Record<string, (sessionId: string) => Omit<Parameters<typeof send>[0], 'to'>> = {
  'the cookie': (id) => ({ fields: ['Cookie', cookieOf(id, cookieName)] }),
  'a header field': (id) => ({ fields: ['X-Game-ID', id] }),
  'the query': (id) => ({ target: `/use?game=${id}` }),
  'the path': (id) => ({ target: `/games/${id}/moves` }),
  'the body': (id) => ({
    method: 'POST',
    target: '/join',
    fields: Object.entries(json).flat(),
    body: JSON.stringify({ game: { id } }),
  }),
  'a function': (id) => ({ fields: ['Authorization', `Bearer ${id}`] }),
  'the last of several': (id) => ({ fields: ['X-Old-Game', id] }),
};

const allSources = (): SessionIdSource[] => [
  fromCookie(),
  fromHeader('x-game-id'),
  fromQuery('game'),
  fromPath('/games/:game'),
  body,
  fromFunction(({ headers }) => headers.authorization?.slice('Bearer '.length)),
  firstOf(fromHeader('x-new-game'), fromHeader('x-old-game')),
];

for (const [version, mode, middlewareOnly] of [
  ['express', 'listen()', false],
  ['express', 'the middleware alone', true],
  ['express4', 'the middleware alone', true],
] as const) {
  describe(`the sources of a kind of one's own, with ${version} and ${mode}`, () => {
    let workers: Workers;
    let handled: number;
    const port = (index: number): number => portOf(workers.all[index]!.server);

    before(async () => {
      const { default: createApp } = (await import(version)) as { default: typeof express };
      workers = await startWorkers(
        (routing, index) => {
          const app = createApp().set('env', 'test');
          app.use(routing);
          app.use((_request, response, next) => {
            handled++;
            response.set('X-Worker', String(index));
            next();
          });
          app.use(createApp.json({ strict: false }));
          app.use('/games/:game', ({ params, query }, response) => {
            response.json({ worker: index, params, query });
          });
          app.use(({ query, body }, response) => void response.json({ worker: index, query, body }));
          return app;
        },
        { kind: sessionKind({ from: allSources(), idleSeconds: 0.1 }), middlewareOnly, bodyLimit: 10_000 },
      );
      // The middleware learns of its server by the first request.
      for (const index of [0, 1]) await send({ to: port(index) });
      workers.all[1]!.routing.claim('g1');
    });
    beforeEach(() => {
      handled = 0;
    });
    after(() => workers.close());

    function workerOf({ rawHeaders }: RawReply): string | undefined {
      return rawHeaders[rawHeaders.indexOf('X-Worker') + 1];
    }

    for (const [place, name] of Object.entries(places)) {
      it(`bring a request to the worker that claimed, by ${place}`, async () => {
        const request = name('g1');
        for (const index of [0, 1, 0]) {
          const reply = await send({ to: port(index), ...request });
          expect([reply.status, reply.json.worker]).to.deep.equal([200, 1]);
          if (request.body !== undefined) expect(reply.json.body).to.deep.equal(JSON.parse(String(request.body)));
        }
        expect(workers.claimantOf('g1')).to.equal(1);
      });

      it(`let another session be served where it lands, by ${place}`, async () => {
        const sessionId = `other-${place.replaceAll(' ', '-')}`;
        expect((await send({ to: port(0), ...name(sessionId) })).json.worker).to.equal(0);
        expect(workers.claimantOf(sessionId)).to.equal(0);
        expect((await send({ to: port(1), ...name(sessionId) })).json.worker).to.equal(0);
      });
    }

    for (const method of ['HEAD', 'OPTIONS', 'DELETE']) {
      it(`bring a ${method} to the worker that claimed`, async () => {
        for (const target of ['/use?game=g1', '/games/g1']) {
          expect(workerOf(await send({ to: port(0), method, target }))).to.equal('1');
          expect(workerOf(await send({ to: port(0), method, target: '/use' }))).to.equal('0');
        }
      });
    }

    it('bring whatever Express itself takes for the session to the worker that claimed', async () => {
      const begins = ['', '/', 'HTTP://host:80'];
      const paths = ['/games/g1', '/GAMES/g1', '/games\\g1', '\\games/g1', '/games//g1', '/games/%671', '/g%61mes/g1'];
      const ends = ['', '/', '\\', '/x', '?x', '#x', '%zz'];
      const queries = ['game=g1', 'game=g1#x', '%67ame=g1', 'game=%671', 'x#&game=g1', 'game=g1&a=b', '&&game=g1&'];
      const targets = [
        ...begins
          .flatMap((begin) => paths.map((path) => begin + path))
          .flatMap((path) => ends.map((end) => path + end)),
        ...begins.flatMap((begin) => queries.map((query) => `${begin}/use?${query}`)),
        ...queries.map((query) => `/use#?${query}`),
      ];
      let seen = 0;
      const send40 = async (start: number): Promise<void> => {
        await Promise.all(
          targets.slice(start, start + 40).map(async (target) => {
            const { status, json } = await send({ to: port(0), target });
            if (status !== 200) return;
            const { params = {}, query, worker } = json;
            if (params.game !== 'g1' && query.game !== 'g1') return;
            seen++;
            expect([target, worker]).to.deep.equal([target, 1]);
          }),
        );
      };
      for (let start = 0; start < targets.length; start += 40) await send40(start);
      expect(seen).to.be.greaterThan(40);
    });

    const unnamed: Record<string, Omit<Parameters<typeof send>[0], 'to'>> = {
      'an empty header field': { fields: ['X-Game-Id', ''] },
      'an empty parameter': { target: '/use?game=' },
      'the parameter in another case': { target: '/use?Game=g1' },
      'no parameter of the path': { target: '/games/' },
      'null in the body': { ...places['the body']!('g1'), body: '{"game":{"id":null}}' },
      'no JSON in the body': { ...places['the body']!('g1'), body: 'game=g1' },
      'the body of another route': { ...places['the body']!('g1'), target: '/other' },
      'the body of another method': { ...places['the body']!('g1'), method: 'PATCH' },
      'a cookie that is not signed': { fields: ['Cookie', `${cookieName}=g1`] },
      'a cookie that is signed by another': { fields: ['Cookie', cookieOf('g1', cookieName, 'another secret')] },
    };
    for (const [what, request] of Object.entries(unnamed)) {
      it(`name no session by ${what}`, async () => {
        const reply = await send({ to: port(0), ...request });
        expect(workerOf(reply)).to.equal('0');
      });
    }

    const long = 'x'.repeat(4097);
    const refused: Record<string, [request: Omit<Parameters<typeof send>[0], 'to'>, status: number, code: string]> = {
      'a list in the body': [{ ...places['the body']!('g'), body: '{"game":{"id":["g1"]}}' }, 400, invalid],
      'a float in the body': [{ ...places['the body']!('g'), body: '{"game":{"id":1.5}}' }, 400, invalid],
      'a lone surrogate in the body': [
        { ...places['the body']!('g'), body: '{"game":{"id":"\\ud800"}}' },
        400,
        invalid,
      ],
      'an ID that is too long, in the body': [places['the body']!(long), 400, invalid],
      'an ID that is too long, in a field': [places['a header field']!(long), 400, invalid],
      'an ID that is too long, in the query': [places['the query']!(long), 400, invalid],
      'an ID that is too long, in the path': [places['the path']!(long), 400, invalid],
      'an ID that is too long, from a function': [places['a function']!(long), 400, invalid],
      'two parameters that differ': [{ target: '/use?game=g1&game=g2' }, 409, mismatch],
      'a query and a path that differ': [{ target: '/games/g1?game=g2' }, 409, mismatch],
      'a query and a field that differ': [{ target: '/use?game=g1', fields: ['X-Game-Id', 'g2'] }, 409, mismatch],
      'a field that is repeated beside a query': [
        { target: '/use?game=g1', fields: ['X-Game-Id', 'g1', 'X-Game-Id', 'g1'] },
        409,
        mismatch,
      ],
      'a cookie and a field that differ': [
        { fields: ['X-Game-Id', 'g1', 'Cookie', cookieOf('g2', cookieName)] },
        409,
        mismatch,
      ],
      'a field and a body that differ': [
        { ...places['the body']!('g1'), fields: ['X-Game-Id', 'g2', ...Object.entries(json).flat()] },
        409,
        mismatch,
      ],
      'a body over the limit': [
        { ...places['the body']!('g1'), body: `"${'x'.repeat(10_000)}"` },
        413,
        'BODY_TOO_LARGE',
      ],
    };
    for (const [what, [request, status, code]] of Object.entries(refused)) {
      it(`refuse ${what}, and the app never sees it`, async () => {
        for (const index of [0, 1]) {
          const reply = await send({ to: port(index), ...request });
          expect([reply.status, reply.json?.code]).to.deep.equal([status, code]);
        }
        expect(handled).to.equal(0);
      });
    }

    it('that agree are one session', async () => {
      const fields = ['X-Game-Id', 'g1', 'Cookie', cookieOf('g1', cookieName), 'Authorization', 'Bearer g1'];
      const reply = await send({ to: port(0), target: '/games/g1?game=g1&game=g1', fields });
      expect(reply.json.worker).to.equal(1);
      const inBody = { ...places['the body']!('g1'), fields: [...fields, ...Object.entries(json).flat()] };
      expect((await send({ to: port(0), ...inBody })).json.worker).to.equal(1);
    });

    it('read an ID that is the longest, and one in any script', async () => {
      for (const sessionId of ['x'.repeat(4096), 'ü–🂡'.repeat(3)]) {
        expect((await send({ to: port(0), ...places['the body']!(sessionId) })).json.worker).to.equal(0);
        const target = `/games/${encodeURIComponent(sessionId)}`;
        expect((await send({ to: port(1), target })).json.worker).to.equal(0);
      }
    });

    it('read a body that is compressed, and put it back as it was', async () => {
      const { body: text, fields = [], ...rest } = places['the body']!('g1');
      const body = gzipSync(String(text));
      const reply = await send({ to: port(0), ...rest, fields: [...fields, 'Content-Encoding', 'gzip'], body });
      expect(reply.json).to.deep.include({ worker: 1, body: { game: { id: 'g1' } } });
    });

    if (!middlewareOnly) {
      it('bring an upgrade to the worker that claimed, and read no body of it', async () => {
        for (const [index, { server }] of workers.all.entries()) {
          server.on('upgrade', (_request, socket) => socket.end(`HTTP/1.1 101 Up\r\nX-Worker: ${index}\r\n\r\n`));
        }
        const upgraded = async (target: string, field = 'X-Y: z'): Promise<string> => {
          const client = connect(port(0), '127.0.0.1');
          client.write(`GET ${target} HTTP/1.1\r\nHost: a\r\n${field}\r\nConnection: upgrade\r\nUpgrade: spec\r\n\r\n`);
          let received = '';
          for await (const chunk of client) received += String(chunk);
          return received;
        };
        expect(await upgraded('/use?game=g1')).to.include('X-Worker: 1');
        expect(await upgraded('/games/g1')).to.include('X-Worker: 1');
        expect(await upgraded('/use', 'X-Game-Id: g1')).to.include('X-Worker: 1');
        expect(await upgraded('/use')).to.include('X-Worker: 0');
        expect(await upgraded('/use?game=g1', 'X-Game-Id: g2')).to.match(/^HTTP\/1\.1 409 [^]*SESSION_MISMATCH/);
      });
    }

    it('leave no claim behind, once the session that was opened has ended', async () => {
      expect(workers.claimantOf('g1')).to.equal(1);
      workers.all[1]!.routing.ended('g1');
      await until(() => workers.claims().length === 0, 'all claims have gone');
    });
  });
}
