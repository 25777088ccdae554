import { sign } from 'cookie-signature';
import { createHmac, hkdfSync } from 'node:crypto';
import { expect } from 'chai';
import { signCookie, signedCookieReader } from '../lib/session-id.ts';
import { SessionTokens } from '../lib/session-token.ts';

const tokens = new SessionTokens(['a secret']);
const key = Buffer.from(hkdfSync('sha256', 'a secret', '', 'nemo-gym-mcp-session-token', 32)).toString('base64');

/** A token of any payload, signed as it has to be. */
function signed(payload: string | Buffer): string {
  return sign(Buffer.from(payload).toString('base64url'), key);
}

describe('SessionTokens', () => {
  for (const [sid, tools] of [
    ['s', null],
    ['s', []],
    ['s', ['read', 'wr.ite']],
    ['ü – 🂡', ['Ω']],
    ['a.b.c', null],
    ['"quoted"\n', null],
    [' ', null],
    ['x'.repeat(4096), null],
    ['__proto__', ['constructor']],
  ] as const) {
    it(`read what they have minted: ${JSON.stringify(sid).slice(0, 30)} and ${JSON.stringify(tools)}`, () => {
      expect(tokens.read(tokens.mint(sid, tools))).to.deep.equal({ sid, tools });
    });
  }

  it('are for all tools unless some are said', () => {
    expect(tokens.read(tokens.mint('s'))).to.deep.equal({ sid: 's', tools: null });
  });

  it('are fit for a header field', () => {
    expect(tokens.mint('ü\r\n', ['🂡'])).to.match(/^[\w-]+\.[A-Za-z0-9+/]+$/);
  });

  it('are the JSON in base64url and its HMAC by a key that HKDF derives from the secret', () => {
    const token = tokens.mint('s', ['t']);
    const [payload = '', signature] = token.split('.');
    expect(JSON.parse(Buffer.from(payload, 'base64url').toString())).to.deep.equal({ sid: 's', tools: ['t'] });
    const expected = createHmac('sha256', key).update(payload).digest('base64').replace(/=+$/, '');
    expect(signature).to.equal(expected);
  });

  it('ignore further members, and take a missing list of tools for all of them', () => {
    expect(tokens.read(signed('{"sid":"s","tools":["t"],"exp":1,"__proto__":{"sid":"x"}}'))).to.deep.equal({
      sid: 's',
      tools: ['t'],
    });
    expect(tokens.read(signed('{"sid":"s"}'))).to.deep.equal({ sid: 's', tools: null });
  });

  const good = tokens.mint('s', ['t']);
  const [payload = '', signature = ''] = good.split('.');
  const other = tokens.mint('other');
  const refused: Record<string, string> = {
    'an empty one': '',
    'a dot': '.',
    'one without a signature': payload,
    'one with an empty signature': `${payload}.`,
    'a signature alone': `.${signature}`,
    'one that is cut': good.slice(0, -1),
    'one that is longer': `${good}A`,
    'one with padding': `${good}=`,
    'one with a blank': `${good} `,
    'one that is quoted': `"${good}"`,
    'two of them, as repeated fields are joined': `${good}, ${good}`,
    'the payload of another': `${other.split('.')[0]}.${signature}`,
    'a payload with padding': `${payload}=.${signature}`,
    'the signature of another': `${payload}.${other.split('.')[1]}`,
    'one of another secret': new SessionTokens(['another']).mint('s'),
    'one that is signed with the secret itself': sign(payload, 'a secret'),
    'one that is signed with nothing': sign(payload, ''),
    'one marked as a cookie': `s:${good}`,
  };
  for (const [what, token] of Object.entries(refused)) {
    it(`do not read ${what}, beside a good one`, () => {
      expect(tokens.read(token)).to.equal(undefined);
      expect(tokens.read(good)?.sid).to.equal('s');
    });
  }

  const malformed: Record<string, string | Buffer> = {
    'that is no JSON': 'sid',
    'that is empty': '',
    'that is a string': '"s"',
    'that is null': 'null',
    'that is a list': '["s"]',
    'without a sid': '{"tools":null}',
    'whose sid is empty': '{"sid":""}',
    'whose sid is a number': '{"sid":7}',
    'whose sid is inherited': '{"__proto__":{"sid":"s"}}',
    'whose tools are a string': '{"sid":"s","tools":"t"}',
    'whose tools are an object': '{"sid":"s","tools":{"0":"t"}}',
    'whose tools are false': '{"sid":"s","tools":false}',
    'with a tool that is a number': '{"sid":"s","tools":["t",7]}',
    'that is cut': '{"sid":"s"',
    'of a wrong encoding': Buffer.from('{"sid":"s"}', 'utf16le'),
  };
  for (const [which, text] of Object.entries(malformed)) {
    it(`do not read a payload ${which}, though it is signed`, () => {
      expect(tokens.read(signed(text))).to.equal(undefined);
      expect(tokens.read(signed('{"sid":"s"}'))?.sid).to.equal('s');
    });
  }

  it('are signed by the newest secret, and read with any', () => {
    const [older, newer] = [new SessionTokens(['older']), new SessionTokens(['newest', 'older'])];
    expect(newer.read(older.mint('s'))?.sid).to.equal('s');
    expect(newer.read(newer.mint('s'))?.sid).to.equal('s');
    expect(new SessionTokens(['newest']).read(newer.mint('s'))?.sid).to.equal('s');
    expect(older.read(newer.mint('s'))).to.equal(undefined);
    expect(new SessionTokens(['newest']).read(older.mint('s'))).to.equal(undefined);
  });

  describe('beside session cookies, whose IDs a caller may choose', () => {
    const readCookie = signedCookieReader('sid', ['a secret']);
    const cookieValue = (sessionId: string): string => signCookie(sessionId, 'a secret');

    it('are not what the cookie of an ID that looks like a payload is', () => {
      const chosen = Buffer.from('{"sid":"victim","tools":null}').toString('base64url');
      const value = cookieValue(chosen);
      for (const forged of [value, value.slice(2), encodeURIComponent(value), value.replace(/^s:/, '')]) {
        expect(tokens.read(forged)).to.equal(undefined);
      }
      expect(readCookie(`sid=${encodeURIComponent(value)}`)).to.equal(chosen);
    });

    it('are no cookie, marked as one or not', () => {
      const token = tokens.mint('victim');
      for (const value of [token, `s:${token}`]) {
        expect(readCookie(`sid=${encodeURIComponent(value)}`)).to.equal(undefined);
      }
    });
  });
});
