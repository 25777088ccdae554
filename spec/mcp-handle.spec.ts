import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { Client as V1Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as V1ClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { expect } from 'chai';
import express from 'express';
import { z } from 'zod';
import { mcpHandle, type McpHandleOptions } from '../lib/mcp-kinds.ts';
import type { SessionRouting } from '../lib/session-routing.ts';
import { fetchInTurn } from './fixtures/mcp.ts';
import { portOf, send, startWorkers, until, type RawReply, type Workers } from './fixtures/routed.ts';

const revision = '2026-07-28';

interface Seen {
  readonly isForwarded: boolean;
  readonly field: string | undefined;
}

interface Started extends Workers {
  readonly counters: readonly Map<string, number>[];
  readonly seen: readonly Seen[][];
}

interface AppOptions {
  /** The schema of the arguments that name a counter. */
  readonly named?: z.ZodRawShape;
  /** The counter that arguments name. */
  readonly handleOf?: (args: Record<string, unknown>) => string;
}

const marked = (header: string) => ({ 'x-mcp-header': header });
const text = (value: unknown) => ({ content: [{ type: 'text' as const, text: String(value) }] });

/** A server whose tools take handles of counters, made for each request. */
function serverOf(
  routing: SessionRouting,
  counters: Map<string, number>,
  { named = { counter: z.string().meta(marked('Counter')) }, handleOf = (args) => String(args['counter']) }: AppOptions,
): McpServer {
  const server = new McpServer({ name: 'counters', version: '1.0.0' });
  server.registerTool('new_counter', { inputSchema: z.object({ handle: z.string() }) }, ({ handle }) => {
    counters.set(handle, 0);
    routing.claim(handle);
    return text(handle);
  });
  const use = (tool: string, change: (handle: string, value: number) => unknown): void => {
    server.registerTool(tool, { inputSchema: z.looseObject(named) }, (args) => {
      const handle = handleOf(args);
      const value = counters.get(handle);
      return value === undefined ? { ...text(`no ${handle}`), isError: true } : text(change(handle, value));
    });
  };
  use('add', (handle, value) => counters.set(handle, value + 1).get(handle));
  use('value', (_handle, value) => value);
  use('drop', (handle) => {
    counters.delete(handle);
    routing.ended(handle);
    return 'dropped';
  });
  return server;
}

/** A call as the revision 2026-07-28 has it, or as those before had it. */
function callOf(tool: string, args: object, isModern = true): object {
  const meta = {
    'io.modelcontextprotocol/protocolVersion': revision,
    'io.modelcontextprotocol/clientInfo': { name: 'raw', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const params = { name: tool, arguments: args, ...(isModern && { _meta: meta }) };
  return { jsonrpc: '2.0', id: 7, method: 'tools/call', params };
}

describe('mcpHandle()', function () {
  this.timeout(30_000);
  let open: Workers[] = [];
  afterEach(async () => {
    await Promise.all(open.map((workers) => workers.close()));
    open = [];
  });

  async function start({
    count = 2,
    name = 'counter',
    asks = true,
    kind = {},
    ...options
  }: AppOptions & { count?: number; name?: string; asks?: boolean; kind?: McpHandleOptions } = {}): Promise<Started> {
    const counters = Array.from({ length: count }, () => new Map<string, number>());
    const seen = counters.map((): Seen[] => []);
    const workers = await startWorkers(
      (routing, index) => {
        const handle = toNodeHandler(createMcpHandler(() => serverOf(routing, counters[index]!, options)));
        return express()
          .use(express.json())
          .all('/mcp', (request, response) => {
            const field = Object.keys(request.headers).find((each) => each.startsWith('mcp-param-'));
            seen[index]!.push({ isForwarded: routing.isForwarded(request), field });
            void handle(request, response, request.body);
          });
      },
      {
        count,
        kind: (index) =>
          mcpHandle(name, { ...(asks && { isOpen: (handle) => counters[index]!.has(handle) }), ...kind }),
      },
    );
    open.push(workers);
    return Object.assign(workers, { counters, seen });
  }

  function post(workers: Workers, worker: number, message: object, more: readonly string[]): Promise<RawReply> {
    const fields = ['Accept', 'application/json, text/event-stream', 'Content-Type', 'application/json', ...more];
    const body = JSON.stringify(message);
    return send({ to: portOf(workers.all[worker]!.server), method: 'POST', target: '/mcp', fields, body });
  }

  /** A call of the revision 2026-07-28, with fields for its arguments. */
  function modern(workers: Workers, worker: number, tool: string, args: object, ...more: string[]): Promise<RawReply> {
    const standard = ['MCP-Protocol-Version', revision, 'Mcp-Method', 'tools/call', 'Mcp-Name', tool];
    return post(workers, worker, callOf(tool, args), [...standard, ...more]);
  }

  function earlier(workers: Workers, worker: number, tool: string, args: object, ...more: string[]): Promise<RawReply> {
    return post(workers, worker, callOf(tool, args, false), more);
  }

  /** Makes counters on the first worker. */
  async function make(workers: Started, ...handles: string[]): Promise<void> {
    for (const handle of handles) await modern(workers, 0, 'new_counter', { handle });
    for (const handle of handles) expect(workers.claimantOf(handle)).to.equal(0);
  }

  /** What a tool has answered, in JSON or in the one event of a stream. */
  function answer({ status, text: body }: RawReply): string {
    expect(status, body).to.equal(200);
    return JSON.parse(body.replace(/^[^{]*/, '')).result.content[0].text;
  }

  it('routes concurrent calls by the field that clients make of the argument, and by the body where they make none', async () => {
    const workers = await start({ count: 3 });
    const urls = workers.all.map(({ url }) => url);
    async function run(client: Client | V1Client, of: string): Promise<void> {
      const call = async (tool: string, args: Record<string, unknown>): Promise<string> => {
        const { content } = await client.callTool({ name: tool, arguments: args });
        return (content as { text: string }[])[0]!.text;
      };
      const sequences = Array.from({ length: 13 }, async (_, index) => {
        const counter = await call('new_counter', { handle: `${of}-${index}` });
        for (const time of [1, 2]) expect(await call('add', { counter })).to.equal(String(time));
        expect(await call('value', { counter })).to.equal('2');
        expect(await call('drop', { counter })).to.equal('dropped');
      });
      await Promise.all(sequences);
      await client.close();
    }
    async function v2(index: number): Promise<void> {
      const client = new Client({ name: 'a', version: '1' }, { versionNegotiation: { mode: { pin: revision } } });
      await client.connect(
        new StreamableHTTPClientTransport(new URL('/mcp', urls[0]), { fetch: fetchInTurn(urls, index) }),
      );
      await client.listTools();
      await run(client, `v2-${index}`);
    }
    async function v1(index: number): Promise<void> {
      const client = new V1Client({ name: 'a', version: '1' });
      const transport = new V1ClientTransport(new URL('/mcp', urls[0]), { fetch: fetchInTurn(urls, index) });
      await client.connect(transport as Transport);
      await run(client, `v1-${index}`);
    }
    await Promise.all([v2(0), v2(1), v2(2), v2(3), v1(0), v1(1), v1(2), v1(3)]);

    const forwarded = workers.seen.flat().filter(({ isForwarded }) => isForwarded);
    const mirrored = forwarded.filter(({ field }) => field === 'mcp-param-counter');
    expect(mirrored.length).to.be.above(52);
    expect(forwarded.length - mirrored.length).to.be.above(52);
    await until(() => workers.claims().length === 0, 'no claim remains');
    expect(workers.counters.map(({ size }) => size)).to.deep.equal([0, 0, 0]);
  });

  it('leaves it to the holder of what the field names to refuse a body that names another', async () => {
    const workers = await start();
    await make(workers, 'a');
    await modern(workers, 1, 'new_counter', { handle: 'b' });
    const reply = await modern(workers, 1, 'add', { counter: 'b' }, 'Mcp-Param-Counter', 'a');
    expect([reply.status, reply.json.error.code]).to.deep.equal([400, -32020]);
    expect(workers.seen[0]!.at(-1)).to.include({ isForwarded: true });
    const missing = await modern(workers, 0, 'add', { counter: 'b' });
    expect([missing.status, missing.json.error.code]).to.deep.equal([400, -32020]);
    expect(workers.seen[1]!.at(-1)).to.include({ isForwarded: true });
    expect([...workers.counters[0]!, ...workers.counters[1]!].map(([, value]) => value)).to.deep.equal([0, 0]);
  });

  it('reads the body of an earlier revision, which nobody compares with the field', async () => {
    const workers = await start();
    await make(workers, 'a');
    await modern(workers, 1, 'new_counter', { handle: 'b' });
    expect(answer(await earlier(workers, 0, 'add', { counter: 'b' }, 'Mcp-Param-Counter', 'a'))).to.equal('1');
    const version = ['MCP-Protocol-Version', '2025-11-25'];
    expect(answer(await earlier(workers, 1, 'add', { counter: 'a' }, 'Mcp-Param-Counter', 'b', ...version))).to.equal(
      '1',
    );
  });

  it('takes handles that are no plain text, and refuses what is no sound Base64 of one', async () => {
    const workers = await start();
    const handles = ['zähler ✓', ' padded ', '=?base64?YQ==?=', 'a\tb', '\ufeffmarked'];
    await make(workers, ...handles);
    for (const counter of handles.slice(0, 4)) {
      const field = `=?base64?${Buffer.from(counter).toString('base64')}?=`;
      expect(answer(await modern(workers, 1, 'add', { counter }, 'Mcp-Param-Counter', field))).to.equal('1');
    }
    for (const counter of handles) {
      expect(answer(await earlier(workers, 1, 'value', { counter }))).to.match(/^[01]$/);
    }
    for (const field of ['=?base64?%%%?=', '=?base64?YQ?=', '=?base64?/w==?=', '=?base64?7aCA?=']) {
      const { status, json } = await modern(workers, 1, 'add', { counter: 'a' }, 'Mcp-Param-Counter', field);
      expect([status, json.error.code, json.error.data.code]).to.deep.equal([400, -32000, 'SESSION_ID_INVALID']);
    }
  });

  it('takes integers, in whatever digits', async () => {
    const workers = await start({ named: { counter: z.int().meta(marked('Counter')) } });
    await make(workers, '42', '-7', '0');
    for (const [counter, field, expected] of [
      [42, '42', '1'],
      [42, '42.0', '2'],
      [42, '042', '3'],
      [-7, '-7', '1'],
      [0, '-0', '1'],
    ] as const) {
      expect(answer(await modern(workers, 1, 'add', { counter }, 'Mcp-Param-Counter', field))).to.equal(expected);
    }
    expect(answer(await earlier(workers, 1, 'value', { counter: 42 }))).to.equal('3');
    for (const counter of [1.5, true, {}, [], 2 ** 60]) {
      const { status, json } = await earlier(workers, 1, 'value', { counter });
      expect([status, json.error.data.code]).to.deep.equal([400, 'SESSION_ID_INVALID']);
    }
  });

  it('finds an argument of any depth by a JSON pointer, and its field by its name or as told', async () => {
    const deep = (header: string): AppOptions => ({
      named: { at: z.object({ counter: z.string().meta(marked(header)) }) },
      handleOf: ({ at }) => (at as { counter: string }).counter,
    });
    for (const [name, header, options] of [
      ['/at/counter', 'Counter', { ...deep('Counter') }],
      ['/at/counter', 'Mine', { ...deep('Mine'), kind: { header: 'mine' } }],
      ['counter', 'Mine', { named: { counter: z.string().meta(marked('Mine')) }, kind: { header: 'Mine' } }],
    ] as const) {
      const workers = await start({ name, ...options });
      await make(workers, 'a');
      const args = name === 'counter' ? { counter: 'a' } : { at: { counter: 'a' } };
      expect(answer(await modern(workers, 1, 'add', args, `Mcp-Param-${header}`, 'a'))).to.equal('1');
      expect(answer(await earlier(workers, 1, 'add', args))).to.equal('2');
    }
  });

  it('serves a batch of one handle where that is, and refuses one of two', async () => {
    const workers = await start();
    await make(workers, 'a', 'b');
    const batch = (...handles: string[]) =>
      handles.map((counter, id) => ({ ...callOf('add', { counter }, false), id }));
    const { status, json } = await post(workers, 1, batch('a', 'b'), []);
    expect([status, json.error.code, json.error.data.code]).to.deep.equal([409, -32000, 'SESSION_MISMATCH']);
    expect((await post(workers, 1, batch('a', 'a'), [])).status).to.equal(200);
    expect([...workers.counters[0]!]).to.deep.equal([
      ['a', 2],
      ['b', 0],
    ]);
  });

  it('serves a call without a handle, or with an unknown one, where it lands, and keeps no claim of it', async () => {
    const workers = await start();
    for (const worker of [0, 1]) {
      expect(answer(await modern(workers, worker, 'value', { counter: 'x' }, 'Mcp-Param-Counter', 'x'))).to.equal(
        'no x',
      );
      expect(answer(await earlier(workers, worker, 'value', { counter: 'y' }))).to.equal('no y');
    }
    await earlier(workers, 1, 'value', { counter: '' });
    await earlier(workers, 1, 'value', { counter: null });
    expect(workers.seen[1]!.slice(-2).map(({ isForwarded }) => isForwarded)).to.deep.equal([false, false]);
    await until(() => workers.claims().length === 0, 'no claim remains');
  });

  it('claims a handle until its tool gives it back, where nobody says which are open', async () => {
    const workers = await start({ asks: false });
    await make(workers, 'a', 'b');
    expect(answer(await earlier(workers, 1, 'drop', { counter: 'a' }))).to.equal('dropped');
    await until(() => workers.claimantOf('a') === undefined, 'the claim is gone');
    expect(workers.claimantOf('b')).to.equal(0);
  });

  it('answers 410 with a JSON-RPC error for a handle whose worker has left', async () => {
    const workers = await start();
    await make(workers, 'a');
    await workers.leave(workers.all[0]!);
    for (const reply of [
      await modern(workers, 1, 'add', { counter: 'a' }, 'Mcp-Param-Counter', 'a'),
      await earlier(workers, 1, 'add', { counter: 'a' }),
    ]) {
      const { id, jsonrpc, error } = reply.json;
      expect([reply.status, id, jsonrpc, error.code]).to.deep.equal([410, null, '2.0', -32000]);
      expect(error.data.code).to.equal('SESSION_GONE');
      expect(reply.rawHeaders).to.include('application/json');
    }
  });

  it('refuses options that are none, and an argument that makes no field', () => {
    expect(() => mcpHandle('')).to.throw(TypeError, 'mcpHandle(): option "name"');
    expect(() => mcpHandle('a b')).to.throw(TypeError, 'mcpHandle(): option "header"');
    expect(() => mcpHandle('a/b')).to.throw(TypeError, 'mcpHandle(): option "header"');
    expect(() => mcpHandle('/a~1b')).to.throw(TypeError, 'mcpHandle(): option "header"');
    expect(() => mcpHandle('/a~2b')).to.throw(TypeError, 'JSON pointer');
    expect(() => mcpHandle('a/b', { header: 'b' })).not.to.throw();
    expect(() => mcpHandle('a', { name: 'b' } as McpHandleOptions)).to.throw(TypeError, 'no option "name"');
  });
});
