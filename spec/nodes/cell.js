// Loaded ahead of everything else into each process of a cell of the matrix, the workers that specs fork among them
// (NODE_OPTIONS of run.ts). JavaScript, because tsx is loaded after it.
import { appendFileSync } from 'node:fs';
import module from 'node:module';
import { isMainThread } from 'node:worker_threads';

const { CELL_NODE, CELL_EXPRESS, CELL_STRANGERS } = process.env;

// A process that runs another Node than its cell would prove nothing about it.
if (isMainThread && CELL_STRANGERS !== undefined && process.version !== CELL_NODE) {
  appendFileSync(CELL_STRANGERS, `${process.version} ${process.execPath} ${process.argv.slice(1).join(' ')}\n`);
}

// What `express` means to lib, spec and examples. Packages that depend on an Express of their own keep it. The types
// that everything was checked with are those of Express 5 in any case.
if (CELL_EXPRESS === '4') {
  // Node 26 warns of register(), which Node 20 has alone.
  if (module.registerHooks !== undefined) module.registerHooks({ resolve });
  else if (isMainThread) module.register(import.meta.url);
}

/** A customization hook of node:module: in this thread, or, where Node loads this file for it, in one for hooks. */
export function resolve(specifier, context, nextResolve) {
  const isOurs = context.parentURL === undefined || !context.parentURL.includes('/node_modules/');
  return nextResolve(specifier === 'express' && isOurs ? 'express4' : specifier, context);
}
