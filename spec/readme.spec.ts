import { expect } from 'chai';
import { readFileSync } from 'node:fs';
import { SessionRoutingError, type RefusalCode } from '../lib/errors.ts';

const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), 'utf8');
const readme = read('README.md');
const { scripts, dependencies } = JSON.parse(read('package.json')) as Record<string, Record<string, string>>;

const codes: readonly RefusalCode[] = [
  'SESSION_ID_INVALID',
  'SESSION_MISMATCH',
  'SESSION_CLAIMED_ELSEWHERE',
  'AGENT_SESSION_MARKER_INVALID',
  'AGENT_SESSION_CLOSED',
  'AGENT_SESSION_CLOSING',
  'AGENT_SESSION_EXPIRED',
  'AGENT_SESSION_CONFLICT',
  'AGENT_SESSION_NOT_OPEN',
  'SESSION_GONE',
  'BODY_TOO_LARGE',
  'BODY_ALREADY_READ',
  'SESSION_SOURCE_FAILED',
  'SESSION_COOKIE_DISPUTED',
  'CLAIMANT_UNREACHABLE',
  'CLAIMANT_BUSY',
  'CLAIM_UNREADABLE',
];

describe('README', () => {
  for (const file of [
    'examples/quick-start/app.ts',
    'examples/quick-start/server.ts',
    'spec/fixtures/client-example.ts',
  ]) {
    it(`shows the very text of ${file}`, () => {
      expect(readme).to.include(`\`\`\`ts\n${read(file)}\`\`\``);
    });
  }

  for (const code of codes) {
    it(`has a heading for ${code}, with its status`, () => {
      const { status } = new SessionRoutingError(code, '');
      expect(readme).to.match(new RegExp(`^### ${code}\n\nStatus ${status}\\. `, 'm'));
    });
  }

  it('names no script that package.json lacks', () => {
    const named = [...readme.matchAll(/npm run ([a-z:-]+)/g)].map(([, script]) => script ?? '');
    expect(named.length).to.be.greaterThan(0);
    expect(Object.keys(scripts ?? {})).to.include.members(named);
  });

  it('gives a reason for each dependency', () => {
    for (const name of Object.keys(dependencies ?? {}))
      expect(readme).to.match(new RegExp(`^\\| \`${name}\` +\\| `, 'm'));
  });
});
