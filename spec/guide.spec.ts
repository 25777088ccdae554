import { expect } from 'chai';
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { Agent, request, type Server } from 'node:http';
import { get as getSecurely } from 'node:https';
import { createRequire } from 'node:module';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import cookieParser from 'cookie-parser';
import express, { type ErrorRequestHandler, type Express } from 'express';
import session from 'express-session';
import { resources, sessionRouting, web, type SessionRouting, type SessionRoutingOptions } from '../lib/index.ts';
import { createRuntimeDirectory, type RuntimeDirectory } from '../lib/workers.ts';
import { signCookie } from '../lib/session-id.ts';
import { Client } from './fixtures/example-client.ts';
import { until } from './fixtures/example-server.ts';
import { selfSigned } from './fixtures/hop-certificate.ts';
import { codeBlocks } from './fixtures/markdown.ts';
import { sampleProject, type SampleProject } from './fixtures/sample-project.ts';

const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), 'utf8');
const guideText = read('examples/GUIDE.md');
const guide = codeBlocks(guideText);
const readme = codeBlocks(read('README.md'));

/** What the README's fragments leave to their reader, by the first line of each. */
const standIns: Record<string, string> = {
  "import express from 'express';":
    'declare function startSandbox(id: object): Promise<Sandbox>; interface Sandbox {\n' +
    'stop(): Promise<{ transcript: string }>; run(body: unknown): Promise<object> }',
  'const routing = sessionRouting({ secret });': `import express from 'express'; import session from 'express-session';
import { sessionRouting } from 'express-session-routing'; const app = express(); declare const secret: string;`,
  "import { exposeToolsOverMcp } from 'express-session-routing/mcp';": `import express from 'express'; import { z } from 'zod';
import type { SessionRouting } from 'express-session-routing'; const app = express(); declare const routing: SessionRouting;
declare const counters: { add(sessionId: string, count: number): { count: number } };`,
  "const sessions = new Map<string, StreamableHTTPServerTransport>(); // as the SDK's documentation shows it": `import express from 'express'; import { mcpSessions, sessionRouting } from 'express-session-routing'; const app = express();
import type { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';`,
  "import { fromHeader, fromPath, sessionKind, sessionRouting } from 'express-session-routing';": `import express from 'express';
import { randomUUID } from 'node:crypto'; const app = express(); declare class Game { move(body: unknown): object }`,
  'const routing = sessionRouting({': `import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http'; import { Server } from 'socket.io'; const server = createServer();
import { fromQuery, sessionKind, sessionRouting } from 'express-session-routing';`,
  'const directory = await createRuntimeDirectory();': `import cluster from 'node:cluster';
import { createRuntimeDirectory } from 'express-session-routing/cluster';`,
};

const firstLine = (block: string): string => block.slice(0, block.indexOf('\n'));

/** Where a program is, or undefined if it is not installed. */
function installed(program: string): string | undefined {
  const folders = [...(process.env['PATH'] ?? '').split(':'), '/usr/sbin', '/usr/local/sbin'];
  return folders.map((folder) => join(folder, program)).find((path) => existsSync(path));
}

/** Runs a program, and gives its exit status and all that it printed. */
function outcome(program: string, args: string[], env: NodeJS.ProcessEnv = process.env) {
  return new Promise<{ status: number; printed: string }>((resolve) => {
    const child = execFile(program, args, { env }, (_error, stdout, stderr) => {
      resolve({ status: child.exitCode ?? -1, printed: stdout + stderr });
    });
  });
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await new Promise((closed) => server.close(closed));
  return port;
}

describe('the code of the guide', function () {
  this.timeout(120_000);

  let project: SampleProject;
  let complaints: string;
  const running: ChildProcess[] = [];

  before(async () => {
    const files = guide.flatMap(({ file, text }) => (file === undefined ? [] : [[file, text] as const]));
    const shown = new Set(['examples/quick-start/app.ts', 'examples/quick-start/server.ts'].map(read));
    const fragments = readme.filter(({ language, text }) => language === 'ts' && !shown.has(text));
    const completed = fragments.map(({ text }, n) => {
      return [`readme-${n}.ts`, `export {};\n${standIns[firstLine(text)] ?? ''}\n${text}`] as const;
    });
    project = sampleProject(Object.fromEntries([...files, ...completed]));
    complaints = await project.compile();
    // As the guide says: with a build, what is to be run is app.js.
    for (const name of ['server.js', 'primary.js']) {
      const path = join(project.folder, name);
      const source = readFileSync(path, 'utf8').replace("'./app.ts'", "'./app.js'");
      writeFileSync(path, source.replace(/(workers|length): 4/, '$1: 2')); // enough to route, and sooner up
    }
  });

  after(async () => {
    for (const child of running) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    project.remove();
  });

  /** The one block of the guide of this language, or of this file. */
  function blockOf(wanted: { language: string } | { file: string }): string {
    const found = guide.filter((block) => Object.entries(wanted).every(([key, value]) => Object(block)[key] === value));
    expect(found, JSON.stringify(wanted)).to.have.length(1);
    return found[0]?.text ?? '';
  }

  /** Starts a server of the guide, with a folder for temporary files of its own. */
  async function start(words: string[], env: Record<string, string> = {}, path = '/') {
    const port = await freePort();
    const child = spawn(process.execPath, words, {
      cwd: project.folder,
      env: { ...process.env, TMPDIR: project.folder, PORT: String(port), ...env },
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    running.push(child);
    const url = `http://127.0.0.1:${port}`;
    if (path !== '') {
      await until(async () => {
        expect([child.exitCode, child.signalCode], words.join(' ')).to.deep.equal([null, null]);
        return fetch(url + path, { headers: { connection: 'close' } }).then(
          () => true,
          () => false,
        );
      });
    }
    return { port, url, child };
  }

  /** The runtime directory of the primary `pid`. */
  function directoryOf({ pid }: ChildProcess): string | undefined {
    const name = readdirSync(project.folder).find((each) => each.startsWith(`esr-${pid}-`));
    return name && join(project.folder, name);
  }

  async function stop(child: ChildProcess): Promise<void> {
    child.kill('SIGTERM');
    await once(child, 'exit');
    expect(directoryOf(child)).to.equal(undefined);
  }

  it('compiles, with that of the README', () => {
    expect(complaints).to.equal('');
  });

  it('has no block that nothing here checks', () => {
    const languages = new Set(['ts', 'js', 'sh', 'ini', 'nginx', 'haproxy', 'dockerfile', 'text', 'mermaid']);
    expect(guide.filter(({ language }) => !languages.has(language))).to.deep.equal([]);
    const files = guide.filter(({ language }) => ['ts', 'js'].includes(language)).map(({ file }) => file);
    expect(files).to.have.members([
      'app.ts',
      'server.ts',
      'games.ts',
      'again.ts',
      'notes.ts',
      'primary.ts',
      'ecosystem.config.cjs',
      'https.ts',
      'below.ts',
    ]);
    const commands = guide.filter(({ language }) => language === 'sh').map((block) => firstLine(block.text));
    expect(commands.map((line) => line.split(' ', 2).join(' '))).to.have.members([
      'npm ci', // by spec/start.spec.ts
      'curl -s',
      'node -e',
      'npx session-routing',
      'docker run',
    ]);
  });

  it('links to what is there', () => {
    const headings = (markdown: string): string[] =>
      [...markdown.matchAll(/^#+ (.+)$/gm)].map(([, title = '']) =>
        title
          .toLowerCase()
          .replace(/[^\w\- ]/g, '')
          .replaceAll(' ', '-'),
      );
    const anchors = { '../README.md': headings(read('README.md')), '': headings(guideText) };
    for (const [, target = '', anchor] of guideText.matchAll(/\]\(([^)#]*)(?:#([^)]*))?\)/g)) {
      if (target !== '') expect(existsSync(new URL(`../examples/${target}`, import.meta.url)), target).to.equal(true);
      if (anchor !== undefined) expect(anchors[target as keyof typeof anchors], target).to.include(anchor);
    }
  });

  describe('app.ts on the workers of notes.ts', () => {
    let server: Awaited<ReturnType<typeof start>>;
    before(async () => void (server = await start(['notes.js'])));

    /** A session with a cookie, and the process ID of the worker that holds it. */
    async function seeded() {
      const client = new Client(server.url);
      const id = (await client.post('/seed_session')).json.resources_session_id as string;
      return { client, id };
    }

    it('keeps notes, whichever worker gets the request, and refuses a seed after its close', async () => {
      const { client, id } = await seeded();
      let notes;
      for (let n = 0; n < 5; n++) notes = (await client.post('/add_note', { text: 'tea' })).json.notes;
      expect(notes).to.deep.equal(['tea', 'tea', 'tea', 'tea', 'tea']);
      expect((await client.post('/close_session')).json).to.deep.equal({ resources_session_id: id });
      expect((await client.post('/seed_session')).json).to.deep.equal({ detail: 'The session is closed' });
      expect((await client.post('/add_note', { text: 'tea' })).json).to.deep.equal({
        detail: 'The session is not open',
      });
    });

    it('shows from outside who holds a session, by the commands of the guide', async () => {
      const script = guide.find(({ text }) => text.startsWith('curl '))?.text ?? '';
      const { printed } = await outcome('sh', [
        '-c',
        `cd ${project.folder}\n${script.replaceAll('3000', String(server.port))}`,
      ]);
      const lines = printed.trim().split(/\r?\n/);
      expect(lines, printed).to.have.length(4);
      const workers = lines.map((line) => /^X-Served-By: worker (\d+)(?:, forwarded)?$/i.exec(line)?.[1]);
      expect(new Set(workers).size).to.equal(1);
      expect(workers[0]).to.be.a('string');
    });

    it('shows from the runtime directory who holds a session, by the command of the guide', async () => {
      const { client, id } = await seeded();
      const script = guide.find(({ text }) => text.startsWith('node -e'))?.text ?? '';
      const env = { ...process.env, SESSION_ROUTING_DIR: directoryOf(server.child), ID: id };
      const { printed } = await outcome('sh', ['-c', script], env);
      const [, workerId, json = ''] = /^([0-9a-f]{32}) (\{.*\})\n$/.exec(printed) ?? [];
      expect(workerId, printed).to.be.a('string');
      const reply = await fetch(`${server.url}/add_note`, {
        method: 'POST',
        headers: { ...jsonType, cookie: cookieOf(client) },
        body: '{"text":"tea"}',
      });
      expect(reply.headers.get('x-served-by')).to.match(new RegExp(`^worker ${JSON.parse(json).pid}\\b`));
    });

    it('answers 410 for a session whose worker died, and again() begins it anew', async () => {
      const { again } = await import(join(project.folder, 'again.js'));
      const { ResourcesSession } = await import(new URL('../dist/client.js', import.meta.url).href);
      const ids: string[] = [];
      const notes = await again(async () => {
        const resourcesSessionId = `attempt-${ids.length}`;
        ids.push(resourcesSessionId);
        const opened = await ResourcesSession.open({
          url: server.url,
          resourcesSessionId,
          episodeId: { rollout_id: 'r' },
          taskId: { taskset: 't', task_id: '1' },
          taskData: {},
        });
        try {
          if (ids.length === 1) {
            const claims = guide.find(({ text }) => text.startsWith('node -e'))?.text ?? '';
            const env = { ...process.env, SESSION_ROUTING_DIR: directoryOf(server.child), ID: resourcesSessionId };
            const { pid } = JSON.parse((await outcome('sh', ['-c', claims], env)).printed.slice(33));
            process.kill(pid, 'SIGKILL');
            await until(() => isGone(pid));
          }
          return await opened.callTool('add_note', { text: 'tea' });
        } finally {
          await opened.close().catch((error: Error) => expect(error).to.have.property('status', 410));
        }
      });
      expect([notes, ids]).to.deep.equal([{ notes: ['tea'] }, ['attempt-0', 'attempt-1']]);
    });

    it('answers a request under way when it is stopped, and leaves nothing', async () => {
      const body = '{"text":"tea"}';
      const { client } = await seeded();
      // At the worker that holds the session: nothing tells a client whether a forwarded request has reached it yet.
      let agent: Agent;
      await until(async () => {
        agent = new Agent({ keepAlive: true, maxSockets: 1 });
        const [reply] = await once(
          request(server.url, { agent, headers: { cookie: cookieOf(client) } }).end(),
          'response',
        );
        await text(reply);
        return /^worker \d+$/.test(reply.headers['x-served-by']);
      });
      const call = request(`${server.url}/add_note`, {
        agent: agent!,
        method: 'POST',
        headers: {
          ...jsonType,
          cookie: cookieOf(client),
          'content-length': body.length,
          expect: '100-continue',
        },
      });
      call.flushHeaders();
      await once(call, 'continue');
      const stopped = stop(server.child);
      await until(() =>
        fetch(server.url).then(
          () => false,
          () => true,
        ),
      );
      call.end(body);
      const [reply] = await once(call, 'response');
      expect(JSON.parse(await text(reply))).to.deep.equal({ notes: ['tea'] });
      await stopped;
    });
  });

  it('runs app.ts from server.ts, from primary.ts, and as the Dockerfile does', async () => {
    const command = JSON.parse(/^CMD (.*)$/m.exec(blockOf({ file: 'Dockerfile' }))?.[1] ?? '');
    expect(command.shift()).to.equal('node');
    const npx =
      guide
        .find(({ text }) => text.startsWith('npx '))
        ?.text.trim()
        .split(' ')
        .slice(1) ?? [];
    const { bin } = JSON.parse(read('package.json'));
    expect([`node_modules/express-session-routing/${bin[npx[0] ?? '']}`, ...npx.slice(1)]).to.deep.equal(command);
    const servers = await Promise.all(
      [['server.js'], ['primary.js'], command.with(command.indexOf('4'), '2')].map((words) => start(words)),
    );
    await Promise.all(
      servers.map(async ({ url, child }) => {
        const client = new Client(url);
        await client.post('/seed_session');
        for (let n = 1; n <= 4; n++) {
          expect((await client.post('/add_note', { text: 'tea' })).json.notes).to.have.length(n);
        }
        await stop(child);
      }),
    );
  });

  it('runs https.ts, below.ts and games.ts', async () => {
    const { key, cert } = selfSigned();
    writeFileSync(join(project.folder, 'key.pem'), key);
    writeFileSync(join(project.folder, 'cert.pem'), cert);
    const [https, below, games] = await Promise.all([
      start(['https.js'], {}, ''),
      start(['below.js']),
      start(['games.js']),
    ]);
    const secured = () =>
      new Promise<string | undefined>((resolve) => {
        const options = { port: https.port, host: '127.0.0.1', rejectUnauthorized: false, agent: false };
        getSecurely(options, (reply) => resolve(text(reply))).on('error', () => resolve(undefined));
      });
    let reply: string | undefined;
    await until(async () => (reply = await secured()) !== undefined);
    expect(JSON.parse(reply ?? '')).to.deep.equal({ secure: true, forwarded: false });

    const seed = { resources_session_id: 'one' };
    expect((await new Client(below.url).post('/notes/seed_session', seed)).json).to.deep.equal({ id: 'one' });

    const player = new Client(games.url);
    const { id } = (await player.post('/games')).json;
    await player.post(`/games/${id}/moves`, { move: 'e4' });
    expect((await player.post(`/games/${id}/moves`, { move: 'c5' })).json).to.deep.equal({ moves: ['e4', 'c5'] });
    expect((await player.post('/games/other/moves', { move: 'e4' })).status).to.equal(404);
  });

  it('has an ecosystem file for PM2 whose script is there', () => {
    const { apps } = createRequire(import.meta.url)(join(project.folder, 'ecosystem.config.cjs'));
    expect(apps).to.have.length(1);
    expect(existsSync(join(project.folder, apps[0].script))).to.equal(true);
    expect([apps[0].exec_mode, apps[0].instances]).to.deep.equal(['fork', 1]);
  });

  it('has a Dockerfile of instructions that there are', () => {
    const lines = blockOf({ file: 'Dockerfile' }).trim().split('\n');
    const known = ['FROM', 'WORKDIR', 'ENV', 'COPY', 'RUN', 'USER', 'EXPOSE', 'CMD'];
    expect(lines.map((line) => line.split(' ', 1)[0])).to.satisfy((words: string[]) =>
      words.every((w) => known.includes(w)),
    );
    expect(lines[0]).to.match(/^FROM node:\d+-slim$/);
  });

  /** A check by a program that may not be installed. */
  function itBy(program: string, title: string, check: (path: string) => Promise<void>): void {
    const path = installed(program);
    if (path === undefined) it.skip(`${title} (not checked: ${program} is not installed here)`);
    else it(title, () => check(path));
  }

  itBy('nginx', 'has a configuration that nginx takes', async (nginx) => {
    const file = join(project.folder, 'nginx.conf');
    const folders = ['-p', project.folder, '-e', 'stderr', '-g', `pid ${project.folder}/nginx.pid;`];
    const { status, printed } = await outcome(nginx, ['-t', '-q', '-c', file, ...folders]);
    expect([status, printed]).to.deep.equal([0, '']);
  });

  itBy('haproxy', 'has a configuration that HAProxy takes', async (haproxy) => {
    const { status, printed } = await outcome(haproxy, ['-c', '-f', join(project.folder, 'haproxy.cfg')]);
    expect(status, printed).to.equal(0);
    expect(printed).not.to.match(/WARNING|ALERT/);
  });

  itBy('systemd-analyze', 'has a unit that systemd takes', async (analyze) => {
    const file = join(project.folder, 'notes.service');
    writeFileSync(file, blockOf({ file: 'notes.service' }).replace('/usr/bin/node', process.execPath));
    const { printed } = await outcome(analyze, ['verify', file]);
    expect(printed.split('\n').filter((line) => line.includes('notes.service'))).to.deep.equal([]);
  });

  itBy('docker', 'has a docker command whose options there are', async () => {
    const command = guide.find(({ text }) => text.startsWith('docker '))?.text ?? '';
    const env = { ...process.env, DOCKER_HOST: `unix://${project.folder}/none` };
    const { status, printed } = await outcome('sh', ['-c', command], env);
    expect(status).not.to.equal(0); // there is no daemon
    expect(printed).not.to.match(/flag|usage: |invalid|requires/i);
    expect(printed).to.match(/daemon|connect/i);
  });

  describe('the messages', () => {
    let directory: RuntimeDirectory;
    before(async () => void (directory = await createRuntimeDirectory({ parent: project.folder })));
    after(() => directory.remove());

    const secret = 'for a spec';
    const bridge = { resave: false, saveUninitialized: false };
    const seed = { resources_session_id: 'one' };
    const produced: string[] = [];
    const quoted = guide.filter(({ language }) => language === 'text').map(({ text }) => text.trimEnd());

    /** Takes note of a message that a set-up made, which the guide has to quote. */
    function expectQuoted(message: string): void {
      expect(quoted).to.include(message);
      produced.push(message);
    }

    const tell: ErrorRequestHandler = (error, _req, res, _next) => {
      res.status(error.status ?? 500).json({ detail: error.message });
    };

    /** Has an app of a wrong set-up answer requests, one after the other, and gives the last reply's `detail`. */
    async function detailOf(
      setUp: (app: Express, routing: SessionRouting) => void,
      calls: [path: string, body?: object][],
      options: Partial<SessionRoutingOptions> & { alone?: boolean; cookies?: [string, string][] } = {},
    ): Promise<string> {
      const { alone = false, cookies, ...rest } = options;
      const routing = sessionRouting({ secret, kind: resources(), runtimeDirectory: directory.path, ...rest });
      const app = express();
      setUp(app, routing);
      app.use(tell);
      let server: Server;
      if (alone) await once((server = app.listen(0, '127.0.0.1')), 'listening');
      else server = await routing.listen(app, { port: 0, host: '127.0.0.1' });
      const client = new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, cookies);
      let detail = '';
      for (const [path, body] of calls) detail = (await client.post(path, body)).json.detail;
      if (alone) await new Promise((closed) => server.close(closed));
      await routing.close();
      return detail;
    }

    const answerId: express.RequestHandler = (req, res) => void res.json({ resources_session_id: req.sessionID });

    it('of a body parser ahead of the routing', async () => {
      const detail = await detailOf(
        (app, routing) => app.use(express.json(), routing, routing.session(bridge)),
        [['/seed_session', seed]],
        { alone: true },
      );
      expectQuoted(detail);
    });

    it('of another secret', async () => {
      const detail = await detailOf(
        (app, routing) => {
          app.use(routing, session({ ...bridge, secret: 'another', genid: routing.genid, saveUninitialized: true }));
          app.post('/', answerId);
        },
        [['/'], ['/']],
        { kind: web() },
      );
      expectQuoted(detail);
      const byParser = await detailOf(
        (app, routing) =>
          app.use(routing, cookieParser('another'), session({ ...bridge, secret, genid: routing.genid })),
        [['/']],
        { kind: web(), cookies: [['connect.sid', encodeURIComponent(signCookie('one', 'another'))]] },
      );
      expect(byParser).to.equal(detail);
    });

    it('of workers without a runtime directory', async () => {
      const file = join(project.folder, 'fork.mjs');
      writeFileSync(
        file,
        `import cluster from 'node:cluster';\nif (cluster.isPrimary) cluster.fork(); else import('./app.js');`,
      );
      const { SESSION_ROUTING_DIR: _, ...env } = process.env;
      const { printed } = await outcome(process.execPath, [file], env);
      expectQuoted(/^Error: .*$/m.exec(printed)?.[0] ?? printed);
    });

    it('of a runtime directory that is not there', () => {
      const routed = () => sessionRouting({ secret, runtimeDirectory: '/run/notes/sessions' });
      let message = '';
      try {
        routed();
      } catch (error) {
        message = String(error);
      }
      expectQuoted(message);
    });

    it('of routes below a path', async () => {
      const detail = await detailOf(
        (app, routing) => app.use('/notes', routing, routing.session(bridge)),
        [['/notes/seed_session', seed]],
      );
      expectQuoted(detail);
    });

    it('of routes below a path, without the routing', async () => {
      const warned = once(process, 'warning') as Promise<[Error & { code?: string }]>;
      await detailOf(
        (app, routing) => {
          app.use(routing, routing.session(bridge));
          app.post('/notes/seed_session', answerId);
        },
        [['/notes/seed_session', seed]],
      );
      const [{ code, message }] = await warned;
      expect(code).to.equal('SESSION_ROUTE_UNKNOWN');
      expectQuoted(message);
    });

    it('of a seed route of another name', async () => {
      const detail = await detailOf(
        (app, routing) => {
          app.use(routing, routing.session(bridge));
          app.post(['/reset', '/close_session'], answerId);
        },
        [
          ['/reset', seed],
          ['/close_session', seed],
        ],
      );
      expectQuoted(detail);
    });

    it('of no routing.session()', async () => {
      const setUp = (app: Express, routing: SessionRouting) => app.use(routing).post('/add_note', answerId);
      expectQuoted(await detailOf(setUp, [['/add_note']]));
    });

    it('of no routing', async () => {
      const setUp = (app: Express, routing: SessionRouting) => app.use(routing.session(bridge));
      expectQuoted(await detailOf(setUp, [['/add_note']], { alone: true }));
    });

    it('are all that the guide quotes', () => {
      expect(produced).to.have.members(quoted);
    });
  });
});

const jsonType = { 'content-type': 'application/json' };

function cookieOf({ cookies }: Client): string {
  return [...cookies].map((pair) => pair.join('=')).join('; ');
}

function isGone(pid: number): boolean {
  try {
    return !process.kill(pid, 0);
  } catch {
    return true;
  }
}
