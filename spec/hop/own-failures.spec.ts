import express from 'express';
import type { RequestListener, ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import { SessionRoutingError, refuse, type RefusalCode } from '../../lib/errors.ts';
import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;
const get = head('GET /a HTTP/1.1', sessionCookie);
const post = `${head('POST /a HTTP/1.1', sessionCookie, 'Content-Length: 5')}hello`;

const answers: Record<string, (response: ServerResponse) => void> = {
  'a 500 with a body in chunks': (response) => {
    response.writeHead(500, { 'X-A': ['1', '2'] }).write('it ');
    setImmediate(() => response.end('failed'));
  },
  'a 500 with a reason of its own': (response) => response.writeHead(500, 'Out Of Cheese').end(),
  'a 503 that says when to come again': (response) =>
    response.writeHead(503, { 'Retry-After': '7', 'Content-Type': 'text/plain', 'X-Busy': 'Yes' }).end('later'),
  'a 504 without a date': (response) => {
    response.sendDate = false;
    response.writeHead(504, { 'X-A': ['1', '2'] }).end();
  },
  'a 502 that closes': (response) => response.writeHead(502, { Connection: 'close', 'X-A': ['1', '2'] }).end('bad'),
  'a 401 with two challenges': (response) =>
    response.writeHead(401, { 'WWW-Authenticate': ['Basic realm="a"', 'Bearer'], 'Set-Cookie': ['a=1', 'b=2'] }).end(),
};
for (const status of [400, 404, 408, 409, 410, 413, 417, 421, 425, 429, 431, 500, 501, 502, 503, 504, 511, 599, 999]) {
  answers[`a ${status}`] = (response) => response.writeHead(status, { 'X-A': ['1', '2'] }).end(`own ${status}`);
}
// What an app that forwards by itself, with this package, may pass on.
for (const code of ['SESSION_GONE', 'CLAIMANT_UNREACHABLE', 'CLAIMANT_BUSY'] satisfies RefusalCode[]) {
  answers[`a refusal by ${code}`] = (response) => {
    response.setHeader('X-A', ['1', '2']);
    refuse(response, new SessionRoutingError(code, 'The app itself says so.'));
  };
}

const cases: Record<string, Case> = {};
for (const [name, answer] of Object.entries(answers)) {
  cases[name] = { text: get, answer };
  cases[`${name} to a POST`] = { text: post, answer };
}
family('the claimant’s own failure', { cases, textbook: /^a (500|504|599)/ });

family('a failure that Express answers', {
  cases: {
    'of a handler that throws': { text: get, serve: throws(new Error('no')) },
    'with a status of its own': { text: post, serve: throws(Object.assign(new Error('no'), { status: 503 })) },
    'with fields of its own': {
      text: get,
      serve: throws(Object.assign(new Error('no'), { status: 502, headers: { 'X-A': ['1', '2'] } })),
    },
    'as a refusal': { text: get, serve: throws(new SessionRoutingError('CLAIMANT_BUSY', 'The app itself says so.')) },
  },
  apps: {
    'Express 4': (listener) => quiet(express4(), listener),
    'Express 5': (listener) => quiet(express(), listener),
  },
  textbook: ['with fields of its own'],
});

function throws(error: Error): NonNullable<Case['serve']> {
  return (request, _response, note) => {
    note(request.url);
    throw error;
  };
}

function quiet(app: express.Express, listener: RequestListener): RequestListener {
  return app.set('env', 'test').use(listener);
}
