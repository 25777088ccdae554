import cookieParser from 'cookie-parser';
import { sign } from 'cookie-signature';
import type { Request, Response } from 'express';
import { BoundedMap } from './bounded-map.ts';
import { SessionRoutingError } from './errors.ts';

const MAXIMUM_ID_BYTES = 4096;

/** How many Cookie headers are remembered, and how long they may be: some 5 MB at the most. */
const REMEMBERED_HEADERS = 10_000;
const REMEMBERED_LENGTH = 512;

/**
 * Passes a session ID on if it is one: well-formed Unicode of 1 to 4,096 UTF-8 bytes.
 *
 * Lone surrogates are refused because they all become the same bytes, so that two sessions would share a claim.
 *
 * @returns the value, unchanged
 * @throws SessionRoutingError `SESSION_ID_INVALID`, with a sentence that does not repeat the value
 */
export function checkSessionId(value: string): string {
  if (value === '') throw new SessionRoutingError('SESSION_ID_INVALID', 'The session ID is empty.');
  // The pattern matches only surrogates that stand alone, since the flag makes a pair one character.
  if (/\p{Surrogate}/u.test(value)) {
    throw new SessionRoutingError('SESSION_ID_INVALID', 'The session ID is not well-formed Unicode.');
  }
  const bytes = Buffer.byteLength(value);
  if (bytes > MAXIMUM_ID_BYTES) {
    const detail = `The session ID has ${bytes} UTF-8 bytes; at most ${MAXIMUM_ID_BYTES} are allowed.`;
    throw new SessionRoutingError('SESSION_ID_INVALID', detail);
  }
  return value;
}

/** Reads the session ID from a Cookie header: undefined where it carries none that is validly signed. */
export type SignedCookieReader = (cookieHeader: string | undefined) => string | undefined;

/**
 * Makes the function that finds in a Cookie header the ID that express-session would find in it: in the first cookie
 * of that name, signed with any of the secrets. A cookie that express-session would reject counts as no cookie, and so
 * does one whose ID is empty. Headers whose signature was verified lately are remembered, for verifying costs as much as
 * all the rest of the routing.
 *
 * @param name name of the session cookie
 * @param secrets the secrets that express-session is given, in any order
 */
export function signedCookieReader(name: string, secrets: readonly string[]): SignedCookieReader {
  const parseCookies = cookieParser(undefined, { decode: decodeSignedValue });
  const acceptedSecrets = [...secrets];
  const remembered = new BoundedMap<string, string>(REMEMBERED_HEADERS);

  return function readSignedCookie(cookieHeader) {
    if (!cookieHeader?.includes(name)) return undefined;
    const known = remembered.get(cookieHeader);
    if (known !== undefined) return known;
    const sessionId = verify(cookieHeader);
    if (sessionId === undefined || cookieHeader.length > REMEMBERED_LENGTH) return sessionId;
    remembered.set(cookieHeader, sessionId);
    return sessionId;
  };

  function verify(cookieHeader: string): string | undefined {
    const request = { headers: { cookie: cookieHeader } } as Request;
    parseCookies(request, {} as Response, () => {});
    // Under a name such as `toString` this may be an inherited function, which counts as no cookie too.
    const sessionId = cookieParser.signedCookie(request.cookies[name], acceptedSecrets);
    // Copied, since a part of a string keeps the whole of it in memory, and the ID may be kept for long.
    return sessionId ? Buffer.from(sessionId).toString() : undefined;
  }
}

/**
 * Decodes a cookie's value as cookie-parser does by default, and blanks it unless it claims to be signed. For
 * cookie-parser would take an unsigned value for a verified one, and would look for a signed value inside a JSON string
 * (`j:"s:…"`), where express-session does neither.
 */
function decodeSignedValue(value: string): string {
  let decoded = value;
  try {
    decoded = decodeURIComponent(value);
  } catch {
    // A value that is not percent-encoded soundly stands for itself.
  }
  return decoded.startsWith('s:') ? decoded : '';
}

/**
 * Signs a session ID as express-session does for its cookie.
 *
 * @returns the cookie's value before percent-encoding: `s:<session ID>.<signature>`
 */
export function signCookie(sessionId: string, secret: string): string {
  return `s:${sign(sessionId, secret)}`;
}
