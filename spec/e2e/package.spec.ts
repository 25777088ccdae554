import { expect } from 'chai';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describeE2e } from '../fixtures/e2e.ts';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../..', import.meta.url));
const compiler = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc');

/** What a newcomer writes first: a counter, and a request or two by the package's own client. */
const body = (annotation: string): string => `
const app = express();
const routing = sessionRouting({ secret: 'for a sample only', kind: resources() });
const counts = new Map${annotation && '<string, number>'}();
app.use(routing);
app.use(routing.session({ resave: false, saveUninitialized: false }));
app.use(express.json());
app.post('/seed_session', (req, res) => {
  counts.set(req.sessionID, 0);
  res.json({ resources_session_id: req.sessionID });
});
app.post('/add', (req, res) => {
  const count${annotation && ': number'} = (counts.get(req.sessionID) ?? 0) + req.body.by;
  counts.set(req.sessionID, count);
  res.json({ count });
});
app.post('/close_session', (req, res) => {
  counts.delete(req.sessionID);
  res.json({ resources_session_id: req.sessionID });
});

async function main()${annotation && ': Promise<void>'} {
  const server = await routing.listen(app, { port: 0, host: '127.0.0.1' });
  const { port } = server.address()${annotation && ' as AddressInfo'};
  const session = await ResourcesSession.open({
    url: \`http://127.0.0.1:\${port}\`,
    episodeId: { rollout_id: 'r' },
    taskId: { taskset: 't', task_id: '1' },
    taskData: {},
  });
  await session.callTool('add', { by: 3 });
  const { count } = (await session.callTool('add', { by: 4 }))${annotation && ' as { count: number }'};
  await session.close();
  await routing.close();
  console.log(JSON.stringify({ count, left: counts.size, cluster: typeof runWorkers }));
}
void main();
`;

const imports = `
import express from 'express';
import { resources, sessionRouting } from 'express-session-routing';
import { ResourcesSession } from 'express-session-routing/client';
import { runWorkers } from 'express-session-routing/cluster';
`;
const requires = `
const express = require('express');
const { resources, sessionRouting } = require('express-session-routing');
const { ResourcesSession } = require('express-session-routing/client');
const { runWorkers } = require('express-session-routing/cluster');
`;
const typedImports = `import type { AddressInfo } from 'node:net';${imports}`;

const samples: Record<string, string> = {
  'module.mjs': imports + body(''),
  'common.cjs': requires + body(''),
  'typed-module.mts': typedImports + body('typed'),
  'typed-common.cts': typedImports + body('typed'),
};

const compilerOptions = {
  target: 'es2022',
  module: 'nodenext',
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  verbatimModuleSyntax: false,
  types: ['node'],
};

describeE2e('the package as published', function () {
  this.timeout(180_000);

  const folder = mkdtempSync(join(tmpdir(), 'esr-package-'));
  let tarball: string;
  before(async () => {
    const { stdout } = await run('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', folder], {
      cwd: root,
    });
    const [packed] = JSON.parse(stdout) as [{ filename: string; files: { path: string }[] }];
    tarball = join(folder, packed.filename);
    const paths = packed.files.map(({ path }) => path);
    expect(paths).to.include.members([
      'README.md',
      'LICENSE',
      'CHANGELOG.md',
      'package.json',
      'dist/index.js',
      'dist/index.d.ts',
    ]);
    expect(paths.filter((path) => !/^(dist\/|[A-Z]+(\.md)?$|package\.json$)/.test(path))).to.deep.equal([]);
  });
  after(() => rmSync(folder, { recursive: true }));

  for (const [line, packages] of [
    ['4', ['express@4', '@types/express@4']],
    ['5', ['express@5', '@types/express@5']],
  ] as const) {
    describe(`with Express ${line}`, () => {
      const project = join(folder, `express-${line}`);
      before(async () => {
        rmSync(project, { recursive: true, force: true });
        await run('mkdir', [project]);
        writeFileSync(join(project, 'package.json'), '{ "private": true }');
        const others = ['express-session', '@types/express-session', '@types/node@20'];
        await run('npm', ['install', '--no-audit', '--no-fund', '--prefer-offline', tarball, ...packages, ...others], {
          cwd: project,
        });
        writeFileSync(
          join(project, 'tsconfig.json'),
          JSON.stringify({ compilerOptions, files: Object.keys(samples).filter((name) => name.includes('typed')) }),
        );
        for (const [name, text] of Object.entries(samples)) writeFileSync(join(project, name), text);
      });

      it('type-checks, and is translated, in TypeScript as ES module and as CommonJS', async () => {
        const { stdout } = await run(process.execPath, [compiler, '--project', project]).catch((error: object) => ({
          stdout: '',
          ...error,
        }));
        expect(stdout).to.equal('');
      });

      for (const name of Object.keys(samples)) {
        it(`runs ${name}`, async () => {
          const { stdout, stderr } = await run(process.execPath, [name.replace(/ts$/, 'js')], { cwd: project });
          expect(JSON.parse(stdout)).to.deep.equal({ count: 7, left: 0, cluster: 'function' });
          expect(stderr.replace(/.*ExperimentalWarning.*|.*--trace-warnings.*/g, '').trim()).to.equal('');
        });
      }

      it('says what is missing where the MCP SDK is not installed', async () => {
        const failure = await run(
          process.execPath,
          ['--input-type=module', '--eval', "await import('express-session-routing/mcp')"],
          { cwd: project },
        ).then(
          () => undefined,
          (error: { stderr: string }) => error.stderr,
        );
        expect(failure).to.match(/Cannot find package '@modelcontextprotocol\/(node|server)'/);
      });
    });
  }
});
