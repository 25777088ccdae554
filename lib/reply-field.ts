import type { ServerResponse } from 'node:http';
import { SessionRoutingError } from './errors.ts';
import type { RequestSession } from './request-session.ts';

/**
 * Watches for a field by which a successful reply (below 400) names a session that the app has opened: the session is claimed
 * before the head that names it is written, and the request refused if that cannot be.
 *
 * @param field its name, in lower case
 */
export function watchReplyField(
  response: ServerResponse,
  field: string,
  current: Pick<RequestSession, 'openInReply' | 'refuse'>,
): void {
  const { writeHead } = response;
  let isWatching = true;
  response.writeHead = (...args: unknown[]) => {
    const status = typeof args[0] === 'number' ? args[0] : response.statusCode;
    if (isWatching && !response.headersSent && status < 400) {
      const value = inList(args.at(-1), field) ?? response.getHeader(field);
      isWatching = status < 200; // an interim reply
      try {
        if (value !== undefined && value !== '') current.openInReply(String(value));
      } catch (error) {
        if (!(error instanceof SessionRoutingError)) throw error;
        isWatching = false;
        response.removeHeader(field);
        current.refuse(error);
        return response;
      }
    }
    return Reflect.apply(writeHead, response, args);
  };
}

/** A field among those that `writeHead()` is given: an object, a list of names and values in turn, or one of pairs. */
function inList(fields: unknown, field: string): unknown {
  if (typeof fields !== 'object' || fields === null) return undefined;
  if (!Array.isArray(fields)) return Object.entries(fields).find(([name]) => name.toLowerCase() === field)?.[1];
  const flat: unknown[] = fields.flat();
  const at = flat.findIndex((each, index) => index % 2 === 0 && String(each).toLowerCase() === field);
  return at < 0 ? undefined : flat[at + 1];
}
