import { expect } from 'chai';
import { readdirSync, readFileSync } from 'node:fs';

const library = new URL('../lib/', import.meta.url);

/** The mechanisms, which know nothing of one another. */
const mechanisms = ['claims', 'forward', 'lifetimes', 'bodies', 'session-id'];

interface Import {
  readonly from: string;
  readonly to: string;
  readonly isTypeOnly: boolean;
}

/**
 * Source text with what stands in comments, strings, templates and regular expressions blanked out, so that the rest can
 * be searched by simple patterns. Line ends stay.
 */
function codeOf(source: string): string {
  const skipped =
    /\/\*[^]*?\*\/|\/\/.*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[^]|[^`\\])*`|(?<=[(,=:[!&|?{};]\s*)\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\//g;
  return source.replace(skipped, (text) => text.replace(/[^\n]/g, ' '));
}

/** The statements at the top level of a module, each cut off where its first block, list or call begins. */
function topLevelOf(code: string): string {
  let depth = 0;
  return [...code]
    .map((character) => {
      if ('([{'.includes(character)) return depth++ === 0 ? character : ' ';
      if (')]}'.includes(character)) return --depth === 0 ? character : ' ';
      return depth === 0 || character === '\n' ? character : ' ';
    })
    .join('');
}

/** The imports, and re-exports, of a module from others of the library, by name without extension. */
function importsOf(from: string, source: string): Import[] {
  const pattern = /^(import|export)\s+(type\s+)?([^;'"]*?)\s*from\s+'\.\/([\w-]+)\.ts'/gm;
  return [...source.matchAll(pattern)].map(([, , type, names = '', to = '']) => {
    const list = /^\{([^]*)\}$/
      .exec(names)?.[1]
      ?.split(',')
      .map((name) => name.trim());
    const named = list?.filter((name) => name !== '');
    const isTypeOnly = type !== undefined || (named?.every((name) => name.startsWith('type ')) ?? false);
    return { from, to, isTypeOnly };
  });
}

/** All that a module imports, by whatever way. */
function reachOf(name: string, imports: readonly Import[]): Set<string> {
  const reach = new Set<string>();
  const visit = (from: string): void => {
    for (const each of imports) {
      if (each.from !== from || reach.has(each.to)) continue;
      reach.add(each.to);
      visit(each.to);
    }
  };
  visit(name);
  return reach;
}

/** The groups of modules that import one another in circles. */
function circlesIn(imports: readonly Import[]): string[] {
  const reaches = new Map(imports.map(({ from }) => [from, reachOf(from, imports)]));
  const inCircles = [...reaches.keys()].filter((name) => reaches.get(name)?.has(name));
  const groups = inCircles.map((name) =>
    inCircles.filter((other) => reaches.get(name)?.has(other) && reaches.get(other)?.has(name)),
  );
  return [...new Set(groups.map((group) => group.toSorted().join(' <-> ')))];
}

/** What a module may change after it was loaded: a variable, or a collection that something is written to. */
function mutableStateOf(source: string): string[] {
  const code = codeOf(source);
  const topLevel = topLevelOf(code);
  const variables = [...topLevel.matchAll(/^(?:export\s+)?(?:let|var)\s+\w+/gm)].map(([found]) => found);
  const statics = [...code.matchAll(/\bstatic\s+(?!readonly\b)#?\w+\s*[=:;].*/g)].map(([found]) => found);
  const values = [...topLevel.matchAll(/^(?:export\s+)?const\s+(\w+)/gm)].map(([, name = '']) => name);
  const written = values.filter((name) => {
    const writes = 'set|add|delete|clear|push|pop|shift|unshift|splice|sort|reverse|fill|copyWithin';
    const call = new RegExp(`(?<![.#\\w])${name}\\s*(?:\\?\\.|!?\\.)\\s*(?:${writes})\\s*\\(`);
    const assignment = new RegExp(
      `(?<![.#\\w])${name}\\s*(?:\\.\\w+|\\[[^\\]]*\\])+\\s*(?:[-+*/%&|^?]{0,2}=(?![=>])|\\+\\+|--)`,
    );
    const assigned = new RegExp(`\\bObject\\.(?:assign|define\\w+)\\(\\s*${name}\\b`);
    return call.test(code) || assignment.test(code) || assigned.test(code);
  });
  return [...variables, ...statics, ...written.map((name) => `const ${name}`)];
}

describe('the layout of lib', () => {
  const sources = new Map(
    readdirSync(library)
      .filter((file) => file.endsWith('.ts'))
      .map((file) => [file.slice(0, -'.ts'.length), readFileSync(new URL(file, library), 'utf8')]),
  );
  const names = [...sources.keys()];
  const imports = [...sources].flatMap(([name, source]) => importsOf(name, source));

  it('has the files that these rules are about', () => {
    expect(names).to.include.members([...mechanisms, 'index', 'session-routing', 'workers', 'errors']);
    expect(imports.length).to.be.above(names.length);
    expect(imports.filter(({ to }) => !sources.has(to))).to.deep.equal([]);
  });

  it('has every import of its own files in the one form that is read here', () => {
    for (const [name, source] of sources) {
      const mentions = [...codeLines(source)].filter((line) => /\bfrom\s+'\.|\bimport\(|\brequire\(/.test(line));
      expect([name, mentions.length]).to.deep.equal([name, importsOf(name, source).length]);
    }
  });

  it('has no circle of imports', () => {
    expect(circlesIn(imports.filter(({ isTypeOnly }) => !isTypeOnly))).to.deep.equal([]);
  });

  it('has no circle of imports through types either', () => {
    expect(circlesIn(imports)).to.deep.equal([]);
  });

  for (const mechanism of mechanisms) {
    it(`keeps ${mechanism} from knowing of the other mechanisms, directly or through others`, () => {
      const reach = reachOf(mechanism, imports);
      expect([...reach].filter((name) => mechanisms.includes(name))).to.deep.equal([]);
    });
  }

  it('has one file that puts all the mechanisms together', () => {
    const values = imports.filter(({ isTypeOnly }) => !isTypeOnly);
    const knowing = names.filter((name) => mechanisms.every((mechanism) => reachOf(name, values).has(mechanism)));
    expect(knowing).to.deep.equal(['index', 'session-routing']);
  });

  it('lets nothing but the index import the composer', () => {
    expect(imports.filter(({ to }) => to === 'session-routing').map(({ from }) => from)).to.deep.equal(['index']);
  });

  for (const entry of ['index', 'client', 'mcp']) {
    it(`has re-exports in its entry ${entry}, and nothing else`, () => {
      const source = sources.get(entry) ?? '';
      const rest = source.replace(/^export\s+(type\s+)?\{[^}]*\}\s+from\s+'\.\/[\w-]+\.ts';$/gm, '');
      expect([source === '', rest.trim()]).to.deep.equal([false, '']);
    });
  }

  it('loads node-fetch for the client alone', () => {
    const fetching = names.filter((name) => /\bfrom 'node-fetch'/.test(sources.get(name) ?? ''));
    expect(fetching).to.deep.equal(['client-calls']);
    const reaching = names.filter((name) => reachOf(name, imports).has('client-calls'));
    expect(reaching).to.include('client');
    expect(reaching.filter((name) => !name.startsWith('client'))).to.deep.equal([]);
  });

  it('loads the MCP SDK for its own entry alone', () => {
    const using = names.filter((name) => /\bfrom '@modelcontextprotocol/.test(sources.get(name) ?? ''));
    expect(using).to.deep.equal(['mcp-endpoint']);
    const reaching = names.filter((name) => reachOf(name, imports).has('mcp-endpoint'));
    expect(reaching).to.deep.equal(['mcp']);
  });

  it('has no state at module level', () => {
    const states = [...sources].flatMap(([name, source]) => mutableStateOf(source).map((state) => `${name}: ${state}`));
    // What runWorkers() keeps on node:cluster itself, so that other copies of this package see it too.
    expect(states).to.deep.equal(['workers: const owner']);
  });
});

/** The lines of a module without its comments. */
function codeLines(source: string): string[] {
  return source.replace(/\/\*[^]*?\*\/|^\s*\/\/.*/gm, '').split('\n');
}

describe('the check for state at module level', () => {
  const stateful: Record<string, string> = {
    'a variable': 'let count = 0;',
    'an exported variable': 'export let count;',
    'a var': 'var count = 0;',
    'a map that is written to': 'const seen = new Map();\nfunction see(a) { seen.set(a, 1); }',
    'a set that is written to': 'export const seen: Set<string> = new Set();\nconst see = (a) => void seen.add(a);',
    'an array that is pushed to': 'const all: string[] = [];\nfunction see(a) {\n  all.push(a);\n}',
    'a member that is set': 'const state = { count: 0 };\nfunction see() { state.count++; }',
    'a member that is set by name': 'const state = {};\nfunction see(a) { state[a] = 1; }',
    'a weak map': 'const ids = new WeakMap<object, string>();\nexport function id(a) { ids?.set(a, ""); }',
    'a static field': 'class A {\n  static count = 0;\n}',
  };
  for (const [what, source] of Object.entries(stateful)) {
    it(`finds ${what}`, () => {
      expect(mutableStateOf(source)).to.have.length(1);
    });
  }

  const stateless: Record<string, string> = {
    'a table': 'const REFUSALS = { A: { status: 400 } } as const;\nREFUSALS.A.status === 400;',
    'a set that is only read': "const codes = new Set(['a']);\nconst has = (code) => codes.has(code);",
    'a variable of a function': 'function f() {\n  let count = 0;\n  const seen = new Set();\n  seen.add(count++);\n}',
    'a field of the same name': 'const seen = 1;\nclass A { #seen = new Set(); see() { this.#seen.add(seen); } }',
    'what stands in a comment': '// let count = 0;\n/*\nlet other = 1;\n*/',
    'what stands in a string': "const text = `\nlet a = 1;\n`;\nconst more = 'text.push(';",
    'a comparison': 'const limit = [3];\nconst over = (a) => limit[0] == a || limit[0] >= a;',
    'a read-only static field': 'class A {\n  static readonly limit = 3;\n}',
  };
  for (const [what, source] of Object.entries(stateless)) {
    it(`takes no notice of ${what}`, () => {
      expect(mutableStateOf(source)).to.deep.equal([]);
    });
  }
});
