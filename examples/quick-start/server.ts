import { runWorkers } from 'express-session-routing/cluster';

await runWorkers({ exec: new URL('./app.ts', import.meta.url), workers: 4 });
