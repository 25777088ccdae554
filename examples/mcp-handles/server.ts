// The MCP handles on several workers: `WORKERS=4 npx tsx examples/mcp-handles/server.ts`.
import { runWorkers } from 'express-session-routing/cluster';

const { runtimeDirectory, pids } = await runWorkers({
  exec: new URL('./app.ts', import.meta.url),
  workers: Number(process.env.WORKERS ?? 4),
});
console.log(`Workers: ${pids.join(', ')}. Runtime directory: ${runtimeDirectory}`);
