import { expect } from 'chai';
import { CookieJar } from '../lib/cookie-jar.ts';

const now = Date.parse('2026-06-01T00:00:00Z');

/** The cookies of a jar that has merged replies in turn. */
function merged(...replies: readonly string[][]): Record<string, string> {
  const jar = new CookieJar();
  for (const setCookies of replies) jar.merge(setCookies, now);
  return jar.toRecord();
}

describe('CookieJar', () => {
  it('has no header while it is empty', () => {
    expect(new CookieJar()).to.include({ header: undefined, size: 0 });
  });

  it('sends every cookie, in the order in which they first came', () => {
    const jar = new CookieJar();
    jar.merge(['a=1; Path=/', 'b=2']);
    jar.merge(['c=3', 'a=4; HttpOnly']);
    expect(jar).to.include({ header: 'a=4; b=2; c=3', size: 3 });
  });

  it('gives values back byte for byte', () => {
    for (const value of ['', '"quoted="', 's%3Aid.sig%2F', 'a=b==', 'a b', "it's", 'voil\u00c3\u00a0', '\\x', ',']) {
      const jar = new CookieJar();
      jar.merge([`sid=${value}; Path=/`]);
      expect([jar.header, jar.toRecord()]).to.deep.equal([`sid=${value}`, { sid: value }]);
    }
  });

  it('trims the space around names and values, which is no part of them', () => {
    expect(merged([' a =\t1 ; Path=/', 'b= 2 3 '])).to.deep.equal({ a: '1', b: '2 3' });
  });

  it('takes the last of those with one name, whose case counts', () => {
    expect(merged(['a=1', 'A=2', 'a=3'])).to.deep.equal({ a: '3', A: '2' });
  });

  it('keeps what a reply does not mention', () => {
    expect(merged(['a=1', 'b=2'], [], ['b=3'])).to.deep.equal({ a: '1', b: '3' });
  });

  for (const expired of [
    'a=; Max-Age=0',
    'a=x; max-age=-1; Path=/',
    'a=; Expires=Thu, 01 Jan 1970 00:00:00 GMT',
    'a=; path=/; EXPIRES=Thu, 01-Jan-1970 00:00:00 GMT; HttpOnly',
    'a=; Expires=Mon, 01 Jun 2026 00:00:00 GMT',
    'a=; Expires=Tue, 02 Jun 2026 00:00:00 GMT; Max-Age=0',
    'a=; Max-Age=60; Max-Age=0',
  ]) {
    it(`removes a cookie by ${expired}`, () => {
      expect(merged(['a=1', 'b=2'], [expired])).to.deep.equal({ b: '2' });
      expect(merged([expired])).to.deep.equal({});
      expect(merged([expired, 'a=3'])).to.deep.equal({ a: '3' });
    });
  }

  for (const kept of [
    'a=2; Max-Age=60',
    'a=2; Max-Age=soon',
    'a=2; Expires=Tue, 02 Jun 2026 00:00:00 GMT',
    'a=2; Expires=never',
    'a=2; Expires=0',
    'a=2; Expires=-1',
    'a=2; Expires=foo 1',
    'a=2; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=60',
    'a=2; Expires=',
  ]) {
    it(`keeps a cookie by ${kept}`, () => {
      expect(merged(['a=1'], [kept])).to.deep.equal({ a: '2' });
    });
  }

  it('takes no notice of what names no cookie', () => {
    expect(merged(['', '=1', 'a', ' =2', '; Path=/', ';a=1'])).to.deep.equal({});
  });

  it('takes names for what they are, such as __proto__ and constructor', () => {
    const record = merged(['__proto__=1', 'constructor=2']);
    expect(Object.entries(record)).to.deep.equal([
      ['__proto__', '1'],
      ['constructor', '2'],
    ]);
  });

  it('is replaced as a whole by a record, such as another jar gives', () => {
    const [jar, other] = [new CookieJar(), new CookieJar()];
    jar.merge(['a=1', 'b="2"']);
    other.merge(['c=3']);
    other.replace(jar.toRecord());
    expect(other.header).to.equal('a=1; b="2"');
    other.clear();
    expect(other.header).to.equal(undefined);
  });

  for (const [name, value] of [
    ['', '1'],
    ['a=b', '1'],
    ['a;b', '1'],
    ['a\r\nX-Other: 1', '1'],
    ['a', '1; b=2'],
    ['a', '1\r\nX-Other: 1'],
    ['a', '\0'],
    ['a', '\u20ac'],
  ] as const) {
    it(`refuses ${JSON.stringify({ [name]: value })}, and is unchanged`, () => {
      const jar = new CookieJar();
      jar.merge(['a=1']);
      expect(() => jar.replace({ good: '2', [name]: value })).to.throw(TypeError, /cookie/);
      expect(jar.header).to.equal('a=1');
    });
  }
});
