/** A header block as Node has it in `rawHeaders`: names and values in turn, in the order and case they came in. */
export type RawHeaders = readonly string[];

/** The field by which a hop carries where a request came from. It never leaves the server and is never believed there. */
export const originField = 'x-session-routing-origin';

/**
 * Fields that belong to one connection (RFC 9110, section 7.6.1; RFC 9112, section 6.1): each hop sets its own. A field
 * that only `Connection` names crosses: to the app both connections are one, so it sees what it would see directly.
 * `Transfer-Encoding` frames a reply anew; a request keeps the coding it was sent with.
 */
const hopByHop = new Set(['connection', 'keep-alive', 'proxy-connection']);

/** Fields of a request that cross the hop. */
export function requestFields(raw: RawHeaders): string[] {
  return fieldsWithout(raw, (name) => hopByHop.has(name) || name === originField);
}

/** Fields of a reply that cross the hop. */
export function replyFields(raw: RawHeaders): string[] {
  return fieldsWithout(raw, (name) => hopByHop.has(name) || name === 'transfer-encoding');
}

/** The fields whose lower-case name is not to be dropped. */
export function fieldsWithout(raw: RawHeaders, drops: (name: string) => boolean): string[] {
  const kept: string[] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] ?? '';
    if (!drops(name.toLowerCase())) kept.push(name, raw[index + 1] ?? '');
  }
  return kept;
}

/** A header block as pairs, as Node takes trailers. */
export function pairsOf(raw: RawHeaders): [string, string][] {
  const pairs: [string, string][] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) pairs.push([raw[index] ?? '', raw[index + 1] ?? '']);
  return pairs;
}
