import type { IncomingMessage } from 'node:http';
import { pathBelow } from './exchange.ts';
import { escaped } from './route-pattern.ts';
import type { SessionKind } from './session-kind.ts';

/**
 * What is to be said of a request that was routed in front of the server, by its whole path, and whose session would be named
 * otherwise by the path below the mount that it has reached: the kind does not know of the mount.
 *
 * @param namedOn the session that the head of the request names on a path
 */
export function misplaced(
  request: IncomingMessage & { baseUrl?: string; originalUrl?: string },
  kind: Pick<SessionKind, 'basePath' | 'bodyReader'>,
  namedOn: (path: string) => string | undefined,
): Error | undefined {
  const { baseUrl = '' } = request;
  if (baseUrl === '') return undefined;
  const { method = '', url = '', originalUrl = url } = request;
  const [below, seen] = [pathBelow('', url), pathBelow(kind.basePath, originalUrl)];
  const readsBody = (path: string): boolean => kind.bodyReader(method, path, false) !== undefined;
  const isBodyMissed = readsBody(below) && !readsBody(seen);
  if (!isBodyMissed && namedOn(below) === namedOn(seen)) return undefined;
  return new Error(
    `The session routing cannot tell that ${method} ${originalUrl} names its session in its ` +
      `${isBodyMissed ? 'body' : 'path'}. The routes are mounted below ${baseUrl}: give the kind basePath: '${baseUrl}'.`,
  );
}

/**
 * Makes the function that warns, once, of a request whose path ends like that of a route which names its session in the
 * body, and is another: the routes seem to be mounted below a path that the kind was not told of, where nobody would read
 * the body. It is a warning only, since the app may have other routes that end so.
 */
export function mountWarning(paths: readonly string[], basePath: string): (method: string, path: string) => void {
  const below = new RegExp(`^(/.+?)(${paths.map(escaped).join('|')})/?$`, 'i');
  let hasWarned = false;
  return function warnOfMount(method, path) {
    if (hasWarned || method !== 'POST') return;
    const [, mount, end = ''] = below.exec(path) ?? [];
    if (mount === undefined) return;
    hasWarned = true;
    const route = paths.find((each) => each.toLowerCase() === end.toLowerCase()) ?? end;
    const message =
      `The session routing does not read the body of POST ${basePath}${path}, since the route that it knows is POST ` +
      `${basePath}${route}. If the routes are mounted below ${basePath}${mount}, give the kind basePath: '${basePath}${mount}'.`;
    process.emitWarning(message, { type: 'SessionRoutingWarning', code: 'SESSION_ROUTE_UNKNOWN' });
  };
}
