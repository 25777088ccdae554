import { expect } from 'chai';
import express from 'express';
import { createServer, type RequestListener, type ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import {
  problemDocument,
  refusalBytes,
  refusalHandler,
  refuse,
  SessionRoutingError,
  silence,
  type RefusalCode,
  type RefusalFormat,
} from '../lib/errors.ts';
import { listening, portOf, send, type RawReply } from './fixtures/routed.ts';

const express4 = createRequire(import.meta.url)('express4') as typeof express;

const statuses: Record<RefusalCode, number> = {
  SESSION_ID_INVALID: 400,
  SESSION_MISMATCH: 409,
  SESSION_CLAIMED_ELSEWHERE: 409,
  AGENT_SESSION_MARKER_INVALID: 409,
  AGENT_SESSION_CLOSED: 409,
  AGENT_SESSION_CLOSING: 409,
  AGENT_SESSION_EXPIRED: 409,
  AGENT_SESSION_CONFLICT: 409,
  AGENT_SESSION_NOT_OPEN: 409,
  SESSION_GONE: 410,
  BODY_TOO_LARGE: 413,
  BODY_ALREADY_READ: 500,
  SESSION_SOURCE_FAILED: 500,
  SESSION_COOKIE_DISPUTED: 500,
  CLAIMANT_UNREACHABLE: 502,
  CLAIMANT_BUSY: 503,
  CLAIM_UNREADABLE: 503,
};
const codes = Object.keys(statuses) as RefusalCode[];

/** The reply of a server with one listener. */
async function replyOf(listener: RequestListener, method = 'GET'): Promise<RawReply> {
  const server = await listening(createServer(listener));
  try {
    return await send({ to: portOf(server), method });
  } finally {
    server.close();
  }
}

function field({ rawHeaders }: RawReply, name: string): string | undefined {
  const at = rawHeaders.findIndex((each, index) => index % 2 === 0 && each.toLowerCase() === name);
  return at === -1 ? undefined : rawHeaders[at + 1];
}

describe('SessionRoutingError', () => {
  for (const code of codes) {
    it(`has the status of ${code}, and a problem document`, () => {
      const error = new SessionRoutingError(code, 'What was seen, and what to do.');
      expect(error).to.be.instanceOf(Error);
      expect(error).to.include({ name: 'SessionRoutingError', code, message: 'What was seen, and what to do.' });
      expect(error).to.include({ status: statuses[code], statusCode: statuses[code] });
      const { title, type, ...others } = error.toJSON();
      expect(others).to.deep.equal({ status: statuses[code], code, detail: 'What was seen, and what to do.' });
      expect(title).to.match(/^[A-Za-z][\w -]{10,80}$/);
      expect(type)
        .to.match(/^(https?|urn):/)
        .and.match(new RegExp(`\\b${code}$`, 'i'));
    });
  }

  it('has a title and a type of its own for every code', () => {
    const documents = codes.map((code) => new SessionRoutingError(code, '').toJSON());
    for (const key of ['title', 'type'] as const) {
      expect(new Set(documents.map((document) => document[key])).size).to.equal(codes.length);
    }
  });

  it('keeps its cause, which its document does not tell', () => {
    const cause = new Error('connect /tmp/secret-path');
    const error = new SessionRoutingError('SESSION_GONE', 'Gone.', { cause });
    expect(error.cause).to.equal(cause);
    expect(JSON.stringify(error)).not.to.include('secret-path');
  });

  it("is answered with its status by Express's own error handler", async () => {
    const app = express().set('env', 'test');
    app.use((_request, _response, next) => next(new SessionRoutingError('SESSION_GONE', 'Gone.')));
    expect((await replyOf(app)).status).to.equal(410);
  });
});

describe('refuse()', () => {
  for (const code of codes) {
    it(`answers with the document of ${code}`, async () => {
      const error = new SessionRoutingError(code, 'Señor');
      const reply = await replyOf((_request, response) => refuse(response, error));
      expect(reply.status).to.equal(statuses[code]);
      expect(reply.json).to.deep.equal(error.toJSON());
      expect(field(reply, 'content-type')).to.equal('application/problem+json');
      expect(field(reply, 'content-length')).to.equal(String(Buffer.byteLength(reply.text)));
      expect(field(reply, 'cache-control')).to.equal('no-store');
      expect(field(reply, 'retry-after')).to.equal(statuses[code] === 503 ? '1' : undefined);
    });
  }

  const gone = new SessionRoutingError('SESSION_GONE', 'Gone.');

  it('keeps what was set ahead of it, except what describes another body', async () => {
    const reply = await replyOf((_request, response) => {
      response.statusMessage = 'Fine';
      response.setHeader('Set-Cookie', ['a=1', 'b=2']);
      response.setHeader('X-Powered-By', 'Express');
      for (const name of ['Content-Encoding', 'ETag', 'Last-Modified', 'Content-Type']) response.setHeader(name, 'x');
      response.setHeader('Content-Length', 99_999);
      refuse(response, gone);
    });
    expect(reply.json).to.include({ code: 'SESSION_GONE' });
    expect(reply.setCookies).to.deep.equal(['a=1', 'b=2']);
    expect(field(reply, 'x-powered-by')).to.equal('Express');
    for (const name of ['content-encoding', 'etag', 'last-modified']) {
      expect(field(reply, name)).to.equal(undefined);
    }
  });

  it('answers HEAD with the head alone', async () => {
    const reply = await replyOf((_request, response) => refuse(response, gone), 'HEAD');
    expect([reply.status, reply.text]).to.deep.equal([410, '']);
    expect(field(reply, 'content-length')).to.equal(String(JSON.stringify(gone).length));
  });

  it('does nothing to a reply that has begun, or has been destroyed', async () => {
    const reply = await replyOf((_request, response) => {
      response.write('begun, ');
      refuse(response, gone);
      response.end('and ended');
      refuse(response, gone);
    });
    expect([reply.status, reply.text]).to.deep.equal([200, 'begun, and ended']);
    const failure = await replyOf((_request, response: ServerResponse) => {
      response.destroy();
      refuse(response, gone);
    }).catch((error: unknown) => error);
    expect(failure).to.have.property('code', 'ECONNRESET');
  });
});

describe('silence()', () => {
  it('lets nobody add to a reply that was given, nor fail at it, by methods of before or of now', async () => {
    const reply = await replyOf((request, response) => {
      const { write, end } = response;
      response.end('given');
      silence(response);
      response.setHeader('X-Late', 'x').writeHead(500).end('more');
      expect([response.write('more'), response.removeHeader('X')]).to.deep.equal([true, undefined]);
      response.writeProcessing();
      write.call(response, 'more', 'utf8');
      end.call(response, 'more', 'utf8');
      request.resume();
    });
    expect([reply.status, reply.text, field(reply, 'x-late')]).to.deep.equal([200, 'given', undefined]);
  });
});

describe('a refusal in a form of its own', () => {
  const format: RefusalFormat = ({ code, status, message }) => ({
    status: status === 410 ? 404 : status,
    contentType: 'text/x-refusal',
    body: `${code}: ${message} ü`,
  });

  for (const code of codes) {
    it(`says ${code} in that form, in a reply and on a bare connection`, async () => {
      const error = new SessionRoutingError(code, 'Señor');
      const status = statuses[code] === 410 ? 404 : statuses[code];
      const reply = await replyOf((_request, response) => refuse(response, error, format));
      expect([reply.status, reply.text]).to.deep.equal([status, `${code}: Señor ü`]);
      expect(field(reply, 'content-type')).to.equal('text/x-refusal');
      expect(field(reply, 'content-length')).to.equal(String(Buffer.byteLength(reply.text)));
      expect(field(reply, 'cache-control')).to.equal('no-store');
      expect(field(reply, 'retry-after')).to.equal(statuses[code] === 503 ? '1' : undefined);

      const [head = '', body] = refusalBytes(error, format).split('\r\n\r\n');
      expect(body).to.equal(reply.text);
      expect(head).to.match(new RegExp(`^HTTP/1\\.1 ${status} [A-Z]`));
      expect(head).to.include(`Content-Type: text/x-refusal\r\nContent-Length: ${Buffer.byteLength(reply.text)}\r\n`);
      expect(/^Retry-After: 1$/m.test(head)).to.equal(statuses[code] === 503);
    });
  }

  it('is a problem document by default', () => {
    const error = new SessionRoutingError('SESSION_GONE', 'Gone.');
    expect(problemDocument(error)).to.deep.equal({
      status: 410,
      contentType: 'application/problem+json',
      body: JSON.stringify(error.toJSON()),
    });
    expect(refusalBytes(error)).to.equal(refusalBytes(error, problemDocument));
  });
});

describe('refusalHandler', () => {
  /** The reply of an app whose handler throws, or does something else, and what its own error handler gets. */
  async function replyTo(handler: express.RequestHandler): Promise<{ reply: RawReply; passedOn: unknown[] }> {
    const passedOn: unknown[] = [];
    const app = express().set('env', 'test');
    app.use(handler);
    app.use(refusalHandler);
    const answerError: express.ErrorRequestHandler = (error, _request, response, next) => {
      passedOn.push(error);
      if (response.headersSent) next(error);
      else response.status(500).end();
    };
    app.use(answerError);
    return { reply: await replyOf(app), passedOn };
  }

  const closed = new SessionRoutingError('AGENT_SESSION_CLOSED', 'Agent session is already closed');

  it('answers a refusal with its problem document', async () => {
    const { reply, passedOn } = await replyTo(() => {
      throw closed;
    });
    expect([reply.status, reply.json]).to.deep.equal([409, closed.toJSON()]);
    expect(field(reply, 'content-type')).to.equal('application/problem+json');
    expect(passedOn).to.deep.equal([]);
  });

  it('answers one that comes by next(), too', async () => {
    expect((await replyTo((_request, _response, next) => next(closed))).reply.json).to.deep.equal(closed.toJSON());
  });

  // Express 4 does not await handlers.
  (express === express4 ? it.skip : it)('answers one that comes by a promise, too, on Express 5', async () => {
    expect((await replyTo(() => Promise.reject(closed))).reply.json).to.deep.equal(closed.toJSON());
  });

  it('passes on every other error, though it look like a refusal', async () => {
    for (const error of [new Error('no'), closed.toJSON(), Object.assign(new Error('no'), { code: closed.code })]) {
      const { reply, passedOn } = await replyTo(() => {
        throw error;
      });
      expect(reply.status).to.equal(500);
      expect(passedOn).to.have.length(1);
      expect(passedOn[0]).to.equal(error);
    }
  });

  it('passes on a refusal that comes after the reply has begun', async () => {
    const passedOn: unknown[] = [];
    const server = await listening(
      createServer((request, response) => {
        response.write('begun');
        refusalHandler(closed, request, response, (error) => {
          passedOn.push(error);
          response.end();
        });
      }),
    );
    const reply = await send({ to: portOf(server) });
    server.close();
    expect([reply.status, reply.text, passedOn]).to.deep.equal([200, 'begun', [closed]]);
  });
});

describe('refusalBytes()', () => {
  for (const code of codes) {
    it(`are the same refusal as refuse() makes of ${code}, for a bare connection`, async () => {
      const error = new SessionRoutingError(code, 'Señor');
      const server = await listening(createServer());
      server.on('upgrade', (_request, socket) => socket.end(refusalBytes(error)));
      const client = connect(portOf(server), '127.0.0.1');
      client.write('GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: spec\r\n\r\n');
      let received = '';
      for await (const chunk of client) received += String(chunk);
      server.close();

      const direct = await replyOf((_request, response) => refuse(response, error));
      const [head = '', body = ''] = received.split('\r\n\r\n');
      const [statusLine, ...lines] = head.split('\r\n');
      expect(statusLine).to.match(new RegExp(`^HTTP/1\\.1 ${statuses[code]} [A-Z]`));
      expect(body).to.equal(direct.text);
      const fields = new Map(lines.map((line) => line.toLowerCase().split(': ') as [string, string]));
      expect(fields.get('connection')).to.equal('close');
      for (const name of ['content-type', 'content-length', 'cache-control', 'retry-after']) {
        expect([name, fields.get(name)]).to.deep.equal([name, field(direct, name)]);
      }
    });
  }
});
