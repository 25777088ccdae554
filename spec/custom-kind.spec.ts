import { expect } from 'chai';
import { once } from 'node:events';
import express from 'express';
import { request as httpRequest, type ClientRequest, type IncomingMessage } from 'node:http';
import { sessionKind, type SessionKindOptions } from '../lib/custom-kind.ts';
import { SessionRoutingError } from '../lib/errors.ts';
import { monotonicSeconds } from '../lib/seconds.ts';
import { firstOf, fromBody, fromCookie, fromFunction, fromHeader, fromQuery } from '../lib/session-sources.ts';
import type { SessionRouting } from '../lib/session-routing.ts';
import {
  cookieOf,
  portOf,
  send,
  sessionIdIn,
  startWorkers,
  until,
  type RawReply,
  type RawRequest,
  type Workers,
} from './fixtures/routed.ts';
import { warningsOf } from './fixtures/warnings.ts';

const header = fromHeader('x-game-id');
const join = fromBody('/game', { routes: ['/join'] });

describe('sessionKind()', () => {
  it('has no cookie unless that is among its sources, or among several of which the first counts', () => {
    expect(sessionKind({ from: [header] })).to.include({ kind: 'session', cookies: 'none', basePath: '' });
    const named = sessionKind({
      from: [header, firstOf(fromQuery('game'), fromCookie())],
      kind: 'game',
      basePath: '/api/',
    });
    expect(named).to.include({ kind: 'game', cookieName: 'game.sid', cookies: 'router', basePath: '/api' });
  });

  it('reads no body without a source that does, nor where the head counts', () => {
    expect(sessionKind({ from: [header] }).bodyReader('POST', '/join', false)).to.equal(undefined);
    const [all, first] = [sessionKind({ from: [header, join] }), sessionKind({ from: [firstOf(header, join)] })];
    expect(all.bodyReader('POST', '/join', true)?.({ game: 'g' })).to.equal('g');
    expect(first.bodyReader('POST', '/join', true)).to.equal(undefined);
    expect(first.bodyReader('POST', '/join', false)?.({ game: 'g' })).to.equal('g');
  });

  it('refuses a body whose members name different sessions', () => {
    const kind = sessionKind({ from: [join, fromBody('/id', { routes: ['/join', '/leave'] })] });
    const read = kind.bodyReader('POST', '/join', false);
    expect(read?.({ game: 'g', id: 'g' })).to.equal('g');
    expect(read?.({ game: 'g' })).to.equal('g');
    expect(() => read?.({ game: 'g', id: 'h' })).to.throw(
      SessionRoutingError,
      'The member /game of the body and the member /id of the body name different sessions.',
    );
    expect(kind.bodyReader('POST', '/leave', false)?.({ game: 'g', id: 'h' })).to.equal('h');
  });

  it('takes routes that start and end sessions', () => {
    const kind = sessionKind({ from: [header], starts: ['/start', 'PUT /games'], ends: ['/end', 'DELETE /games'] });
    const lifetimes = kind.createLifetimes(monotonicSeconds);
    const request = (method: string, path: string) => ({ method, path, headers: {} });
    expect(lifetimes.starts(request('POST', '/Start/'))).to.equal(true);
    expect(lifetimes.starts(request('PUT', '/games'))).to.equal(true);
    expect(lifetimes.starts(request('POST', '/games'))).to.equal(false);
    lifetimes.served('s', request('PUT', '/games'), 200);
    for (const status of [199, 302, 404, 500, undefined]) lifetimes.served('s', request('DELETE', '/games'), status);
    expect(lifetimes.holds('s')).to.equal(true);
    lifetimes.served('s', request('DELETE', '/games'), 204);
    expect(lifetimes.holds('s')).to.equal(false);
  });

  const refused: [options: unknown, message: string][] = [
    [undefined, 'option "from": '],
    [{}, 'option "from": '],
    [{ from: [] }, 'option "from": must name at least one source'],
    [{ from: header }, 'option "from": '],
    [{ from: [fromHeader] }, 'option "from.0": must be a source, such as fromHeader("x-game-id")'],
    [{ from: ['x-game-id'] }, 'option "from.0": must be a source'],
    [{ from: [header], kind: '' }, 'option "kind": must be a word'],
    [{ from: [header], kind: 'my kind' }, 'option "kind": must be a word'],
    [{ from: [header], starts: ['start'] }, 'option "starts.0": '],
    [{ from: [header], ends: '/end' }, 'option "ends": '],
    [{ from: [header], idleSeconds: -1 }, 'option "idleSeconds": '],
    [{ from: [header], idleSeconds: Infinity }, 'option "idleSeconds": '],
    [{ from: [header], idleSeconds: NaN }, 'option "idleSeconds": '],
    [{ from: [header], isOpen: true }, 'option "isOpen": must be a function'],
    [{ from: [header], released: {} }, 'option "released": must be a function'],
    [{ from: [header], basePath: 'api' }, 'option "basePath": '],
    [{ from: [header], replyHeader: 'x game' }, 'option "replyHeader": must be a field name'],
    [{ from: [header], replyheader: 'x-game' }, 'has no option "replyheader"; did you mean "replyHeader"?'],
    [{ from: [header], secret: 'x' }, 'has no option "secret"'],
  ];
  for (const [options, message] of refused) {
    it(`refuses ${JSON.stringify(options)}`, () => {
      expect(() => sessionKind(options as SessionKindOptions))
        .to.throw(TypeError, message)
        .with.property('message')
        .that.includes('sessionKind()');
    });
  }
});

let workers: Workers;
let released: string[];
let handled: string[];

/** An app that does what a query says, of sessions whose IDs it has from there. */
function gameApp(routing: SessionRouting, index: number): express.Express {
  const app = express().set('env', 'test');
  app.use(routing);
  if (routing.kind.cookies !== 'none') app.use(routing.session({ resave: false, saveUninitialized: false }));
  app.use(express.json({ limit: '1mb' }));
  app.use((request, response) => {
    const { claim, ended, over, name, also, status = '200' } = request.query as Record<string, string>;
    handled.push(request.path);
    if (ended !== undefined) routing.ended(ended);
    if (over !== undefined) routing.ended(request);
    if (claim !== undefined) routing.claim(claim);
    if (name !== undefined) response.set('X-Game-Id', name);
    if (also !== undefined) response.writeProcessing();
    response.status(Number(status)).json({ worker: index });
  });
  return app;
}

async function start(
  options: Partial<SessionKindOptions> = {},
  more: Omit<NonNullable<Parameters<typeof startWorkers>[1]>, 'kind'> = {},
  makeApp = gameApp,
): Promise<void> {
  released = [];
  handled = [];
  const kind = (index: number) =>
    sessionKind({
      from: [header],
      starts: ['/start'],
      ends: ['/end'],
      replyHeader: 'X-Game-Id',
      idleSeconds: 0.1,
      released: (sessionId) => released.push(`${index} ${sessionId}`),
      ...options,
    });
  workers = await startWorkers(makeApp, { kind, ...more });
}

const stop = (): Promise<void> => workers.close();

function ask(index: number, target: string, sessionId?: string, more: Partial<RawRequest> = {}): Promise<RawReply> {
  const fields = sessionId === undefined ? [] : ['X-Game-Id', sessionId];
  return send({ to: portOf(workers.all[index]!.server), method: 'POST', target, fields, ...more });
}

function seen({ status, json }: RawReply): unknown[] {
  return [status, json?.code ?? json?.worker];
}

/** Longer than a claim lingers that nothing holds. */
const lingered = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 1_300));

describe("a session of a kind of one's own", () => {
  describe('is named by sources that must agree', () => {
    for (const [what, count] of [
      ['one worker', 1],
      ['two workers', 2],
    ] as const) {
      it(`or the app never sees the request, with ${what}`, async () => {
        await start({ from: [header, fromQuery('game'), join] }, { count, shared: count > 1 });
        const json = ['Content-Type', 'application/json'];
        const body = '{"game":"b"}';
        expect(seen(await ask(0, '/use?game=q', 'h'))).to.deep.equal([409, 'SESSION_MISMATCH']);
        expect(seen(await ask(0, '/join', 'h', { body, fields: ['X-Game-Id', 'h', ...json] }))).to.deep.equal([
          409,
          'SESSION_MISMATCH',
        ]);
        expect(seen(await ask(0, '/join?game=q', undefined, { body, fields: json }))).to.deep.equal([
          409,
          'SESSION_MISMATCH',
        ]);
        expect([handled, workers.claims()]).to.deep.equal([[], []]);
        const fields = ['X-Game-Id', 'b', ...json];
        expect(seen(await ask(0, '/join?game=b', 'b', { body, fields }))).to.deep.equal([200, 0]);
        await stop();
      });
    }

    it('or is a 500 of the source, and the worker lives', async () => {
      const failing = fromFunction(({ url }) => {
        if (url === '/fail') throw new Error('no');
        if (url === '/gone') throw new SessionRoutingError('SESSION_GONE', 'Over.');
        return url === '/float' ? (1.5 as never) : undefined;
      });
      await start({ from: [failing, header] });
      const warnings = await warningsOf(async () => {
        expect(seen(await ask(0, '/fail'))).to.deep.equal([500, 'SESSION_SOURCE_FAILED']);
      });
      expect(warnings).to.have.length(1);
      expect(seen(await ask(0, '/gone'))).to.deep.equal([410, 'SESSION_GONE']);
      expect(seen(await ask(0, '/float'))).to.deep.equal([400, 'SESSION_ID_INVALID']);
      expect(seen(await ask(0, '/use'))).to.deep.equal([200, 0]);
      expect(handled).to.deep.equal(['/use']);
      await stop();
    });
  });

  describe('whose bodies are read on some routes', () => {
    /** A handler that answers with the first chunk of a body, before the rest has come. */
    async function startStreaming(from: SessionKindOptions['from'], parserAhead = false): Promise<void> {
      await start({ from }, { middlewareOnly: parserAhead }, (routing, index) => {
        const app = express();
        if (parserAhead) app.use(express.json());
        app.use(routing);
        app.use(async (request, response) => {
          if (parserAhead) return void response.json({ worker: index });
          const [chunk] = (await once(request, 'data')) as [Buffer];
          response.json({ worker: index, chunk: chunk.toString() });
        });
        return app;
      });
    }

    /** What comes back for the first half of a body, whose second half is sent only then. */
    async function replyToHalf(target: string, fields: string[]): Promise<unknown> {
      const sent: ClientRequest = httpRequest({
        port: portOf(workers.all[0]!.server),
        host: '127.0.0.1',
        method: 'POST',
        path: target,
        agent: false,
        headers: ['Host', 'a', 'Content-Length', '12', ...fields],
      });
      sent.write('{"game"');
      const [response] = (await once(sent, 'response')) as [IncomingMessage];
      sent.end(':"b"}');
      let text = '';
      for await (const chunk of response) text += String(chunk);
      return JSON.parse(text);
    }

    it('gets those of other routes as they come, on its own worker or another', async () => {
      await startStreaming([header, join]);
      workers.all[1]!.routing.claim('h');
      expect(await replyToHalf('/other', [])).to.deep.equal({ worker: 0, chunk: '{"game"' });
      expect(await replyToHalf('/other', ['X-Game-Id', 'h'])).to.deep.equal({ worker: 1, chunk: '{"game"' });
      expect((await ask(0, '/join', undefined, { body: '{"game":"h"}' })).json).to.deep.equal({
        worker: 1,
        chunk: '{"game":"h"}',
      });
      await stop();
    });

    it('gets those as they come whose head counts first', async () => {
      await startStreaming([firstOf(header, join)]);
      workers.all[1]!.routing.claim('h');
      workers.all[1]!.routing.claim('b');
      expect(await replyToHalf('/join', ['X-Game-Id', 'h'])).to.deep.equal({ worker: 1, chunk: '{"game"' });
      expect((await ask(0, '/join', undefined, { body: '{"game":"b"}' })).json.worker).to.equal(1);
      await stop();
    });

    it('is a clear 500 where a parser has read one of those, and of no other', async () => {
      await startStreaming([header, join], true);
      const more = { body: '{"game":"b"}', fields: ['Content-Type', 'application/json'] };
      expect(seen(await ask(0, '/join', undefined, more))).to.deep.equal([500, 'BODY_ALREADY_READ']);
      expect(seen(await ask(0, '/other', undefined, more))).to.deep.equal([200, 0]);
      await stop();
    });
  });

  describe('that a reply names', () => {
    before(() => start());
    after(stop);

    it('is claimed ahead of the reply, and stays', async () => {
      for (const [query, id] of [
        ['', 'a'],
        ['&also', 'b'],
        ['&status=303', 'c'],
      ]) {
        expect((await ask(1, `/open?name=${id}${query}`)).status).to.be.lessThan(400);
        expect(workers.claimantOf(String(id))).to.equal(1);
        expect(seen(await ask(0, '/use', id))).to.deep.equal([200, 1]);
      }
    });

    it('is not claimed where the reply fails and the app is not asked, or is no ID', async () => {
      for (const status of [400, 404, 500]) await ask(1, `/open?name=failed&status=${status}`);
      expect(workers.claimantOf('failed')).to.equal(undefined);
      expect(seen(await ask(1, `/open?name=${'x'.repeat(4097)}`))).to.deep.equal([400, 'SESSION_ID_INVALID']);
      expect((await ask(1, '/open?name=')).status).to.equal(200);
    });

    it('and another worker holds is a 409 in the place of the reply, here and over the hop, and names nothing', async () => {
      workers.all[1]!.routing.claim('held');
      workers.all[0]!.routing.claim('mine');
      for (const reply of [
        await ask(0, '/open?name=held'),
        await ask(0, '/open?name=held', 'mine'),
        await ask(1, '/open?name=held', 'mine'),
        await ask(1, '/open?name=held', 'mine', { method: 'PUT' }),
      ]) {
        expect(seen(reply)).to.deep.equal([409, 'SESSION_CLAIMED_ELSEWHERE']);
        expect(reply.json).to.have.all.keys('type', 'title', 'status', 'detail', 'code');
        expect(reply.rawHeaders.map((name) => name.toLowerCase())).not.to.include('x-game-id');
      }
      expect((await ask(1, '/open?name=held', 'mine', { method: 'HEAD' })).status).to.equal(409);
      expect(workers.claimantOf('held')).to.equal(1);
      for (const index of [0, 1]) expect(seen(await ask(index, '/use', 'mine'))).to.deep.equal([200, 0]);
    });
  });

  describe('ends', () => {
    before(() => start());
    after(stop);

    it('in every way that is there, and is released once, by its own worker', async () => {
      const { routing } = workers.all[1]!;
      const ways: Record<string, () => Promise<unknown>> = {
        'by-route': () => ask(0, '/end', 'by-route'),
        'by-id': async () => routing.ended('by-id'),
        'by-request': () => ask(0, '/finish?over', 'by-request'),
        'by-failure': () => ask(0, '/finish?over&status=500', 'by-failure'),
        // A reply that ends a session may name it once more.
        'by-request-that-names': () => ask(0, '/finish?over&name=by-request-that-names', 'by-request-that-names'),
        'by-id-that-names': () => ask(0, '/finish?ended=by-id-that-names&name=by-id-that-names', 'by-id-that-names'),
        'by-route-that-names': () => ask(0, '/end?name=by-route-that-names', 'by-route-that-names'),
      };
      for (const id of Object.keys(ways)) routing.claim(id);
      for (const id of ['refused', 'idle']) await ask(1, id === 'refused' ? '/use?status=404' : '/use', id);
      for (const [id, end] of Object.entries(ways)) {
        expect(workers.claimantOf(id)).to.equal(1);
        await end();
      }
      await until(() => workers.claims().length === 0, 'all have ended');
      expect(released.toSorted()).to.deep.equal(
        [...Object.keys(ways), 'refused', 'idle'].map((id) => `1 ${id}`).toSorted(),
      );
    });

    it('by nobody but the worker that holds it', async () => {
      const [other, { routing }] = [workers.all[0]!, workers.all[1]!];
      const live = ['claimed', 'started', 'again', 'again-by-start', 'again-by-reply', 'failed-end'];
      for (const id of live) routing.claim(id);
      other.routing.ended('claimed');
      other.routing.ended('unknown');
      // Within the second for which an ended session is still claimed, it may begin anew.
      for (const id of live.filter((each) => each.startsWith('again'))) routing.ended(id);
      routing.claim('again');
      expect(seen(await ask(0, '/start', 'again-by-start'))).to.deep.equal([200, 1]);
      expect(seen(await ask(0, '/open?name=again-by-reply', 'again-by-reply'))).to.deep.equal([200, 1]);
      await ask(0, '/start', 'started');
      await ask(0, '/end?status=500', 'failed-end');
      await lingered();
      for (const id of live) expect([id, workers.claimantOf(id)]).to.deep.equal([id, 1]);
      expect(() => other.routing.claim('claimed'))
        .to.throw(SessionRoutingError)
        .with.property('code', 'SESSION_CLAIMED_ELSEWHERE');
      for (const id of live) routing.ended(id);
    });
  });

  it("is the app's to say open or not, and kept where it cannot say", async () => {
    const open = new Set<string>();
    await start({
      isOpen(sessionId) {
        if (sessionId === 'unsure') throw new Error('no database');
        return open.has(sessionId);
      },
    });
    open.add('open');
    const warnings = await warningsOf(async () => {
      for (const id of ['open', 'unsure', 'closed']) await ask(1, '/start', id);
      await until(() => workers.claims().length === 2, 'one is gone');
    });
    expect([workers.claimantOf('open'), workers.claimantOf('unsure')]).to.deep.equal([1, 1]);
    expect(warnings).to.have.length(1);
    open.clear();
    await ask(0, '/use', 'open');
    await until(() => workers.claims().length === 1, 'the other is gone');
    expect(released).to.deep.equal(['1 closed', '1 open']);
    await stop();
  });

  it('is open where the app says so and a reply names it, even in one that fails', async () => {
    await start({ isOpen: (sessionId) => sessionId.startsWith('open') });
    const statuses = [303, 400, 404, 500];
    for (const status of statuses) {
      const id = `open-${status}`;
      expect((await ask(1, `/open?name=${id}&status=${status}`)).status).to.equal(status);
      expect(workers.claimantOf(id)).to.equal(1);
      expect(seen(await ask(0, `/open?name=${id}&status=${status}`))).to.deep.equal([409, 'SESSION_CLAIMED_ELSEWHERE']);
      expect(seen(await ask(0, '/use', id))).to.deep.equal([200, 1]);
    }
    await ask(1, '/use', 'elsewhere');
    for (const name of ['unknown', 'elsewhere', 'x'.repeat(4097)]) {
      expect(seen(await ask(0, `/open?name=${name}&status=404`))).to.deep.equal([404, 0]);
    }
    await lingered();
    expect(workers.claims()).to.have.length(statuses.length);
    await stop();
  });

  it('that has a cookie is minted by a start, ends by request or route, and is then held no longer', async () => {
    await start({ from: [fromCookie()], kind: 'game', idleSeconds: 60 });
    const ids: string[] = [];
    for (let count = 0; count < 4; count++) {
      const { setCookies } = await ask(1, '/start');
      ids.push(sessionIdIn(setCookies, 'game.sid') ?? '');
    }
    const [first = '', second = '', third = '', kept = ''] = ids;
    const withCookie = (id: string): Partial<RawRequest> => ({ fields: ['Cookie', cookieOf(id, 'game.sid')] });
    for (const id of ids) expect(seen(await ask(0, '/use', undefined, withCookie(id)))).to.deep.equal([200, 1]);
    await ask(0, '/finish?over', undefined, withCookie(first));
    await ask(0, '/end', undefined, withCookie(second));
    await ask(0, `/finish?ended=${third}`, undefined, withCookie(third));
    await until(() => workers.claims().length === 1, 'three have ended');
    expect(workers.claimantOf(kept)).to.equal(1);
    await stop();
  });

  it('whose worker is gone is a 410, by every source', async () => {
    await start({ from: [header, fromQuery('game'), join] });
    for (const id of ['a', 'b', 'c']) workers.all[1]!.routing.claim(id);
    await workers.leave(workers.all[1]!);
    const gone = [410, 'SESSION_GONE'];
    expect(seen(await ask(0, '/use', 'a'))).to.deep.equal(gone);
    expect(seen(await ask(0, '/use?game=b'))).to.deep.equal(gone);
    expect(seen(await ask(0, '/join', undefined, { body: '{"game":"c"}' }))).to.deep.equal(gone);
    expect(seen(await ask(0, '/use', 'd'))).to.deep.equal([200, 0]);
    expect(handled).to.deep.equal(['/use']);
    await stop();
  });
});
