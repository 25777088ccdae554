import type { IncomingHttpHeaders } from 'node:http';

/** A header block as Node has it in `rawHeaders`: names and values in turn, in the order and case they came in. */
export type RawHeaders = readonly string[];

/** The members of a request that hold its fields. */
export interface RequestFields {
  rawHeaders: string[];
  headers: NodeJS.Dict<string | string[]>;
  headersDistinct: NodeJS.Dict<string[]>;
}

/** The members of a request that hold its trailers. */
export interface RequestTrailers {
  rawTrailers: string[];
  trailers: NodeJS.Dict<string>;
  trailersDistinct: NodeJS.Dict<string[]>;
}

/**
 * Begins the names that are this package's own between two workers: a field that is held crosses the hop as
 * `x-session-routing-<name>`. What a client sends under such a name is stripped.
 */
const ownPrefix = 'x-session-routing-';

/** What no field value may have, or it would end the field. Only a lenient parser lets it in. */
const unsafeValue = /[\r\n\0]/;

/** How the end of a request's body is told on the hop (RFC 9112, section 6.3): by its length in bytes, or in chunks. */
export type Framing = number | 'chunked';

/** A request's fields as they cross the hop. */
export interface CrossingFields {
  /** The lines of the header block; undefined where a field cannot be written. */
  readonly lines: string | undefined;
  readonly framing: Framing;
  /** Whether some are held, so that the other end has to give them their names again. */
  readonly areHeld: boolean;
  /** Whether the last of them is the hop's own, and says how the body is framed. */
  readonly isFramed: boolean;
}

/**
 * A request's fields as they cross the hop: all of them, in order and case, except those of this package's own. Those
 * on which Node's HTTP server would act between two workers are held, so that the hop keeps its connection by itself.
 *
 * A body is framed as its client framed it, where nobody can understand that in two ways. Otherwise the hop holds what
 * the client says of it, and frames the body by itself: what one parser takes for a body must never be another's next
 * request.
 *
 * @param maximumFields as many as the server tells its app of; what is behind may have said that there is a body
 */
export function crossingFields(raw: RawHeaders, maximumFields: number): CrossingFields {
  let lines = '';
  let areHeld = false;
  let framing: Framing | undefined;
  let isPlain = raw.length < 2 * maximumFields;
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const [name = '', value = ''] = [raw[index], raw[index + 1]];
    if (isOwn(name)) continue;
    if (unsafeValue.test(value)) return { lines: undefined, framing: 0, areHeld, isFramed: false };
    if (isAboutBody(name)) {
      isPlain &&= framing === undefined;
      framing = name.length === lengthName.length ? lengthOf(value) : codingOf(value);
      isPlain &&= framing !== undefined;
    } else if (isHeld(name, value)) {
      areHeld = true;
      lines += ownPrefix;
    }
    lines += `${name}: ${value}\r\n`;
  }
  if (isPlain) return { lines, framing: framing ?? 0, areHeld, isFramed: false };
  const held = /^(?=(?:content-length|transfer-encoding|connection|expect|proxy-connection):)/gim;
  return { lines: lines.replace(held, ownPrefix) + ownFraming, framing: 'chunked', areHeld: true, isFramed: true };
}

/**
 * Fields as lines, one behind the other, except those of this package's own: trailers, or the fields of an upgrade
 * request, of which none is held, because the connection is one client's for good.
 *
 * @returns undefined where a field cannot be written
 */
export function fieldLines(raw: RawHeaders): string | undefined {
  let lines = '';
  for (const [name, value] of pairsOf(raw)) {
    if (isOwn(name)) continue;
    if (unsafeValue.test(value)) return undefined;
    lines += `${name}: ${value}\r\n`;
  }
  return lines;
}

const lengthName = 'content-length';
const codingName = 'transfer-encoding';
/** How the hop itself frames a body. Where it does, what the client says of its body is held. */
const ownFraming = `${codingName}: chunked\r\n`;

function isAboutBody(name: string): boolean {
  if (name.length === lengthName.length) return name.toLowerCase() === lengthName;
  return name.length === codingName.length && name.toLowerCase() === codingName;
}

function lengthOf(value: string): number | undefined {
  return /^\d{1,15}$/.test(value) ? Number(value) : undefined;
}

function codingOf(value: string): 'chunked' | undefined {
  return /^(?:[\w-]+[ \t]*,[ \t]*)*chunked$/i.test(value) ? 'chunked' : undefined;
}

/**
 * Whether a field is held for what it is about.
 *
 * - `Connection` is about the client's own connection (RFC 9110, section 7.6.1), and Node's parser takes
 *   `Proxy-Connection` for the same.
 * - It is the app, if anybody, who is to meet what `Expect` says.
 */
function isHeld(name: string, value: string): boolean {
  if (name.length !== 6 && name.length !== 10 && name.length !== 16) return false; // as most
  const lowerCase = name.toLowerCase();
  // The one value that says of the hop what holds for it anyway.
  if (lowerCase === 'connection') return value.toLowerCase() !== 'keep-alive';
  return lowerCase === 'expect' || lowerCase === 'proxy-connection';
}

/**
 * Gives the held fields of a request that came out of a hop their names again.
 *
 * @param isFramed whether the hop added a field, which is removed
 */
export function restoreFields(request: RequestFields, isFramed: boolean): void {
  const { rawHeaders, headers } = request;
  // Behind more fields than a server counts, it may not be there.
  if (isFramed && rawHeaders.at(-2) === codingName) rawHeaders.length -= 2;
  const isCounted = isFramed && codingName in headers;
  if (isCounted) delete headers[codingName];
  for (let index = 0; index < rawHeaders.length; index += 2) rawHeaders[index] = withoutPrefix(rawHeaders[index] ?? '');
  const restored: RequestFields['headers'] = {};
  for (const [name, value] of Object.entries(headers)) {
    const key = withoutPrefix(name);
    // A field may have been held one time and not another.
    restored[key] = key in restored || (key !== name && key in headers) ? valuesOf(rawHeaders, key) : value;
  }
  request.headers = restored;
  if (isCounted) request.headersDistinct = distinct(rawHeaders);
}

function withoutPrefix(name: string): string {
  return isOwn(name) ? name.slice(ownPrefix.length) : name;
}

function valuesOf(raw: RawHeaders, key: string): string {
  return (distinct(raw)[key] ?? []).join(', ');
}

/** Whether a request says that it has a body. */
export function hasBody({ headers }: { readonly headers: IncomingHttpHeaders }): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

/** Removes this package's own fields from a request that came over a public port: there they mean nothing. */
export function stripOwnFields(request: RequestFields): void {
  if (!hasOwn(request.rawHeaders)) return;
  const { rawHeaders, headers } = request;
  request.rawHeaders = strippedRaw(rawHeaders);
  request.headers = strippedKeys(headers);
  // Node makes this on first use, from as many raw fields as it once parsed, so it is made here.
  request.headersDistinct = distinct(request.rawHeaders);
}

/** Takes a field off a request, as if its client had not sent it. */
export function removeField(request: RequestFields, field: string): void {
  request.rawHeaders = pairsOf(request.rawHeaders).flatMap((pair) => (pair[0].toLowerCase() === field ? [] : pair));
  request.headers = Object.fromEntries(Object.entries(request.headers).filter(([name]) => name !== field));
  request.headersDistinct = distinct(request.rawHeaders);
}

/** The same for trailers, once they have come. */
export function stripOwnTrailers(request: RequestTrailers): void {
  if (!hasOwn(request.rawTrailers)) return;
  const { rawTrailers, trailers } = request;
  request.rawTrailers = strippedRaw(rawTrailers);
  request.trailers = strippedKeys(trailers);
  request.trailersDistinct = distinct(request.rawTrailers);
}

function hasOwn(raw: RawHeaders): boolean {
  for (let index = 0; index < raw.length; index += 2) if (isOwn(raw[index] ?? '')) return true;
  return false;
}

function strippedRaw(raw: RawHeaders): string[] {
  return pairsOf(raw).flatMap((pair) => (isOwn(pair[0]) ? [] : pair));
}

function strippedKeys<Value>(fields: NodeJS.Dict<Value>): NodeJS.Dict<Value> {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !isOwn(name)));
}

/** The values of each field, by its name in lower case. */
function distinct(raw: RawHeaders): NodeJS.Dict<string[]> {
  const fields = Object.create(null) as NodeJS.Dict<string[]>;
  for (const [name, value] of pairsOf(raw)) (fields[name.toLowerCase()] ??= []).push(value);
  return fields;
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

/** Whether Node's parser would act on one of these trailers as if it stood in the head, and end the connection. */
export function endsConnection(rawTrailers: RawHeaders): boolean {
  return pairsOf(rawTrailers).some(([name]) => /^(?:proxy-)?connection$/i.test(name));
}
