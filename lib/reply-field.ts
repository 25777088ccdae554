import type { ServerResponse } from 'node:http';

/**
 * Watches for a field by which a reply names a session: once, before the head that carries it is written.
 *
 * @param field its name, in lower case
 * @param onNamed is told its value, if the reply succeeds (below 400). What it throws is given to `onError`, and the head is
 *   not written.
 */
export function watchReplyField(
  response: ServerResponse,
  field: string,
  onNamed: (value: string) => void,
  onError: (error: unknown) => void,
): void {
  const { writeHead } = response;
  let isWatching = true;
  response.writeHead = (...args: unknown[]) => {
    if (isWatching && !response.headersSent) {
      const status = typeof args[0] === 'number' ? args[0] : response.statusCode;
      const value = status < 400 ? (inList(args.at(-1), field) ?? response.getHeader(field)) : undefined;
      if (status >= 200) isWatching = false;
      try {
        if (value !== undefined && value !== '') onNamed(String(value));
      } catch (error) {
        onError(error);
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
