// Counts in 200 sessions at once, over MCP with nothing but their tokens: `npx tsx examples/mcp/client.ts`, beside
// `npx tsx examples/mcp/server.ts`, or beside `ROUTING=off npx tsx examples/mcp/server.ts` to see what goes wrong.
import { countOverMcp } from './sequence.ts';

const { URL: url = 'http://127.0.0.1:3000', SEQUENCES = '200' } = process.env;

const counts = await Promise.allSettled(
  Array.from({ length: Number(SEQUENCES) }, (_, initialCount) => countOverMcp(url, initialCount)),
);
const right = counts.filter((count, index) => count.status === 'fulfilled' && count.value === index + 3);
console.log(`${right.length} of ${counts.length} sequences counted right.`);
