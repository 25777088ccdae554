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
  // Node 26 warns of register(), which Node 20 has alone, and for `import` alone: there, tsx lets mocha require the specs.
  if (module.registerHooks !== undefined) module.registerHooks({ resolve });
  else if (isMainThread) {
    module.register(import.meta.url);
    const { _resolveFilename: resolveFilename } = module;
    module._resolveFilename = function resolveExpress(specifier, parent, ...rest) {
      return Reflect.apply(resolveFilename, this, [aliasOf(specifier, parent?.filename), parent, ...rest]);
    };
  }
}

/** A customization hook of node:module: in this thread, or, where Node loads this file for it, in one for hooks. */
export function resolve(specifier, context, nextResolve) {
  return nextResolve(aliasOf(specifier, context.parentURL), context);
}

function aliasOf(specifier, parent) {
  return specifier === 'express' && !parent?.includes('/node_modules/') ? 'express4' : specifier;
}
