import { expect } from 'chai';
import express from 'express';
import session from 'express-session';
import type { RequestListener } from 'node:http';
import { createRequire } from 'node:module';
import type { RoutedSessionOptions } from '../../lib/session-cookie.ts';
import type { SessionRouting } from '../../lib/session-routing.ts';
import { selfSigned } from '../fixtures/hop-certificate.ts';
import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;

/** Whether a proxy at an address is to be believed, as `trust proxy` has it. */
const trusts: Readonly<Record<string, unknown>> = {
  nobody: false,
  everybody: true,
  'one hop': 1,
  loopback: 'loopback',
  'a function': (address: string | undefined) => address === '127.0.0.1',
};

/** Options of express-session by which it decides whether to send its cookie, and whether as Secure. */
const cookies: Readonly<Record<string, RoutedSessionOptions>> = {
  'secure: true': { cookie: { secure: true } },
  "secure: 'auto'": { cookie: { secure: 'auto' } },
  "secure: 'auto', proxy: true": { cookie: { secure: 'auto' }, proxy: true },
  "secure: 'auto', proxy: false": { cookie: { secure: 'auto' }, proxy: false },
};

/** Knows no session, so that express-session makes each anew, and its cookie with it. */
class ForgetfulStore extends session.Store {
  get(_sessionId: string, callback: (error?: unknown, found?: session.SessionData | null) => void): void {
    callback();
  }
  set(_sessionId: string, _data: session.SessionData, callback?: () => void): void {
    callback?.();
  }
  destroy(_sessionId: string, callback?: () => void): void {
    callback?.();
  }
}

type Serve = (listener: RequestListener, routing: SessionRouting) => RequestListener;

/** An app whose options of the session, and whose trust in proxies, each request chooses. */
function choosing(make: (trust: unknown, ...handlers: express.RequestHandler[]) => RequestListener): Serve {
  return (listener, routing) => {
    const apps = Object.entries(trusts).flatMap(([whom, trust]) =>
      Object.entries(cookies).map(([name, options]) => {
        const common = { resave: false, saveUninitialized: true, rolling: true, store: new ForgetfulStore() };
        const app = make(trust, routing, routing.session({ ...common, ...options }), listener);
        return [`/${encodeURIComponent(name)}/${encodeURIComponent(whom)}`, app] as const;
      }),
    );
    const all = new Map<string, RequestListener>(apps);
    return (request, response) => (all.get(request.url ?? '') ?? apps[0]![1])(request, response);
  };
}

const apps: Readonly<Record<string, Serve>> = {
  'node:http': choosing((_trust, routing, sessions, listener) => (request, response) => {
    const [one, other] = [request, response] as [express.Request, express.Response];
    routing?.(one, other, () => sessions?.(one, other, () => listener?.(one, other, () => undefined)));
  }),
  'Express 4': choosing((trust, ...handlers) =>
    express4()
      .set('trust proxy', trust)
      .use(...handlers),
  ),
  'Express 5': choosing((trust, ...handlers) =>
    express()
      .set('trust proxy', trust)
      .use(...handlers),
  ),
};

/** Asks for one kind of cookie under every trust, one request after another on one connection. */
function underEveryTrust(cookie: string, fields: readonly string[]): Case {
  return {
    async converse(wire) {
      const replies: string[] = [];
      for (const whom of Object.keys(trusts)) {
        const target = `/${encodeURIComponent(cookie)}/${encodeURIComponent(whom)}`;
        wire.send(head(`GET ${target} HTTP/1.1`, sessionCookie, 'Connection: keep-alive', ...fields));
        replies.push(await wire.until('\r\n\r\nok'));
      }
      return replies.join('\r\n');
    },
    answer(response) {
      Object.assign((response.req as express.Request).session, { isUsed: true });
      response.setHeader('Content-Length', 2).end('ok');
    },
    requests: Object.keys(trusts).length,
  };
}

const cases: Readonly<Record<string, Case>> = Object.fromEntries(
  Object.keys(cookies).flatMap((cookie) => [
    [cookie, underEveryTrust(cookie, [])],
    [`${cookie}, and the client says that it came by https`, underEveryTrust(cookie, ['X-Forwarded-Proto: https'])],
    [`${cookie}, and the client says so of another hop`, underEveryTrust(cookie, ['X-Forwarded-Proto: http, https'])],
    [`${cookie}, and the client says so elsewhere`, underEveryTrust(cookie, ['Forwarded: proto=https', 'X-Ssl: on'])],
  ]),
);

/** How many Secure cookies came back. */
function secureCookiesIn(reply: unknown): number {
  return String(reply).match(/^Set-Cookie: resources\.sid=.*; Secure$/gm)?.length ?? 0;
}

/** The cases in which a textbook forwarder says where a request came from, or fails to, for all to see. */
function textbookOf(isHttps: boolean, kind: string): readonly string[] | 'passes' {
  if (isHttps) return ['secure: true', "secure: 'auto'", "secure: 'auto', proxy: false"];
  if (kind === 'node:http') return 'passes'; // nobody asks where it came from
  return Object.keys(cookies)
    .slice(0, 2)
    .map((cookie) => `${cookie}, and the client says that it came by https`);
}

describe('the Secure cookie of a forwarded request', () => {
  for (const tls of [false, selfSigned()]) {
    for (const attach of [true, false]) {
      for (const [kind, app] of Object.entries(apps)) {
        const how = attach ? 'ahead of the app' : 'as its middleware';
        family(`over ${tls ? 'https' : 'http'}, routed ${how}, where express-session has`, {
          attach,
          tls,
          apps: { [kind]: app },
          cases,
          textbook: textbookOf(Boolean(tls), kind),
          check({ reply }, name) {
            const isProxied = name.endsWith('by https') && !name.includes('proxy:');
            if (tls) expect(secureCookiesIn(reply)).to.equal(5);
            // For everybody but who trusts nobody, by Express's word.
            else if (kind !== 'node:http' && isProxied) expect(secureCookiesIn(reply)).to.equal(4);
            else if (!name.includes('proxy: true')) expect(secureCookiesIn(reply)).to.equal(0);
          },
        });
      }
    }
  }
});
