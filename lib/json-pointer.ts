/**
 * Makes the function that finds a value in a JSON document.
 *
 * @param pointer a JSON pointer (RFC 6901), such as `/game/id`; `''` is the whole document
 * @returns a function that gives undefined where the document has nothing in that place
 * @throws TypeError for what is no JSON pointer
 */
export function jsonPointer(pointer: string): (document: unknown) => unknown {
  return valueFinder(pointerNames(pointer));
}

/**
 * The names that a JSON pointer goes by, from the outermost to the innermost.
 *
 * @throws TypeError for what is no JSON pointer
 */
export function pointerNames(pointer: string): string[] {
  if (typeof pointer !== 'string' || !/^(\/([^/~]|~[01])*)*$/.test(pointer)) {
    throw new TypeError(
      `A JSON pointer is '' or begins with a slash (RFC 6901, section 3), unlike ${JSON.stringify(pointer)}`,
    );
  }
  return pointer
    .split('/')
    .slice(1)
    .map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** As {@link jsonPointer}, by the names of the pointer. */
export function valueFinder(names: readonly string[]): (document: unknown) => unknown {
  return function valueAt(document) {
    let value = document;
    for (const name of names) {
      if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
      if (Array.isArray(value) && name === 'length') return undefined;
      value = (value as Record<string, unknown>)[name];
    }
    return value;
  };
}
