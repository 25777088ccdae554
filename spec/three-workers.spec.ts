import { expect } from 'chai';
import express from 'express';
import { sessionKind, type SessionKindOptions } from '../lib/custom-kind.ts';
import type { RoutedSessionOptions } from '../lib/session-cookie.ts';
import type { SessionKind } from '../lib/session-kind.ts';
import { resources, web } from '../lib/session-kinds.ts';
import type { RoutingInternals, SessionRouting } from '../lib/session-routing.ts';
import { firstOf, fromBody, fromHeader, fromPath, fromQuery } from '../lib/session-sources.ts';
import {
  appWith,
  cookieOf,
  portOf,
  send,
  startWorkers,
  until,
  type MakeApp,
  type RawReply,
  type RawRequest,
  type Worker,
} from './fixtures/routed.ts';

/** Numbers from 0 up to a bound, the same ones for the same start. */
function randomFrom(start: number): (bound: number) => number {
  let state = start;
  return (bound) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * bound);
  };
}

/** A reply without the fields that belong to its connection and its time. */
function comparable({ status, text, rawHeaders }: RawReply): object {
  const own = /^(date|connection|transfer-encoding)$/i;
  const fields = rawHeaders.flatMap((name, at) => {
    return at % 2 === 0 && !own.test(name) ? [`${name}: ${rawHeaders[at + 1]}`] : [];
  });
  return { status, text, fields };
}

/** Draws the requests of one run, and is told of the replies that one worker gives to them. */
interface Requests {
  next(step: number): Omit<RawRequest, 'to'>;
  answered?(reply: RawReply): void;
  /** The requests that end every session there may be, after which no claim may be left. */
  last?(): readonly Omit<RawRequest, 'to'>[];
}

/** Expects three workers to answer requests, one after the other and each by any worker, as one worker does. */
async function expectAlike(
  makeApp: MakeApp,
  options: () => { kind: SessionKind | ((index: number) => SessionKind); internals?: RoutingInternals },
  makeRequests: (any: <T>(list: readonly T[]) => T) => Requests,
  { start = 7, steps = 300 }: { start?: number; steps?: number } = {},
): Promise<void> {
  const below = randomFrom(start);
  const any = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  const requests = makeRequests(any);
  const one = await startWorkers(makeApp, { ...options(), count: 1, shared: false });
  const three = await startWorkers(makeApp, { ...options(), count: 3 });
  try {
    for (let step = 0; step < steps; step++) {
      const request = requests.next(step);
      const expected = await send({ to: portOf((one.all[0] as Worker).server), ...request });
      const reply = await send({ to: portOf(any(three.all).server), ...request });
      const what = `request ${step}: ${request.method} ${request.target}`;
      expect(comparable(reply), what).to.deep.equal(comparable(expected));
      requests.answered?.(expected);
    }
    if (requests.last === undefined) return;
    for (const request of requests.last()) await send({ to: portOf(any(three.all).server), ...request });
    await until(() => three.claims().length === 0, 'no claim is left');
  } finally {
    await one.close();
    await three.close();
  }
}

describe('three workers answer 300 requests of any kind as one does', () => {
  /** Handlers that do with their sessions what handlers do, and count what they have seen of each. */
  function newApp(session: RoutedSessionOptions): (routing: SessionRouting) => express.Express {
    return (routing) => {
      const seen = new Map<string, number>();
      return appWith(
        routing,
        (app) => {
          const tell = (request: express.Request, response: express.Response): void => {
            const { sessionID, session } = request;
            seen.set(sessionID, (seen.get(sessionID) ?? 0) + 1);
            response.json({ sessionID, session, seen: seen.get(sessionID) });
          };
          app.set('env', 'test');
          app.all(/seed_session|close_session|health/i, ({ query, body }, response) => {
            response.status(Number(query['status'] ?? 200)).json(body);
          });
          app.all('/save', (request, response) => {
            const kept = request.session as { value?: number };
            kept.value = (kept.value ?? 0) + 1;
            tell(request, response);
          });
          app.all('/regenerate', (request, response) => {
            request.session.regenerate(() => tell(request, response));
          });
          app.all('/reload', (request, response) => {
            request.session.reload((error) => (error ? response.sendStatus(404) : tell(request, response)));
          });
          app.all('/destroy', (request, response) => {
            request.session.destroy(() => response.json(request.sessionID));
          });
          app.all('/null', (request, response) => {
            Object.assign(request, { session: null });
            response.json('none');
          });
          app.all('/fail', (request, _response, next) => {
            Object.assign(request.session, { value: 'failed' });
            next(new Error('failed'));
          });
          app.all('/late', (request, response) => {
            response.write('begun, ');
            response.end(String(seen.get(request.sessionID)));
          });
          app.all('/redirect', (request, response) => {
            Object.assign(request.session, { value: 0 });
            response.append('Set-Cookie', 'other=1').redirect('/save');
          });
          app.use(tell);
        },
        session,
      );
    };
  }

  const paths = (
    '/seed_session /Seed_Session/ /seed_session?status=500 /seed_session?status=409 /close_session ' +
    '/ng-rollout/x/seed_session /health /start /verify /save /tell /regenerate /destroy /null /reload /fail /late /redirect'
  ).split(' ');

  const kinds: Record<string, [SessionKind, RoutedSessionOptions]> = {
    'a resources server': [resources({ starts: ['/start'] }), {}],
    'a resources server that saves every session': [resources(), { saveUninitialized: true, rolling: true }],
    'a resources server that unsets sessions': [resources(), { resave: true, unset: 'destroy' }],
    'a web app': [web(), {}],
    'a web app that saves every session': [web(), { saveUninitialized: true, rolling: true }],
    'a web app that unsets sessions': [web(), { resave: true, unset: 'destroy' }],
  };
  for (const [what, [kind, session]] of Object.entries(kinds)) {
    it(`for ${what}`, async () => {
      const name = kind.cookieName;
      const jars = ['', '', ''];
      const options = (): { kind: SessionKind; internals: RoutingInternals } => {
        let minted = 0;
        return { kind, internals: { mint: () => `minted-${++minted}` } };
      };
      await expectAlike(newApp(session), options, (any) => {
        let jar = 0;
        return {
          next() {
            jar = any([0, 1, 2]);
            const own = jars[jar] ?? '';
            const strange = ['', `${name}=s%3Aa.b`, `other=1; ${own}`, cookieOf('a', name, 'another secret')];
            const cookie = any([own, own, own, cookieOf(any(['a', 'b', 'minted-1']), name), any(strange)]);
            const target = any(paths);
            const method = /session|start|verify/i.test(target) ? 'POST' : any(['GET', 'HEAD', 'POST']);
            const sessionId = any(['a', 'b', 'c', 7, undefined, /s%3A([^.]*)\./.exec(own)?.[1]]);
            const fields = cookie === '' ? [] : ['Cookie', cookie];
            if (method !== 'POST') return { method, target, fields };
            const body = JSON.stringify({ resources_session_id: sessionId });
            return { method, target, fields: ['Content-Type', 'application/json', ...fields], body };
          },
          answered({ setCookies }) {
            const sent = setCookies.find((field) => field.startsWith(`${name}=`));
            if (sent !== undefined) jars[jar] = sent.split(';', 1)[0] ?? '';
          },
        };
      });
    });
  }

  /** IDs that games have, or may be asked for. */
  const odd = ['never', 'never ü', 'a/b', '..', '%2F', ' blank ', '', 'x'.repeat(4097)];

  /** A server of games that are opened, played and ended in every way. `asked`: the routing asks it which are open. */
  function games(asked: boolean, more: SessionKindOptions): { makeApp: MakeApp; kind: (index: number) => SessionKind } {
    const ofWorkers = new Map<number, Map<string, number>>();
    const kind = (index: number): SessionKind => {
      const own = new Map<string, number>();
      ofWorkers.set(index, own);
      return sessionKind({ ...more, ...(asked && { isOpen: (id) => own.has(id) }) });
    };
    const makeApp: MakeApp = (routing, index) => {
      const own = ofWorkers.get(index) as Map<string, number>;
      const app = express().set('env', 'test');
      app.use(routing);
      app.use(express.json());
      const idOf = ({ headers, query, params, body }: express.Request): string =>
        String(headers['x-game'] || query['game'] || params['game'] || (body as { game?: unknown } | undefined)?.game);
      const statusOf = ({ query }: express.Request): number => Number(query['status'] ?? 200);
      app.post(['/claim', '/reply', '/start'], (request, response) => {
        const id = request.path === '/start' ? idOf(request) : String(request.query['new']);
        const status = statusOf(request);
        if (id === 'undefined') return void response.status(422).json('no name');
        if (own.has(id)) return void response.status(409).json('taken');
        if (request.path === '/claim') routing.claim(id);
        if (request.path === '/reply') response.set('X-Game', id);
        // What is left by a failure is the session's only where the app is asked, or has claimed it.
        if (status < 400 || asked || request.path === '/claim') own.set(id, 0);
        response.status(status).json(id);
      });
      app.post('/end', (request, response) => {
        const status = own.has(idOf(request)) ? statusOf(request) : 404;
        if (status < 400) own.delete(idOf(request));
        response.status(status).json(status);
      });
      app.post(['/over', '/drained'], (request, response) => {
        const had = own.delete(idOf(request));
        if (had || request.path === '/drained') routing.ended(idOf(request));
        response.json(had);
      });
      app.post('/forget', (request, response) => void response.json(asked && own.delete(idOf(request))));
      app.all(['/play', '/join', '/games/:game/play'], (request, response) => {
        const id = idOf(request);
        const count = own.get(id);
        if (count === undefined) return void response.status(404).json(id);
        own.set(id, count + 1);
        response.status(statusOf(request)).json(count + 1);
      });
      app.use((_request, response) => void response.json('other'));
      return app;
    };
    return { makeApp, kind };
  }

  const [header, query] = [fromHeader('x-game'), fromQuery('game')];
  const path = fromPath('/games/:game', 'game');
  const body = fromBody('/game', { routes: ['/join', '/start'] });
  const routes = { starts: ['/start'], ends: ['/end'], replyHeader: 'X-Game' };
  const servers: Record<string, [boolean, SessionKindOptions]> = {
    'games that start and end by their routes': [false, { ...routes, from: [header, query, path, body] }],
    'games of which the app says whether they are open': [true, { ...routes, from: [header, query, path, body] }],
    'games of which the first name counts': [false, { ...routes, from: [firstOf(header, query, path, body)] }],
    'games of which the app says whether they are open, and the first name counts': [
      true,
      { ...routes, from: [firstOf(header, query), firstOf(path, body)] },
    ],
  };
  for (const [what, [asked, options]] of Object.entries(servers)) {
    it(`for ${what}`, async () => {
      const { makeApp, kind } = games(asked, options);
      const known = [...odd];
      await expectAlike(
        makeApp,
        () => ({ kind }),
        (any) => ({
          next(step) {
            const id = any(known.slice(-12));
            const other = any(known);
            const status = any(['', '', '', '&status=201', '&status=303', '&status=404', '&status=500']);
            const method = 'POST';
            const json = ['Content-Type', 'application/json'];
            const made = any(['/claim', '/reply', '/start', '', '', '']);
            if (made !== '') {
              known.push(`g${step}`);
              const named = made === '/start' ? `game=g${step}` : any(['', '', `game=${encodeURIComponent(other)}`]);
              return { method, target: `${made}?new=g${step}${status}&${named}`, fields: [] };
            }
            const route = any(['/play', '/play', '/play', '/join', '/end', '/over', '/forget', '/start', '/other']);
            const text = encodeURIComponent(id);
            const field = ['X-Game', id.replace('ü', 'u')];
            return any([
              { method, target: `${route}?game=${text}${status}`, fields: [] },
              { method, target: `${route}?x${status}`, fields: field },
              { method, target: `/games/${text}/play?x${status}`, fields: [] },
              { method: 'GET', target: `/games/${text}/play`, fields: any([[], field, ['X-Game', 'never']]) },
              { method, target: `/join?x${status}`, fields: json, body: JSON.stringify({ game: any([id, 7, null]) }) },
              { method, target: `/start?x${status}`, fields: json, body: JSON.stringify({ game: id }) },
              {
                method,
                target: '/join',
                fields: [...json, ...field],
                body: any(['{"game":', '[]', `{"game":"${id}"}`]),
              },
              { method, target: `${route}?game=${text}`, fields: ['X-Game', any([id, other]).replace('ü', 'u')] },
            ]);
          },
          last: () =>
            known.map((id) => ({ method: 'POST', target: `/drained?game=${encodeURIComponent(id)}`, fields: [] })),
        }),
      );
    });
  }
});
