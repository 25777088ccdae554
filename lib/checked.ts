import { z } from 'zod';

/**
 * Parses options with a strict schema.
 *
 * @throws TypeError that names the caller, the key that is refused or unknown, and the key that was likely meant
 */
export function checked<Schema extends z.ZodObject>(
  caller: string,
  schema: Schema,
  options: unknown,
): z.output<Schema> {
  const result = schema.safeParse(options ?? {});
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  if (issue?.code === 'unrecognized_keys') {
    const [unknown = ''] = issue.keys;
    const keys = Object.keys(schema.shape);
    const meant =
      keys.find((key) => contains(key, unknown)) ??
      keys.find((key) => contains(unknown, key)) ??
      keys.find((key) => beginsAlike(key, unknown));
    throw new TypeError(`${caller} has no option "${unknown}"${meant ? `; did you mean "${meant}"?` : ''}`);
  }
  const key = issue?.path.map(String).join('.');
  throw new TypeError(`${caller}: ${key ? `option "${key}"` : 'the options'}: ${issue?.message ?? 'refused'}`);
}

/** A path of a route. */
export const path = z
  .string()
  .startsWith('/', 'must begin with a slash')
  .regex(/^[^\s?#]*$/, 'must be a path without a query');

/** A path below which an app's routes are mounted, without its trailing slash. */
export const basePath = z
  .string()
  .regex(/^(\/[^?#]*)?$/, 'must be a path that begins with a slash')
  .transform((value) => value.replace(/\/+$/, ''));

/** Entries of `routePattern()`. */
export const routes = z.array(z.string().regex(/^([A-Za-z]+ )?\/[^\s?#]*$/, 'must be "/path" or "METHOD /path"'));

export const seconds = z.number().positive().finite();

export const headerField = z
  .string()
  .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'must be a field name (RFC 9110, section 5.1)');

/** A function of which only its caller knows what it takes. */
export function functionSchema<Type extends (...args: never[]) => unknown>(): z.ZodType<Type> {
  return z.custom<Type>((value) => typeof value === 'function', 'must be a function');
}

function contains(whole: string, part: string): boolean {
  return whole.toLowerCase().includes(part.toLowerCase());
}

function beginsAlike(key: string, written: string): boolean {
  const [a, b] = [key.toLowerCase(), written.toLowerCase()];
  return a.startsWith(b.slice(0, 4)) || b.startsWith(a.slice(0, 4));
}
