import type { IncomingMessage } from 'node:http';
import { pathBelow } from './exchange.ts';
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
