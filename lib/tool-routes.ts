import type { Express } from 'express';

/** What is looked at of a layer of an Express app or router, of the lines 4 and 5. */
interface Layer {
  readonly route?: { readonly path: unknown; readonly methods: { readonly post?: boolean } };
  readonly handle?: { readonly stack?: readonly Layer[] };
  /** Whether a router is mounted at the root (Express 5). */
  readonly slash?: boolean;
  /** The same in Express 4. */
  readonly regexp?: { readonly fast_slash?: boolean };
}

/**
 * The paths of an app's POST routes that have no parameter, without their slashes at the end, in the order in which they
 * were added. Routes of routers that are mounted at the root are among them; those of routers mounted below a path are
 * not, since Express keeps no path of theirs that could be read.
 */
export function postRoutesOf(app: Express): string[] {
  // Express 4 throws for `app.router`.
  const { _router: router = ownRouter(app) } = app as unknown as { _router?: { stack?: readonly Layer[] } };
  return [...new Set(routesIn(router?.stack ?? []))];
}

function ownRouter(app: Express): { stack?: readonly Layer[] } | undefined {
  try {
    return (app as unknown as { router?: { stack?: readonly Layer[] } }).router;
  } catch {
    return undefined; // an app of Express 4 that has no route yet
  }
}

function routesIn(layers: readonly Layer[]): string[] {
  return layers.flatMap(({ route, handle, slash, regexp }) => {
    if (route !== undefined) {
      return route.methods.post ? [route.path].flat().flatMap(literalPath) : [];
    }
    const isAtRoot = slash === true || regexp?.fast_slash === true;
    return isAtRoot && Array.isArray(handle?.stack) ? routesIn(handle.stack) : [];
  });
}

/** A path of which every character stands for itself, in both lines of Express. */
function literalPath(path: unknown): string[] {
  if (typeof path !== 'string' || !/^(\/[\w.~%@,;=&-]+)+\/?$/.test(path)) return [];
  return [path.replace(/\/$/, '')];
}
