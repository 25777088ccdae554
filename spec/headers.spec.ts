import { expect } from 'chai';
import {
  heldFields,
  originField,
  pairsOf,
  replyFields,
  requestFields,
  restoreFields,
  stripOwnFields,
  type RequestFields,
} from '../lib/headers.ts';

/** A request with these raw fields, as Node parses it. */
function requestOf(rawHeaders: string[]): RequestFields {
  const headers: RequestFields['headers'] = {};
  const headersDistinct: RequestFields['headersDistinct'] = Object.create(null);
  for (const [name, value] of pairsOf(rawHeaders)) {
    const key = name.toLowerCase();
    headers[key] = key in headers ? `${headers[key]}, ${value}` : value;
    (headersDistinct[key] ??= []).push(value);
  }
  return { rawHeaders, headers, headersDistinct };
}

const fields = ['Host', 'x', 'connection', 'close', 'X-A', '1', 'Connection', 'x-foo', 'x-a', '2', 'Trailer', 'X-T'];

describe('the fields of a request', () => {
  for (const [kind, held] of Object.entries({ heldFields, none: new Set<string>() })) {
    it(`come out of a hop as they went in (${kind})`, () => {
      const sent = requestOf(fields);
      const received = requestOf([...requestFields(fields, held), originField, 'origin', 'Content-Length', '0']);
      expect(restoreFields(received)).to.equal('origin');
      expect(received).to.deep.equal(sent);
      expect(Object.keys(received.headers)).to.deep.equal(Object.keys(sent.headers));
    });
  }

  it('cross the hop under their own names, except those on which Node would act', () => {
    const names = pairsOf(requestFields(fields, heldFields)).map(([name]) => name);
    const held = ['x-session-routing-connection', 'x-session-routing-Connection', 'x-session-routing-Trailer'];
    expect(names).to.deep.equal(['Host', held[0], 'X-A', held[1], 'x-a', held[2]]);
  });

  it('lose those that only a hop may set, in whatever case a client spells them', () => {
    const forged = [
      'X-A',
      '1',
      'X-Session-Routing-Origin',
      'x',
      'x-session-routing-Connection',
      'y',
      'X-B',
      originField,
    ];
    expect(requestFields(forged, heldFields)).to.deep.equal(['X-A', '1', 'X-B', originField]);
    const request = requestOf(forged);
    stripOwnFields(request);
    expect(request).to.deep.equal(requestOf(['X-A', '1', 'X-B', originField]));
  });

  it('are left as they are where there is nothing to strip or restore', () => {
    const request = requestOf(['X-A', originField]);
    const { rawHeaders, headers } = request;
    stripOwnFields(request);
    expect(restoreFields(request)).to.equal(undefined);
    expect(request.rawHeaders).to.equal(rawHeaders);
    expect(request.headers).to.equal(headers);
  });
});

describe('the fields of a reply', () => {
  it('go to the client with their case, order and repeats', () => {
    const raw = ['Set-Cookie', 'a=1', 'X-A', '1', 'set-cookie', 'b=2', 'Transfer-Encoding', 'gzip, chunked', 'x-a', ''];
    expect(replyFields(raw)).to.deep.equal(raw);
  });

  it('lose what Node says about the connection of the hop, and keep what the app says about its own', () => {
    const raw = ['A', '1', 'Connection', 'keep-alive', 'Keep-Alive', 'timeout=30', 'connection', 'close'];
    expect(replyFields(raw)).to.deep.equal(['A', '1', 'connection', 'close']);
    expect(replyFields(['Connection', 'Upgrade'])).to.deep.equal(['Connection', 'Upgrade']);
  });

  it('have a Content-Disposition that is not ASCII ahead of the length', () => {
    const raw = ['Content-Length', '2', 'Content-Disposition', 'attachment; filename="\xe9"', 'X-A', '1'];
    expect(replyFields(raw)).to.deep.equal([...raw.slice(2, 4), ...raw.slice(0, 2), ...raw.slice(4)]);
    const plain = ['Content-Length', '2', 'Content-Disposition', 'attachment'];
    expect(replyFields(plain)).to.deep.equal(plain);
  });
});
