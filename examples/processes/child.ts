// Runs the example that its first argument names, which ends with the process that started it, however that one ends.
process.once('disconnect', () => process.kill(process.pid, 'SIGTERM'));
const file = process.argv[2];
if (file === undefined) throw new Error('child.ts needs the file of an example');
await import(new URL(`../${file}`, import.meta.url).href);
