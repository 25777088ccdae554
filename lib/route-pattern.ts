/** A rollout's prefix, under which every route of a resources or agent server answers too. */
const ROLLOUT_PREFIX = '(?:/ng-rollout/[^/]+(?:/[^/]+)?)?';

/**
 * Tells whether a request is for one of some routes.
 *
 * @param entries `'/path'` (POST) or `'METHOD /path'`; the path is taken literally.
 * @returns a function of the request's method and its path without a query. It matches as loosely as Express may match
 *   a route: any case, one trailing slash more or less, HEAD where the route answers GET; a backslash as itself or as a
 *   slash (Express takes it for the one or the other, by what else the target holds); bare or under a rollout prefix.
 * @throws TypeError if an entry is neither.
 */
export function routePattern(entries: readonly string[]): (method: string, path: string) => boolean {
  const pathsOf = new Map<string, string[]>();
  for (const entry of entries) {
    const [, method = 'POST', path = ''] = ENTRY.exec(entry) ?? invalid(entry);
    for (const answered of method.toUpperCase() === 'GET' ? ['GET', 'HEAD'] : [method.toUpperCase()]) {
      pathsOf.set(answered, [...(pathsOf.get(answered) ?? []), escaped(path)]);
    }
  }
  const patternOf = new Map<string, RegExp>();
  for (const [method, paths] of pathsOf) {
    patternOf.set(method, new RegExp(`^${ROLLOUT_PREFIX}(?:${paths.join('|')})/?$`, 'i'));
  }
  return function matchesRoute(method, path) {
    const pattern = patternOf.get(method);
    if (pattern === undefined) return false;
    return pattern.test(path) || (path.includes('\\') && pattern.test(slashed(path)));
  };
}

/**
 * Tells whether a path is one that is given, or below it, as loosely as {@link routePattern}.
 *
 * @param root a path that begins with a slash; it is taken literally
 */
export function pathPattern(root: string): (path: string) => boolean {
  const pattern = new RegExp(`^${ROLLOUT_PREFIX}${escaped(root.replace(/\/$/, '') || '/')}(?:/|$)`, 'i');
  return (path) => pattern.test(path) || (path.includes('\\') && pattern.test(slashed(path)));
}

/** A path and the forms that it has under a rollout's prefix, as Express takes them. */
export function rolloutPaths(path: string): string[] {
  return [path, `/ng-rollout/:rollout${path}`, `/ng-rollout/:rollout/:part${path}`];
}

/** A path with slashes in the place of its backslashes, and one for each run of them. */
export function slashed(path: string): string {
  return path.replace(/[\\/]+/g, '/');
}

/** A method, if any, and the path without its trailing slash. */
const ENTRY = /^(?:([A-Za-z-]+) )?(\/|\/\S*[^\s/])\/?$/;

function invalid(entry: string): never {
  throw new TypeError(`A route is '/path' (POST) or 'METHOD /path', not ${JSON.stringify(entry)}`);
}

/** A path, taken literally in a pattern. */
export function escaped(path: string): string {
  return path === '/' ? '' : path.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');
}
