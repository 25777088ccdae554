/** A header block as Node has it in `rawHeaders`: names and values in turn, in the order and case they came in. */
export type RawHeaders = readonly string[];

/** The members of a request that hold its fields. */
export interface RequestFields {
  rawHeaders: string[];
  headers: NodeJS.Dict<string | string[]>;
  headersDistinct: NodeJS.Dict<string[]>;
}

/**
 * Begins the names that are this package's own between two workers: a field that is held crosses the hop as
 * `x-session-routing-<name>`. What a client sends under such a name is stripped.
 */
const ownPrefix = 'x-session-routing-';

/** What no field value may have, or it would end the field. Only a lenient parser lets it in. */
const unsafeValue = /[\r\n\0]/;

/** A request's fields as they cross the hop. */
export interface CrossingFields {
  /** The lines of the header block; undefined where a field cannot be written. */
  readonly lines: string | undefined;
  /** Whether some are held, so that the other end has to give them their names again. */
  readonly areHeld: boolean;
}

/**
 * A request's fields as they cross the hop: all of them, in order and case, except those of this package's own.
 *
 * @param holds whether to hold those on which Node would act
 */
export function crossingFields(raw: RawHeaders, holds: boolean): CrossingFields {
  let lines = '';
  let areHeld = false;
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const [name = '', value = ''] = [raw[index], raw[index + 1]];
    if (isOwn(name)) continue;
    if (unsafeValue.test(value)) return { lines: undefined, areHeld };
    if (holds && isHeld(name, value)) {
      areHeld = true;
      lines += ownPrefix;
    }
    lines += `${name}: ${value}\r\n`;
  }
  return { lines, areHeld };
}

/**
 * Whether Node's HTTP server would act on a field between two workers. It crosses under another name, so that the hop
 * keeps its connection by itself, and the app sees the field as its client sent it.
 *
 * - `Connection` is about the client's own connection (RFC 9110, section 7.6.1), and Node's parser takes
 *   `Proxy-Connection` for the same.
 * - It is the app, if anybody, who is to meet what `Expect` says.
 */
function isHeld(name: string, value: string): boolean {
  if (name.length !== 6 && name.length !== 10 && name.length !== 16) return false; // as most
  const lowerCase = name.toLowerCase();
  // The one value that says of the hop what holds for it anyway.
  if (lowerCase === 'connection' && value.toLowerCase() === 'keep-alive') return false;
  return isHeldName(lowerCase);
}

function isHeldName(lowerCase: string): boolean {
  return lowerCase === 'connection' || lowerCase === 'expect' || lowerCase === 'proxy-connection';
}

/** Gives the held fields of a request that came out of a hop their names again. */
export function restoreFields(request: RequestFields): void {
  const { rawHeaders } = request;
  const restored: NodeJS.Dict<string> = {};
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    const [name = '', value = ''] = [withoutPrefix(rawHeaders[index] ?? ''), rawHeaders[index + 1]];
    rawHeaders[index] = name;
    const key = name.toLowerCase();
    restored[key] = restored[key] === undefined ? value : `${restored[key]}, ${value}`;
  }
  const headers: RequestFields['headers'] = {};
  for (const [name, value] of Object.entries(request.headers)) {
    const key = withoutPrefix(name);
    // A field may have been held one time and not another.
    headers[key] = isHeldName(key) ? restored[key] : value;
  }
  request.headers = headers;
}

function withoutPrefix(name: string): string {
  return isOwn(name) ? name.slice(ownPrefix.length) : name;
}

/** Removes this package's own fields from a request that came over a public port: there they mean nothing. */
export function stripOwnFields(request: RequestFields): void {
  const { rawHeaders } = request;
  if (!rawHeaders.some((each, index) => index % 2 === 0 && isOwn(each))) return;
  const raw = pairsOf(rawHeaders).flatMap((pair) => (isOwn(pair[0]) ? [] : pair));
  const headers = Object.fromEntries(Object.entries(request.headers).filter(([name]) => !isOwn(name)));
  // Node makes `headersDistinct` on first use, from as many raw fields as it once parsed, so it is made here.
  const headersDistinct = Object.create(null) as RequestFields['headersDistinct'];
  for (const [name, value] of pairsOf(raw)) (headersDistinct[name.toLowerCase()] ??= []).push(value);
  Object.assign(request, { rawHeaders: raw, headers, headersDistinct });
}

function isOwn(name: string): boolean {
  return name.length > ownPrefix.length && name.slice(0, ownPrefix.length).toLowerCase() === ownPrefix;
}

/** A header block as pairs. */
function pairsOf(raw: RawHeaders): [string, string][] {
  const pairs: [string, string][] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) pairs.push([raw[index] ?? '', raw[index + 1] ?? '']);
  return pairs;
}

/** The lines of trailers, as they stand behind a body in chunks; undefined where one cannot be written. */
export function trailerLines(raw: RawHeaders): string | undefined {
  if (raw.some((each) => unsafeValue.test(each))) return undefined;
  return pairsOf(raw)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
}
