import { expect } from 'chai';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';

const describeStress = process.env['SESSION_ROUTING_STRESS'] === '1' ? describe : describe.skip;
const file = fileURLToPath(new URL('run.ts', import.meta.url));

interface Check {
  readonly name: string;
  readonly isRight: boolean;
}

async function stress(env: Record<string, string>): Promise<{ status: unknown; checks: readonly Check[] }> {
  const child = spawn(process.execPath, ['--import', 'tsx', file, '--json'], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [[status], output] = await Promise.all([once(child, 'exit'), text(child.stdout)]);
  return { status, ...JSON.parse(output) };
}

describeStress('the stress run', function () {
  this.timeout(600_000);

  it('finds nothing wrong', async () => {
    const { status, checks } = await stress({});
    expect(checks.filter(({ isRight }) => !isRight)).to.deep.equal([]);
    expect([status, checks.length]).to.deep.equal([0, 11]);
  });

  it('finds everything wrong that the routing is there for, where it is off', async () => {
    const { status, checks } = await stress({ ROUTING: 'off' });
    const right = checks.filter(({ isRight }) => isRight).map(({ name }) => name);
    // Without routing nothing is claimed, and a counter is no less strict.
    expect(right).to.deep.equal(['claims', 'strict']);
    expect(status).to.equal(1);
  });
});
