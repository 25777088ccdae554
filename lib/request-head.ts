import type { IncomingMessage, ServerResponse } from 'node:http';
import { SessionRoutingError } from './errors.ts';
import { crossingFields, fieldLines, type Framing } from './headers.ts';
import { hopTarget, type CarriedOrigin, type Expectation } from './origin.ts';

/** What a request line can be made of (RFC 9110, section 5.6.2, and any byte that is not a control or a space). */
const httpToken = /^[\w!#$%&'*+.^`|~-]+$/;
const safeTarget = /^[\x21-\xff]+$/;

/** Members of Node's replies that its type declarations leave out. */
interface ReplyInternals extends ServerResponse {
  /** Whether the server takes no more requests on the client's connection. */
  readonly maxRequestsOnConnectionReached?: boolean;
}

/** A request's head as it crosses the hop, a character a byte, and how the body behind it is framed. */
export interface RequestHead {
  readonly text: string;
  readonly framing: Framing;
}

/**
 * The head of a request as it crosses the hop.
 *
 * @param expectation what the client still waits for
 * @throws SessionRoutingError `CLAIMANT_UNREACHABLE` for what a lenient parser let in and cannot be written
 */
export function requestHead(
  request: IncomingMessage,
  response: ReplyInternals,
  expectation: Expectation | undefined,
): RequestHead {
  const { lines, framing, areHeld, isFramed } = crossingFields(request.rawHeaders, maximumFieldsOf(request));
  const carried = {
    expectation,
    keepsAlive: response.shouldKeepAlive,
    isLast: response.maxRequestsOnConnectionReached ?? false,
    areFieldsHeld: areHeld,
    isFramed,
  };
  return { text: headOf(request, lines, carried), framing };
}

/**
 * The head of an upgrade request as it crosses the hop.
 *
 * @throws SessionRoutingError as {@link requestHead} does
 */
export function upgradeHead(request: IncomingMessage): string {
  const carried = { expectation: undefined, keepsAlive: false, isLast: false, areFieldsHeld: false, isFramed: false };
  return headOf(request, fieldLines(request.rawHeaders), carried);
}

function headOf(
  request: IncomingMessage & { originalUrl?: string },
  lines: string | undefined,
  carried: CarriedOrigin,
): string {
  // The target as its client sent it: Express cuts the path of a mount off `url`.
  const { method = '', url = '', originalUrl = url } = request;
  if (lines === undefined || !httpToken.test(method) || !safeTarget.test(originalUrl)) {
    const detail = 'The request has a field that cannot be passed on to the worker that holds this session.';
    throw new SessionRoutingError('CLAIMANT_UNREACHABLE', detail);
  }
  return `${method} ${hopTarget(request, originalUrl, carried)} HTTP/1.1\r\n${lines}\r\n`;
}

/** How many fields the server of a request tells its app of: Node's default is 1,000, and 0 is for no limit. */
function maximumFieldsOf({ socket }: IncomingMessage): number {
  const { server } = socket as { server?: { maxHeadersCount?: number | null } };
  return (server?.maxHeadersCount ?? 1_000) || Infinity;
}
