import { expect } from 'chai';
import { crossingFields, restoreFields, stripOwnFields, trailerLines, type RequestFields } from '../lib/headers.ts';

/** A request with these raw fields, as Node parses it. */
function requestOf(rawHeaders: string[]): RequestFields {
  const headers: RequestFields['headers'] = {};
  const headersDistinct: RequestFields['headersDistinct'] = Object.create(null);
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const [name, value] = [rawHeaders[index]!, rawHeaders[index + 1]!];
    const key = name.toLowerCase();
    headers[key] = key in headers ? `${headers[key]}, ${value}` : value;
    (headersDistinct[key] ??= []).push(value);
  }
  return { rawHeaders, headers, headersDistinct };
}

/** The names and values of a header block. */
function rawOf(lines: string | undefined): string[] {
  return (lines ?? '')
    .split('\r\n')
    .slice(0, -1)
    .flatMap((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(': ') + 2)]);
}

const fields = ['Host', 'x', 'connection', 'close', 'X-A', '1', 'Connection', 'x-foo', 'x-a', '2', 'Expect', 'tea'];

describe('the fields of a request', () => {
  for (const [what, raw] of Object.entries({
    'as they went in': fields,
    'where one is held one time and not another': ['Connection', 'keep-alive', 'Host', 'x', 'connection', 'X-A'],
    'where none is held': ['Host', 'x', 'Connection', 'Keep-Alive', 'Trailer', 'X-T', 'X-Empty', ''],
  })) {
    it(`come out of a hop ${what}`, () => {
      const sent = requestOf(raw);
      const { lines, areHeld } = crossingFields(raw, true);
      const received = requestOf(rawOf(lines));
      if (areHeld) restoreFields(received);
      expect(received.rawHeaders).to.deep.equal(sent.rawHeaders);
      expect(received.headers).to.deep.equal(sent.headers);
      expect(Object.keys(received.headers)).to.deep.equal(Object.keys(sent.headers));
    });
  }

  it('cross the hop under their own names, except those on which Node would act', () => {
    const { lines, areHeld } = crossingFields(fields, true);
    const held = ['connection', 'Connection', 'Expect'].map((name) => `x-session-routing-${name}`);
    expect(rawOf(lines).filter((_, index) => index % 2 === 0)).to.deep.equal([
      'Host',
      held[0],
      'X-A',
      held[1],
      'x-a',
      held[2],
    ]);
    expect(areHeld).to.equal(true);
    expect(rawOf(crossingFields(fields, false).lines)).to.deep.equal(fields);
  });

  it('lose those that only a hop may set, in whatever case a client spells them', () => {
    const forged = ['X-A', '1', 'X-Session-Routing-Origin', 'x', 'x-session-routing-Connection', 'y', 'X-B', '2'];
    expect(rawOf(crossingFields(forged, true).lines)).to.deep.equal(['X-A', '1', 'X-B', '2']);
    const request = requestOf(forged);
    stripOwnFields(request);
    expect(request).to.deep.equal(requestOf(['X-A', '1', 'X-B', '2']));
  });

  it('are left as they are where there is nothing to strip', () => {
    const request = requestOf(['X-A', 'x-session-routing-origin']);
    const { rawHeaders, headers } = request;
    stripOwnFields(request);
    expect(request.rawHeaders).to.equal(rawHeaders);
    expect(request.headers).to.equal(headers);
  });

  it('do not cross where one would end its line, as a lenient parser may let in', () => {
    for (const value of ['a\r\nX-B: 1', 'a\nb', 'a\rb', '\0']) {
      expect(crossingFields(['X-A', value], true).lines).to.equal(undefined);
      expect(trailerLines(['X-A', value])).to.equal(undefined);
    }
    expect(trailerLines(['X-A', '1', 'x-a', ''])).to.equal('X-A: 1\r\nx-a: \r\n');
  });
});
