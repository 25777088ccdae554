import { expect } from 'chai';
import type { z } from 'zod';
import {
  agentSessionCloseSchema,
  agentSessionResultSchema,
  agentSessionSeedSchema,
  bodyIssues,
  episodeIdSchema,
  integerSchema,
  sandboxAccessSchema,
  taskIdSchema,
  toolAccessSchema,
} from '../lib/protocol.ts';

const http = { kind: 'direct_http', name: 'tools', required: false, base_url: 'http://127.0.0.1:8000' };
const remote = { transport: 'streamable_http', url: 'https://tools.example/mcp' };
const local = { transport: 'stdio', command: 'tools' };
const mcp = { kind: 'mcp', name: 'm', required: true, connection: local };
const direct = { connection: { kind: 'direct', provider_config_ref: 'ref', descriptor: { id: 1 } } };
const served = { connection: { kind: 'sandbox_server', sandbox_ref: 'ref' } };
const episode_id = { rollout_id: 'r1' };
const task_id = { taskset: 'set', task_id: 't1' };
const seed = { agent_session_id: 's', episode_id, task_id };
const close = { agent_session_id: 's', episode_id };

/** What a schema takes and what it makes of that, and what it refuses and where the fault is. */
interface Cases {
  readonly schema: z.ZodType;
  readonly good: readonly (readonly [given: unknown, output: unknown])[];
  readonly bad: readonly (readonly [given: unknown, path: string])[];
}

const schemas: Record<string, Cases> = {
  integerSchema: {
    schema: integerSchema,
    good: [
      [3, 3],
      [3.0, 3],
      ['3', 3],
      ['-3', -3],
      ['+3', 3],
      ['007', 7],
      [true, 1],
      [false, 0],
    ],
    bad: [
      3.5,
      '3.0',
      '3.5',
      '',
      ' ',
      'three',
      '0x3',
      '1e3',
      null,
      undefined,
      [],
      [3],
      {},
      Infinity,
      '9'.repeat(30),
    ].map((value) => [value, ''] as const),
  },
  episodeIdSchema: {
    schema: episodeIdSchema,
    good: [
      [episode_id, { rollout_id: 'r1', attempt: 0 }],
      [
        { rollout_id: 'r1', attempt: 2 },
        { rollout_id: 'r1', attempt: 2 },
      ],
      [
        { rollout_id: '9.a_B-c', attempt: '2' },
        { rollout_id: '9.a_B-c', attempt: 2 },
      ],
      ...['r-a', 'r-a0', 'r-a1x', 'r-b1', 'ra1', 'r-a1.2', 'a'].map(
        (rollout_id) => [{ rollout_id }, { rollout_id, attempt: 0 }] as const,
      ),
    ],
    bad: [
      [{}, 'rollout_id'],
      ...['', '.r', '-r', '_r', 'r/1', 'r 1', 'r\n', 'ü', 7, null, 'r-a1', 'r-a10', 'r-a2-a3'].map(
        (rollout_id) => [{ rollout_id }, 'rollout_id'] as const,
      ),
      ...[-1, 1.5, null, 'one', '-1'].map((attempt) => [{ rollout_id: 'r1', attempt }, 'attempt'] as const),
      [{ rollout_id: 'r1', capture_key: 'r1' }, ''],
      ['r1', ''],
      [null, ''],
    ],
  },
  taskIdSchema: {
    schema: taskIdSchema,
    good: [[task_id, task_id]],
    bad: [
      [{ taskset: '', task_id: 't1' }, 'taskset'],
      [{ taskset: 'set', task_id: '' }, 'task_id'],
      [{ taskset: 'set' }, 'task_id'],
      [{ taskset: 'set', task_id: 1 }, 'task_id'],
      [{ ...task_id, more: 1 }, ''],
    ],
  },
  toolAccessSchema: {
    schema: toolAccessSchema,
    good: [
      [http, { ...http, cookies: {}, headers: {} }],
      [
        { ...http, cookies: { a: 'b' }, headers: { c: 'd' } },
        { ...http, cookies: { a: 'b' }, headers: { c: 'd' } },
      ],
      [
        { ...http, base_url: 'https://tools.example/base' },
        { ...http, base_url: 'https://tools.example/base', cookies: {}, headers: {} },
      ],
      [
        { ...http, more: 1 },
        { ...http, cookies: {}, headers: {} },
      ],
      [mcp, { ...mcp, connection: { ...local, args: [], env: {}, cwd: null } }],
      [
        { ...mcp, connection: { ...local, args: ['-x'], env: { A: 'b' }, cwd: '/work' } },
        { ...mcp, connection: { ...local, args: ['-x'], env: { A: 'b' }, cwd: '/work' } },
      ],
      [
        { ...mcp, connection: remote },
        { ...mcp, connection: { ...remote, headers: {} } },
      ],
    ],
    bad: [
      [{ ...http, kind: 'other' }, 'kind'],
      [{ ...http, kind: undefined }, 'kind'],
      [{ ...http, name: '' }, 'name'],
      [{ ...http, name: 'a b' }, 'name'],
      [{ ...http, required: undefined }, 'required'],
      [{ ...http, required: 'yes' }, 'required'],
      [{ ...http, base_url: 'tools' }, 'base_url'],
      [{ ...http, base_url: 'ftp://tools.example' }, 'base_url'],
      [{ ...http, cookies: { a: 1 } }, 'cookies.a'],
      [{ ...http, headers: null }, 'headers'],
      [{ ...mcp, connection: { ...local, transport: 'other' } }, 'connection.transport'],
      [{ ...mcp, connection: { transport: 'stdio' } }, 'connection.command'],
      [{ ...mcp, connection: { ...local, args: [1] } }, 'connection.args.0'],
      [{ ...mcp, connection: { ...remote, url: 'file:///tools' } }, 'connection.url'],
      [{ ...mcp, connection: undefined }, 'connection'],
    ],
  },
  sandboxAccessSchema: {
    schema: sandboxAccessSchema,
    good: [
      [direct, { ...direct, workdir: null }],
      [served, { ...served, workdir: null }],
      [
        { ...served, workdir: '/work' },
        { ...served, workdir: '/work' },
      ],
      ...[null, 'text', [1]].map((descriptor) => {
        const connection = { ...direct.connection, descriptor };
        return [{ connection }, { connection, workdir: null }] as const;
      }),
    ],
    bad: [
      [{}, 'connection'],
      [{ connection: { kind: 'other' } }, 'connection.kind'],
      [{ connection: { kind: 'sandbox_server' } }, 'connection.sandbox_ref'],
      [{ connection: { kind: 'direct', descriptor: {} } }, 'connection.provider_config_ref'],
      [{ connection: { kind: 'direct', provider_config_ref: 'ref' } }, 'connection.descriptor'],
      [{ ...served, workdir: 7 }, 'workdir'],
    ],
  },
  agentSessionSeedSchema: {
    schema: agentSessionSeedSchema,
    good: [
      [seed, { ...seed, episode_id: { ...episode_id, attempt: 0 }, tool_accesses: [], sandbox_access: null }],
      [
        { ...seed, tool_accesses: [mcp, http], sandbox_access: served },
        {
          ...seed,
          episode_id: { ...episode_id, attempt: 0 },
          tool_accesses: [
            { ...mcp, connection: { ...local, args: [], env: {}, cwd: null } },
            { ...http, cookies: {}, headers: {} },
          ],
          sandbox_access: { ...served, workdir: null },
        },
      ],
    ],
    bad: [
      [undefined, ''],
      [[], ''],
      [{ ...seed, agent_session_id: undefined }, 'agent_session_id'],
      [{ ...seed, agent_session_id: '' }, 'agent_session_id'],
      [{ ...seed, agent_session_id: 7 }, 'agent_session_id'],
      [{ ...seed, episode_id: 'r1' }, 'episode_id'],
      [{ ...seed, episode_id: { rollout_id: 'r-a1' } }, 'episode_id.rollout_id'],
      [{ ...seed, task_id: { taskset: 'set' } }, 'task_id.task_id'],
      [{ ...seed, tool_accesses: null }, 'tool_accesses'],
      [{ ...seed, tool_accesses: [http, { ...http, kind: '' }] }, 'tool_accesses.1.kind'],
      [{ ...seed, tool_accesses: [http, { ...mcp, name: http.name }] }, 'tool_accesses'],
      [{ ...seed, sandbox_access: {} }, 'sandbox_access.connection'],
      [{ ...seed, task_data: {} }, ''],
    ],
  },
  agentSessionCloseSchema: {
    schema: agentSessionCloseSchema,
    good: [[close, { ...close, episode_id: { ...episode_id, attempt: 0 } }]],
    bad: [
      [{ ...close, agent_session_id: '' }, 'agent_session_id'],
      [{ agent_session_id: 's' }, 'episode_id'],
      [{ ...close, task_id }, ''],
    ],
  },
  agentSessionResultSchema: {
    schema: agentSessionResultSchema,
    good: [
      [{}, { agent_observations: null, resources_cookies: null }],
      [
        { agent_observations: { any: [1] }, resources_cookies: { a: 'b' } },
        { agent_observations: { any: [1] }, resources_cookies: { a: 'b' } },
      ],
    ],
    bad: [
      [null, ''],
      [[], ''],
      [{ agent_observations: [] }, 'agent_observations'],
      [{ agent_observations: 'text' }, 'agent_observations'],
      [{ resources_cookies: { a: null } }, 'resources_cookies.a'],
      [{ agent_session_id: 's' }, ''],
    ],
  },
};

for (const [name, { schema, good, bad }] of Object.entries(schemas)) {
  describe(name, () => {
    for (const [given, output] of good) {
      it(`takes ${JSON.stringify(given)}`, () => {
        const result = schema.safeParse(given);
        expect(result.error?.issues).to.equal(undefined);
        expect(result.data).to.deep.equal(output);
      });
    }

    for (const [given, path] of bad) {
      it(`refuses ${JSON.stringify(given)}${path === '' ? '' : ` because of ${path}`}`, () => {
        const { success, error } = schema.safeParse(given);
        expect(success).to.equal(false);
        expect(error?.issues.map((issue) => issue.path.join('.'))).to.deep.equal([path]);
      });
    }
  });
}

describe('bodyIssues()', () => {
  it('tells each fault of a body, where it is and what was there', () => {
    const body = { ...seed, agent_session_id: '', episode_id: { rollout_id: 'r1', attempt: -1 }, surplus: 1 };
    const { error } = agentSessionSeedSchema.safeParse(body, { reportInput: true });
    const issues = bodyIssues(error?.issues ?? []);
    expect(issues.map(({ type, loc }) => [type, loc])).to.deep.equal([
      ['too_small', ['body', 'agent_session_id']],
      ['custom', ['body', 'episode_id', 'attempt']],
      ['unrecognized_keys', ['body']],
    ]);
    expect(issues.map(({ input }) => input)).to.deep.equal(['', -1, body]);
    for (const { msg } of issues) expect(msg).to.match(/\w{3}/);
    expect(issues[1]?.msg).to.equal('must not be negative');
    expect(issues[2]?.msg).to.include('surplus');
  });

  it('counts the places of a list', () => {
    const { error } = agentSessionSeedSchema.safeParse({ ...seed, tool_accesses: [http, { ...mcp, name: '' }] });
    expect(bodyIssues(error?.issues ?? [])[0]?.loc).to.deep.equal(['body', 'tool_accesses', 1, 'name']);
  });

  it('tells no values unless they were asked for', () => {
    const { error } = agentSessionCloseSchema.safeParse({ ...close, agent_session_id: 7 });
    expect(JSON.parse(JSON.stringify(bodyIssues(error?.issues ?? [])))).to.deep.equal([
      { type: 'invalid_type', loc: ['body', 'agent_session_id'], msg: error?.issues[0]?.message },
    ]);
  });
});
