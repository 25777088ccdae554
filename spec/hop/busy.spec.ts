import { expect } from 'chai';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { createRuntimeDirectory, type RuntimeDirectory } from '../../lib/runtime-directory.ts';
import { resources } from '../../lib/session-kinds.ts';
import { sessionRouting, type SessionRouting } from '../../lib/session-routing.ts';
import { refusalOf } from '../fixtures/hop-front.ts';
import { Processes } from '../fixtures/hop-process.ts';
import { textbookForwarder } from '../fixtures/hop-textbook.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { chunked, head, talk, Wire, type Port } from '../fixtures/hop-wire.ts';
import { cookieOf, listening, portOf, secret, until } from '../fixtures/routed.ts';

const busy = { status: 503, code: 'CLAIMANT_BUSY' };
const seed = '{"resources_session_id":"hop"}';
const get = head('GET /quick HTTP/1.1', sessionCookie);

/** Whatever asks for the session. */
const requests: Record<string, string> = {
  'a GET': get,
  'a HEAD': head('HEAD /quick HTTP/1.1', sessionCookie),
  'a POST': `${head('POST /quick HTTP/1.1', sessionCookie, 'Content-Length: 5')}hello`,
  'a POST in chunks': head('POST /quick HTTP/1.1', sessionCookie, 'Transfer-Encoding: chunked') + chunked(['hello']),
  'a seed': `${head('POST /seed_session HTTP/1.1', `Content-Length: ${seed.length}`)}${seed}`,
  'an upgrade': head('GET /quick HTTP/1.1', sessionCookie, 'Connection: Upgrade', 'Upgrade: x'),
};

describe('a claimant that is busy', () => {
  const processes = new Processes();
  let directory: RuntimeDirectory;
  let claimant: ChildProcess;
  let executed: unknown[];
  let routing: SessionRouting;
  /** The public port of its sibling, which is this process. */
  let port: Port;
  let closeSibling: () => Promise<void>;

  beforeEach(async () => {
    directory = await createRuntimeDirectory();
    routing = sessionRouting({
      secret,
      kind: resources({ closeRetryWindowSeconds: 0.1 }),
      runtimeDirectory: directory.path,
    });
    const server = createServer((_request, response) => response.end('from the sibling'));
    server.on('upgrade', (_request, socket) => socket.destroy());
    await routing.attach(server);
    await listening(server);
    port = { port: portOf(server) };
    closeSibling = async () => {
      server.close();
      server.closeAllConnections();
      await routing.close();
    };
  });
  afterEach(async () => {
    await processes.close();
    await closeSibling();
    directory.remove();
  });

  /** Starts the claimant, and lets it have the session. */
  async function start(...backlog: string[]): Promise<void> {
    const { child, said } = await processes.start('hop-worker.ts', directory.path, ...backlog);
    claimant = child;
    const seen = once(claimant, 'message');
    expect(await talk({ port: said as number }, requests['a seed']!)).to.match(/^HTTP\/1\.1 200 /);
    await seen;
    executed = [];
    claimant.on('message', (what) => executed.push(what));
  }

  /** Every claim there is, and whose it is. */
  function claims(): Record<string, string> {
    const folder = join(directory.path, 'session-claims');
    return Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name), 'latin1')]));
  }

  async function stop(): Promise<() => void> {
    claimant.kill('SIGSTOP');
    const state = (): string => readFileSync(`/proc/${claimant.pid}/stat`, 'latin1').replace(/^.*\) /, '')[0]!;
    if (process.platform === 'linux') await until(() => state() === 'T', 'it is stopped');
    return () => void claimant.kill('SIGCONT');
  }

  async function block(): Promise<() => void> {
    const file = join(directory.path, 'go-on');
    const blocked = new Promise((resolve) => claimant.once('message', resolve));
    const wire = new Wire(port).send(head(`GET /block?block-until=${file} HTTP/1.1`, sessionCookie));
    await blocked;
    executed.length = 0;
    return () => {
      writeFileSync(file, '');
      void wire.rest();
    };
  }

  for (const [what, makeBusy] of Object.entries({ 'whose loop is blocked': block, 'that is stopped': stop })) {
    describe(what, () => {
      it('is waited for, and keeps its claims', async () => {
        await start();
        await Promise.all([1, 2, 3].map(() => talk(port, get))); // leaves connections to be used again
        const before = claims();
        executed.length = 0;
        const goOn = await makeBusy();
        const wires = Object.values(requests).map((text) => new Wire(port).send(text));
        wires.push(...Array.from({ length: 50 }, () => new Wire(port).send(get)));
        const leaving = new Wire(port).send(get);
        // Meanwhile the sibling answers for its own sessions, and for those that are nobody's.
        for (let index = 0; index < 20; index++) {
          expect(await talk(port, head('GET / HTTP/1.1', `Cookie: ${cookieOf('other')}`))).to.match(
            /from the sibling$/,
          );
        }
        leaving.socket.destroy();
        expect(wires.map(({ received }) => received).join('')).to.equal('');
        expect(executed).to.deep.equal([]);
        expect(claims()).to.include(before);

        goOn();
        for (const wire of wires) expect(await wire.rest()).to.match(/^HTTP\/1\.1 (200|101) /);
        const times = (one: string): number => executed.filter((each) => each === one).length;
        expect(times('GET /quick')).to.be.within(51, 52); // with the one whose client left, or without it
        for (const one of ['HEAD /quick', 'POST /seed_session', 'upgrade /quick']) expect(times(one)).to.equal(1);
        expect(times('POST /quick')).to.equal(2);
        expect(claims()).to.include(before);
      });
    });
  }

  it('that takes no more connections is a 503, and keeps its claims', async () => {
    await start('1');
    const before = claims();
    const goOn = await stop();
    const waiting = await fill(claimantSocket());
    for (const [what, text] of Object.entries(requests)) {
      const reply = await talk(port, text);
      expect(reply, what).to.match(/^HTTP\/1\.1 503 [^]*\r\nRetry-After: [1-9]\d*\r\n/);
      if (what !== 'a HEAD') expect(refusalOf(reply), what).to.deep.equal(busy);
    }
    expect(claims()).to.deep.equal(before);
    for (const socket of waiting) socket.destroy();
    goOn();
    await until(async () => (await talk(port, get)).endsWith('ok'), 'it takes connections again');
    expect(new Set(executed)).to.deep.equal(new Set(['GET /quick'])); // what was refused was not executed
    expect(claims()).to.deep.equal(before);
  });

  it('is not blind: to a textbook forwarder one that takes no more connections is as bad as broken', async () => {
    await start('1');
    await stop();
    const waiting = await fill(claimantSocket());
    const textbook = await listening(textbookForwarder(claimantSocket()));
    expect(await talk({ port: portOf(textbook) }, get)).to.match(/^HTTP\/1\.1 502 /);
    textbook.close();
    for (const socket of waiting) socket.destroy();
  });

  it('that takes no more connections serves what has one', async () => {
    await start('1');
    await talk(port, get); // leaves a connection to be used again
    executed.length = 0;
    const wire = new Wire(port).send(head('POST /quick HTTP/1.1', sessionCookie, 'Content-Length: 5'));
    await once(claimant, 'message');
    const goOn = await stop();
    const waiting = await fill(claimantSocket());
    expect(refusalOf(await talk(port, get))).to.deep.equal(busy);
    wire.send('hello'); // on the connection that it has
    for (const socket of waiting) socket.destroy();
    goOn();
    expect(await wire.rest()).to.match(/^HTTP\/1\.1 200 [^]*ok$/);
  });

  function claimantSocket(): string {
    const own = `${routing.workerId.slice(0, 16)}.sock`;
    const others = readdirSync(directory.path).filter((name) => name.endsWith('.sock') && name !== own);
    expect(others).to.have.length(1);
    return join(directory.path, others[0]!);
  }
});

/** Makes as many connections to a socket as the kernel lets wait. */
async function fill(path: string): Promise<Socket[]> {
  const waiting: Socket[] = [];
  for (;;) {
    const socket = connect(path);
    const isFull = await new Promise<boolean>((resolve) => {
      socket.once('connect', () => resolve(false));
      socket.once('error', () => resolve(true));
    });
    if (isFull) return waiting;
    waiting.push(socket);
  }
}
