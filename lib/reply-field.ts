import type { ServerResponse } from 'node:http';
import { SessionRoutingError } from './errors.ts';
import type { RequestSession } from './request-session.ts';

/**
 * Watches for a field by which a reply names a session that the app has opened: the session is claimed before the head
 * that names it is written, and the request refused if that cannot be.
 *
 * @param field its name, in lower case
 */
export function watchReplyField(
  response: ServerResponse,
  field: string,
  current: Pick<RequestSession, 'openInReply' | 'refuse'>,
): void {
  const { writeHead, write, end } = response;
  let isWatching = true;
  response.writeHead = (...args: unknown[]) => {
    const status = typeof args[0] === 'number' ? args[0] : response.statusCode;
    if (isWatching && !response.headersSent) {
      const value = asSent(inList(args.at(-1), field) ?? response.getHeader(field));
      isWatching = status < 200; // an interim reply
      try {
        if (value !== '') current.openInReply(value, status);
      } catch (error) {
        if (!(error instanceof SessionRoutingError)) throw error;
        isWatching = false;
        response.removeHeader(field);
        // Without what middleware has wrapped them in since, which may be in the middle of the reply that is dropped.
        Object.assign(response, { writeHead, write, end });
        current.refuse(error);
        return response;
      }
    }
    return Reflect.apply(writeHead, response, args);
  };
}

/** A field's value as its receiver has it: without the blanks around it, and joined where there are several (RFC 9110, 5.3). */
function asSent(value: unknown): string {
  const values = Array.isArray(value) ? value : [value ?? ''];
  return values.map((each) => String(each).replace(/^[ \t]+|[ \t]+$/g, '')).join(', ');
}

/** A field among those that `writeHead()` is given: an object, a list of names and values in turn, or one of pairs. */
function inList(fields: unknown, field: string): unknown {
  if (typeof fields !== 'object' || fields === null) return undefined;
  if (!Array.isArray(fields)) return Object.entries(fields).find(([name]) => name.toLowerCase() === field)?.[1];
  const flat: unknown[] = Array.isArray(fields[0]) ? fields.flat() : fields;
  const at = flat.findIndex((each, index) => index % 2 === 0 && String(each).toLowerCase() === field);
  return at < 0 ? undefined : flat[at + 1];
}
