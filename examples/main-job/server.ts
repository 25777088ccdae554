// The server of examples/counter, which ends with the process that started it, however that one ends.
process.once('disconnect', () => process.kill(process.pid, 'SIGTERM'));
await import('../counter/server.ts');
