import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { load } from 'js-yaml';
import { expressLines, nodeLines } from './nodes/matrix.ts';

interface Step {
  readonly name?: string;
  readonly uses?: string;
  readonly run?: string;
  readonly with?: Readonly<Record<string, unknown>>;
}

interface Job {
  readonly 'timeout-minutes'?: number;
  readonly permissions?: Readonly<Record<string, string>>;
  readonly needs?: string;
  readonly strategy?: { readonly matrix: Readonly<Record<string, readonly number[]>> };
  readonly steps: readonly Step[];
}

interface Workflow {
  readonly permissions?: Readonly<Record<string, string>>;
  readonly concurrency?: object;
  readonly jobs: Readonly<Record<string, Job>>;
}

interface Package {
  readonly version: string;
  readonly scripts: Readonly<Record<string, string>>;
  readonly engines: { readonly node: string };
  readonly peerDependencies: { readonly express: string };
}

const root = new URL('../', import.meta.url);
const folder = new URL('.github/workflows/', root);
const sources = new Map(readdirSync(folder).map((file) => [file, readFileSync(new URL(file, folder), 'utf8')]));
const workflows = new Map([...sources].map(([file, source]) => [file, load(source) as Workflow]));
const { scripts, engines, peerDependencies } = JSON.parse(
  readFileSync(new URL('package.json', root), 'utf8'),
) as Package;

const jobs = [...workflows].flatMap(([file, workflow]) =>
  Object.entries(workflow.jobs).map(([name, job]) => ({ title: `${file}, ${name}`, workflow, job })),
);
const commands = jobs.flatMap(({ job }) => job.steps.flatMap(({ run }) => run ?? []));

describe('the workflows', () => {
  it('are the two that there should be', () => {
    expect([...workflows.keys()].toSorted()).to.deep.equal(['ci.yml', 'release.yml']);
  });

  it('name no script that package.json lacks', () => {
    const named = commands.flatMap((command) =>
      [...command.matchAll(/\bnpm (?:run (\S+)|(test|start)\b)/g)].map(([, script, short]) => script ?? short),
    );
    expect(named).to.include.members(['check', 'start', 'test:e2e', 'test:nodes', 'test']);
    expect(Object.keys(scripts)).to.include.members(named);
  });

  it('name no file that is missing, nor do the scripts', () => {
    const words = [...commands, ...Object.values(scripts)].flatMap((command) => command.split(/[\s'"()]+/));
    const named = words.filter((word) => /^[\w./-]+\.(?:ts|js|json|md)$/.test(word));
    expect(named).to.include.members(['package.json', 'CHANGELOG.md', 'spec/nodes/run.ts']);
    expect(named.filter((file) => !existsSync(new URL(file, root)))).to.deep.equal([]);
  });

  it('pin each action to a commit, with its version beside it', () => {
    const uses = [...sources.values()].flatMap((source) => source.match(/^.*\buses:.*$/gm) ?? []);
    expect(uses.length).to.be.at.least(jobs.length);
    for (const line of uses) expect(line).to.match(/uses: [\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/);
  });

  for (const { title, workflow, job } of jobs) {
    it(`bound ${title} in time, and grant it no more than it needs`, () => {
      expect(job['timeout-minutes']).to.be.within(1, 60);
      expect(workflow.concurrency).to.be.an('object');
      const mayPublish = job.steps.some(({ run }) => run?.startsWith('npm publish '));
      expect(job.permissions ?? workflow.permissions).to.deep.equal({
        contents: 'read',
        ...(mayPublish && { 'id-token': 'write' }),
      });
      // The token that fetched the commit is not left where the specs of a dependency could read it.
      const checkouts = job.steps.filter(({ uses }) => uses?.startsWith('actions/checkout@'));
      expect(checkouts.map((step) => step.with?.['persist-credentials'])).to.deep.equal([false]);
    });
  }

  it('run the matrix of test:nodes, from the oldest Node and Express that package.json allows', () => {
    const { node = [], express = [] } = workflows.get('ci.yml')?.jobs['matrix']?.strategy?.matrix ?? {};
    expect(node.map(String)).to.deep.equal(nodeLines);
    expect(express.map(String)).to.deep.equal(expressLines);
    expect(/^>=(\d+)\./.exec(engines.node)?.[1]).to.equal(nodeLines[0]);
    const peers = [...peerDependencies.express.matchAll(/\^(\d+)\./g)].map(([, line]) => line);
    expect(peers).to.deep.equal(expressLines);
  });

  it('publish once all is well, with provenance', () => {
    const { needs, steps = [] } = workflows.get('release.yml')?.jobs['publish'] ?? {};
    expect(needs).to.equal('check');
    expect(steps.at(-1)?.run).to.equal('npm publish --provenance --access public');
  });
});

describe('the check of a tag in release.yml', () => {
  const step = workflows.get('release.yml')?.jobs['check']?.steps.find(({ name }) => name?.startsWith('The tag '));
  const changelog = '# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n';

  /** Runs the step where the version is 1.2.3, as GitHub would. Returns its exit status. */
  function check(tag: string, changes: string): number | null {
    const directory = mkdtempSync(join(tmpdir(), 'workflows-spec-'));
    try {
      writeFileSync(join(directory, 'package.json'), '{ "type": "module", "version": "1.2.3" }');
      writeFileSync(join(directory, 'CHANGELOG.md'), changes);
      const env = { ...process.env, GITHUB_REF_NAME: tag };
      return spawnSync('bash', ['-e', '-c', step?.run ?? ''], { cwd: directory, env, stdio: 'ignore' }).status;
    } finally {
      rmSync(directory, { recursive: true });
    }
  }

  it('passes the tag of the version, with a heading in the changelog', () => {
    expect(check('v1.2.3', changelog)).to.equal(0);
  });

  it('refuses the tag of another version', () => {
    expect(check('v1.2.30', changelog)).to.equal(1);
  });

  it('refuses a version that the changelog has no heading for', () => {
    expect(check('v1.2.3', changelog.replace('1.2.3', '1.2.30'))).to.equal(1);
  });
});
