/** A header block as Node has it in `rawHeaders`: names and values in turn, in the order and case they came in. */
export type RawHeaders = readonly string[];

/** Begins the names that are this package's own between two workers. What a client sends under them is stripped. */
const ownPrefix = 'x-session-routing-';

/** The field by which a hop carries where a request came from. Every field behind it is the hop's own, too. */
export const originField = `${ownPrefix}origin`;

/**
 * Fields of a request on which Node's HTTP client and server would act between two workers. They cross under another
 * name, so that the hop frames and keeps its connection by itself, and the app sees them as its client sent them.
 *
 * - `Connection` is about the client's own connection (RFC 9110, section 7.6.1), and Node's parser takes
 *   `Proxy-Connection` for the same.
 * - With `Expect`, Node sends the head in UTF-8; and it is the app, if anybody, who is to meet the expectation.
 * - Node refuses to send `Trailer` without a chunked body, and takes a `Content-Disposition` behind the length for UTF-8.
 */
export const heldFields: ReadonlySet<string> = new Set([
  'connection',
  'proxy-connection',
  'expect',
  'trailer',
  'content-disposition',
]);

/** The members of a request that hold its fields. */
export interface RequestFields {
  rawHeaders: string[];
  headers: NodeJS.Dict<string | string[]>;
  headersDistinct: NodeJS.Dict<string[]>;
}

/** A request's fields as they cross the hop: all of them, except those that are this package's own. */
export function requestFields(raw: RawHeaders, held: ReadonlySet<string>): string[] {
  const fields: string[] = [];
  for (const [name, value] of pairsOf(raw)) {
    if (isOwn(name)) continue;
    fields.push(held.has(name.toLowerCase()) ? ownPrefix + name : name, value);
  }
  return fields;
}

/**
 * Gives a request that came out of a hop the fields that its client sent.
 *
 * @returns the value of the origin field; undefined, and the request is left as it is, where there is none
 */
export function restoreFields(request: RequestFields): string | undefined {
  const { rawHeaders } = request;
  const end = rawHeaders.findIndex((name, index) => index % 2 === 0 && name === originField);
  if (end === -1) return undefined;
  const hopsOwn = new Set(pairsOf(rawHeaders.slice(end)).map(([name]) => name.toLowerCase()));
  const raw = pairsOf(rawHeaders.slice(0, end)).flatMap(([name, value]) => [withoutPrefix(name), value]);
  replaceFields(request, raw, (name) => (hopsOwn.has(name) ? undefined : withoutPrefix(name)));
  return rawHeaders[end + 1];
}

/** Removes this package's own fields from a request that came over a public port: there they mean nothing. */
export function stripOwnFields(request: RequestFields): void {
  if (!request.rawHeaders.some((each, index) => index % 2 === 0 && isOwn(each))) return;
  const raw = pairsOf(request.rawHeaders).flatMap((pair) => (isOwn(pair[0]) ? [] : pair));
  replaceFields(request, raw, (name) => (isOwn(name) ? undefined : name));
}

function isOwn(name: string): boolean {
  return name.length > ownPrefix.length && name.slice(0, ownPrefix.length).toLowerCase() === ownPrefix;
}

function withoutPrefix(name: string): string {
  return isOwn(name) ? name.slice(ownPrefix.length) : name;
}

/** (Node makes `headersDistinct` on first use, from as many raw fields as it once parsed, so it is made here.) */
function replaceFields(request: RequestFields, raw: string[], nameOf: (name: string) => string | undefined): void {
  const headers: RequestFields['headers'] = {};
  for (const [name, value] of Object.entries(request.headers)) {
    const kept = nameOf(name);
    if (kept !== undefined) headers[kept] = value;
  }
  const headersDistinct = Object.create(null) as RequestFields['headersDistinct'];
  for (const [name, value] of pairsOf(raw)) (headersDistinct[name.toLowerCase()] ??= []).push(value);
  Object.assign(request, { rawHeaders: raw, headers, headersDistinct });
}

/**
 * A reply's fields as they go to the client. `Keep-Alive`, and the `Connection` that Node adds, are about the hop; any
 * other `Connection` is what the app says to its client.
 */
export function replyFields(raw: RawHeaders): string[] {
  const fields: string[] = [];
  let lengthAt = -1;
  for (const [name, value] of pairsOf(raw)) {
    const lowerCase = name.toLowerCase();
    if (lowerCase === 'keep-alive' || (lowerCase === 'connection' && value === 'keep-alive')) continue;
    if (lowerCase === 'content-length') lengthAt = fields.length;
    fields.push(name, value);
    // Behind the length, Node would take the bytes of such a value for UTF-8.
    const isGarbled = lowerCase === 'content-disposition' && lengthAt !== -1 && /[\x80-\xff]/.test(value);
    if (isGarbled) fields.push(...fields.splice(lengthAt, 2));
  }
  return fields;
}

/** A header block as pairs, as Node takes trailers. */
export function pairsOf(raw: RawHeaders): [string, string][] {
  const pairs: [string, string][] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) pairs.push([raw[index] ?? '', raw[index + 1] ?? '']);
  return pairs;
}
