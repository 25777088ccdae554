import { expect } from 'chai';
import { jsonPointer } from '../lib/json-pointer.ts';

describe('jsonPointer()', () => {
  /** The document of RFC 6901, section 5, and what it says its pointers mean. */
  const example = {
    foo: ['bar', 'baz'],
    '': 0,
    'a/b': 1,
    'c%d': 2,
    'e^f': 3,
    'g|h': 4,
    'i\\j': 5,
    'k"l': 6,
    ' ': 7,
    'm~n': 8,
  };
  const values: Record<string, unknown> = {
    '': example,
    '/foo': ['bar', 'baz'],
    '/foo/0': 'bar',
    '/': 0,
    '/a~1b': 1,
    '/c%d': 2,
    '/e^f': 3,
    '/g|h': 4,
    '/i\\j': 5,
    '/k"l': 6,
    '/ ': 7,
    '/m~0n': 8,
  };
  for (const [pointer, value] of Object.entries(values)) {
    it(`finds ${JSON.stringify(pointer)} in the document of RFC 6901`, () => {
      expect(jsonPointer(pointer)(example)).to.deep.equal(value);
    });
  }

  it('unescapes ~01 to ~1, and not to a slash', () => {
    expect(jsonPointer('/~01')({ '~1': 'a', '/': 'b' })).to.equal('a');
  });

  it('takes names of an object for no indexes, and an empty name for a name', () => {
    expect(jsonPointer('/0')({ 0: 'a' })).to.equal('a');
    expect(jsonPointer('/a//b')({ a: { '': { b: 1 } } })).to.equal(1);
    expect(jsonPointer('/a/')({ a: 1 })).to.equal(undefined);
  });

  const nothing: [pointer: string, json: string][] = [
    ['/a', '{}'],
    ['/a', 'null'],
    ['/a', '7'],
    ['/a', '[]'],
    ['/0', '"text"'],
    ['/length', '"text"'],
    ['/a/length', '{"a":"text"}'],
    ['/a/0', '{"a":"text"}'],
    ['/a/b', '{"a":null}'],
    ['/a/b', '{"a":true}'],
    ['/length', '[1,2]'],
    ['/2', '[1,2]'],
    ['/-', '[1,2]'],
    ['/-1', '[1,2]'],
    ['/01', '[1,2]'],
    ['/1.0', '[1,2]'],
    ['/1e0', '[1,2]'],
    ['/0x1', '[1,2]'],
    ['/ 1', '[1,2]'],
    ['/A', '{"a":1}'],
    ['/__proto__', '{}'],
    ['/__proto__', '[]'],
    ['/constructor', '{}'],
    ['/constructor/name', '{"a":1}'],
    ['/toString', '{}'],
    ['/__proto__/constructor', '{"a":1}'],
    ['/a/__proto__', '{"a":{}}'],
    ['/push', '[]'],
  ];
  for (const [pointer, json] of nothing) {
    it(`finds nothing at ${JSON.stringify(pointer)} in ${json}`, () => {
      expect(jsonPointer(pointer)(JSON.parse(json))).to.equal(undefined);
    });
  }

  it('finds nothing where there is no document', () => {
    for (const pointer of ['', '/a', '/length']) expect(jsonPointer(pointer)(undefined)).to.equal(undefined);
  });

  it('finds members of any name that the document itself has', () => {
    for (const name of ['__proto__', 'constructor', 'length', 'toString', 'hasOwnProperty']) {
      expect(jsonPointer(`/${name}`)(JSON.parse(`{"${name}":"own"}`))).to.equal('own');
      expect(jsonPointer(`/a/${name}/b`)(JSON.parse(`{"a":{"${name}":{"b":1}}}`))).to.equal(1);
    }
  });

  it('tells null from nothing', () => {
    expect(jsonPointer('/a')({ a: null })).to.equal(null);
  });

  for (const pointer of ['a', 'a/b', ' /a', '#/a', '/a~', '/~2', '/a~/b', '/~~0', '$.a', 7, null, undefined, ['/a']]) {
    it(`refuses ${JSON.stringify(pointer)}, and quotes it`, () => {
      expect(() => jsonPointer(pointer as string)).to.throw(TypeError, `unlike ${JSON.stringify(pointer)}`);
    });
  }
});
