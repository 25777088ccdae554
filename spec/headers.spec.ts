import { expect } from 'chai';
import {
  crossingFields,
  fieldLines,
  removeField,
  restoreFields,
  stripOwnFields,
  stripOwnTrailers,
  type RequestFields,
} from '../lib/headers.ts';

/** As many fields as a server tells its app of. */
const most = 100;

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
    'where the hop frames the body': [
      'Content-Length',
      '2',
      'Host',
      'x',
      'connection',
      'close',
      'transfer-encoding',
      '',
    ],
    'where none is held': ['Host', 'x', 'Connection', 'Keep-Alive', 'Trailer', 'X-T', 'X-Empty', ''],
  })) {
    it(`come out of a hop ${what}`, () => {
      const sent = requestOf(raw);
      const { lines, areHeld, isFramed } = crossingFields(raw, most);
      const received = requestOf(rawOf(lines));
      if (areHeld) restoreFields(received, isFramed);
      expect(received.rawHeaders).to.deep.equal(sent.rawHeaders);
      expect(received.headers).to.deep.equal(sent.headers);
      if (isFramed) expect(received.headersDistinct).to.deep.equal(sent.headersDistinct);
      expect(Object.keys(received.headers)).to.deep.equal(Object.keys(sent.headers));
    });
  }

  it('cross the hop under their own names, except those on which Node would act', () => {
    const { lines, areHeld } = crossingFields(fields, most);
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
    expect(rawOf(fieldLines(fields))).to.deep.equal(fields);
  });

  it('lose those that only a hop may set, in whatever case a client spells them', () => {
    const forged = ['X-A', '1', 'X-Session-Routing-Origin', 'x', 'x-session-routing-Connection', 'y', 'X-B', '2'];
    expect(rawOf(crossingFields(forged, most).lines)).to.deep.equal(['X-A', '1', 'X-B', '2']);
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

  it('lose one as if it had not been sent, in whatever case and however often it was', () => {
    const sent = requestOf(['X-A', '1', 'X-Game-ID', 'g', 'x-b', 'x-game-id', 'x-GAME-id', 'h', 'X-A', '2']);
    const { rawHeaders, headers } = sent;
    const before = [[...rawHeaders], { ...headers }];
    removeField(sent, 'x-game-id');
    expect(sent).to.deep.equal(requestOf(['X-A', '1', 'x-b', 'x-game-id', 'X-A', '2']));
    expect([rawHeaders, headers]).to.deep.equal(before);
    removeField(sent, 'x-game');
    expect(sent).to.deep.equal(requestOf(['X-A', '1', 'x-b', 'x-game-id', 'X-A', '2']));
  });

  it('lose one so that it crosses no hop either', () => {
    const request = requestOf(['Host', 'x', 'X-Game-ID', 'g', 'Content-Length', '2']);
    removeField(request, 'x-game-id');
    expect(rawOf(crossingFields(request.rawHeaders, most).lines)).to.deep.equal(['Host', 'x', 'Content-Length', '2']);
  });

  it('do not cross where one would end its line, as a lenient parser may let in', () => {
    for (const value of ['a\r\nX-B: 1', 'a\nb', 'a\rb', '\0']) {
      expect(crossingFields(['X-A', value], most).lines).to.equal(undefined);
      expect(fieldLines(['X-A', value])).to.equal(undefined);
    }
    expect(fieldLines(['X-A', '1', 'x-a', ''])).to.equal('X-A: 1\r\nx-a: \r\n');
  });

  it('say how long the body is, where that can be understood in one way only', () => {
    for (const [raw, framing] of [
      [[], 0],
      [['Content-Length', '0'], 0],
      [['content-length', '12'], 12],
      [['Transfer-Encoding', 'Chunked'], 'chunked'],
      [['transfer-encoding', 'gzip , chunked'], 'chunked'],
    ] as const) {
      expect(crossingFields(raw, most)).to.include({ framing, isFramed: false, areHeld: false });
    }
  });

  it('cross a hop that frames the body itself, where they can be understood in several ways, or not', () => {
    for (const raw of [
      ['Transfer-Encoding', ''],
      ['Transfer-Encoding', 'chunked, gzip'],
      ['Transfer-Encoding', 'xchunked'],
      ['Transfer-Encoding', 'chunked', 'transfer-encoding', 'chunked'],
      ['Transfer-Encoding', 'chunked', 'Content-Length', '1'],
      ['Content-Length', '1', 'content-length', '1'],
      ['Content-Length', '+1'],
      ['Content-Length', '9'.repeat(20)],
      Array.from({ length: 2 * most }, () => 'x'),
    ]) {
      const { lines, ...rest } = crossingFields(raw, most);
      expect(rest).to.deep.equal({ framing: 'chunked', isFramed: true, areHeld: true });
      const names = rawOf(lines).filter((_, index) => index % 2 === 0);
      expect(names.filter((name) => /^(content-length|transfer-encoding)$/i.test(name))).to.deep.equal([
        'transfer-encoding',
      ]);
      expect(names.at(-1)).to.equal('transfer-encoding');
    }
  });
});

describe('the trailers of a request', () => {
  it('lose what only a hop may set', () => {
    const rawTrailers = ['X-T', '1', 'x-SESSION-routing-origin', 'x', 'x-t', '2'];
    const request = {
      rawTrailers,
      trailers: { 'x-t': '1, 2', 'x-session-routing-origin': 'x' },
      trailersDistinct: {},
    };
    stripOwnTrailers(request);
    expect(request).to.deep.equal({
      rawTrailers: ['X-T', '1', 'x-t', '2'],
      trailers: { 'x-t': '1, 2' },
      trailersDistinct: Object.assign(Object.create(null), { 'x-t': ['1', '2'] }),
    });
    expect(fieldLines(rawTrailers)).to.equal('X-T: 1\r\nx-t: 2\r\n');
  });
});
