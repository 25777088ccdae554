import { STATUS_CODES, type IncomingMessage, type ServerResponse } from 'node:http';

/** A code for programs, as it stands in a refusal's `code` member and in {@link SessionRoutingError.code}. */
export type RefusalCode = keyof typeof REFUSALS;

interface Refusal {
  readonly status: number;
  readonly title: string;
  /** Seconds after which the same request may be sent again. */
  readonly retryAfterSeconds?: number;
}

const REFUSALS = {
  SESSION_ID_INVALID: { status: 400, title: 'The session ID is not valid' },
  SESSION_MISMATCH: { status: 409, title: 'The request names different sessions' },
  SESSION_CLAIMED_ELSEWHERE: { status: 409, title: 'Another worker claims the session' },
  AGENT_SESSION_MARKER_INVALID: { status: 409, title: 'The session cookie names no agent session' },
  AGENT_SESSION_CLOSED: { status: 409, title: 'The agent session is closed' },
  AGENT_SESSION_CLOSING: { status: 409, title: 'The agent session awaits its close' },
  AGENT_SESSION_EXPIRED: { status: 409, title: 'The agent session is no longer remembered' },
  AGENT_SESSION_CONFLICT: { status: 409, title: 'The agent session was opened by another request' },
  AGENT_SESSION_NOT_OPEN: { status: 409, title: 'The agent session is not open' },
  SESSION_GONE: { status: 410, title: 'The worker that held the session is gone' },
  BODY_TOO_LARGE: { status: 413, title: 'The body is too large' },
  BODY_ALREADY_READ: { status: 500, title: 'The body was read ahead of the session router' },
  SESSION_SOURCE_FAILED: { status: 500, title: 'The session ID could not be read from the request' },
  SESSION_COOKIE_DISPUTED: { status: 500, title: 'express-session settled on another session ID' },
  CLAIMANT_UNREACHABLE: { status: 502, title: 'The worker that holds the session broke off' },
  CLAIMANT_BUSY: { status: 503, title: 'The worker that holds the session is busy', retryAfterSeconds: 1 },
  CLAIM_UNREADABLE: { status: 503, title: 'The claim of the session cannot be read', retryAfterSeconds: 1 },
} as const satisfies Record<string, Refusal>;

/**
 * A request that cannot be answered as one worker would answer it, and why.
 *
 * `status` (also `statusCode`) is what the client gets, `code` is for programs and `message` is the sentence of the
 * problem document. Express's own error handler understands `status`.
 */
export class SessionRoutingError extends Error {
  override readonly name = 'SessionRoutingError';
  readonly code: RefusalCode;
  readonly status: number;
  readonly statusCode: number;

  constructor(code: RefusalCode, detail: string, options?: ErrorOptions) {
    super(detail, options);
    this.code = code;
    this.status = this.statusCode = REFUSALS[code].status;
  }

  /** The body of the refusal, as RFC 9457 (Problem Details for HTTP APIs) has it. */
  toJSON(): { type: string; title: string; status: number; detail: string; code: RefusalCode } {
    return {
      type: `urn:express-session-routing:${this.code}`,
      title: REFUSALS[this.code].title,
      status: this.status,
      detail: this.message,
      code: this.code,
    };
  }
}

/** How a refusal is told to a client. */
export interface Refused {
  readonly status: number;
  readonly contentType: string;
  readonly body: string;
}

/** Puts a refusal in the form that the clients of a kind of server understand. */
export type RefusalFormat = (error: SessionRoutingError) => Refused;

/** A refusal as a problem document (RFC 9457). */
export const problemDocument: RefusalFormat = (error) => ({
  status: error.status,
  contentType: 'application/problem+json',
  body: JSON.stringify(error),
});

/**
 * Answers a request with an error, as a problem document unless another form is given.
 *
 * Fields that something ahead of the router has set on the reply are kept, except those that describe a body.
 * Does nothing to a reply that has begun.
 */
export function refuse(
  response: ServerResponse,
  error: SessionRoutingError,
  format: RefusalFormat = problemDocument,
): void {
  if (response.headersSent || response.destroyed) return;
  const { status, contentType, body: text } = format(error);
  const body = Buffer.from(text);
  for (const name of ['content-encoding', 'transfer-encoding', 'etag', 'last-modified']) response.removeHeader(name);
  response.setHeader('Content-Type', contentType);
  response.setHeader('Content-Length', body.length);
  response.setHeader('Cache-Control', 'no-store');
  const refusal: Refusal = REFUSALS[error.code];
  if (refusal.retryAfterSeconds !== undefined) response.setHeader('Retry-After', refusal.retryAfterSeconds);
  response.statusCode = status;
  response.statusMessage = STATUS_CODES[status] ?? '';
  response.end(body);
}

/**
 * Answers the refusals among the errors that reach it with their problem documents, and passes every other on: an error
 * handler of Express, to be mounted behind routes that may throw a {@link SessionRoutingError}.
 */
export function refusalHandler(
  error: unknown,
  _request: IncomingMessage,
  response: ServerResponse,
  next: (error?: unknown) => void,
): void {
  if (error instanceof SessionRoutingError && !response.headersSent) refuse(response, error);
  else next(error);
}

/**
 * Lets nobody write to a reply any more that has been given already. What they try does nothing, and fails nowhere, though
 * they be in the middle of a `write()` or `end()` of Node's own, or have kept one from before.
 */
export function silence(response: ServerResponse): void {
  const chained = (): ServerResponse => response;
  response.on('error', () => undefined); // for writing after the end
  Object.assign(response, {
    setHeader: chained,
    setHeaders: chained,
    appendHeader: chained,
    removeHeader: () => undefined,
    writeHead: chained,
    flushHeaders: () => undefined,
    writeContinue: () => undefined,
    writeProcessing: () => undefined,
    writeEarlyHints: () => undefined,
    write: () => true,
    end: chained,
  });
  // Middleware may be holding the reply back: express-session does, until it has saved the session.
  if (!response.writableEnded) return;
  Object.assign(response, {
    // What Node itself sends bytes by, which would follow those of the reply that was given. Where it takes the head for
    // sent, its end() says by itself that all has been sent, and that once more ends the process.
    _send: () => true,
    _writeRaw: () => true,
    _headerSent: false,
  });
}

/** The same refusal as {@link refuse} makes, in bytes, for an upgrade request, which has no reply object. */
export function refusalBytes(error: SessionRoutingError, format: RefusalFormat = problemDocument): string {
  const { retryAfterSeconds }: Refusal = REFUSALS[error.code];
  const { status, contentType, body } = format(error);
  return [
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}`,
    `Content-Type: ${contentType}`,
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Cache-Control: no-store',
    ...(retryAfterSeconds === undefined ? [] : [`Retry-After: ${retryAfterSeconds}`]),
    'Connection: close',
    '',
    body,
  ].join('\r\n');
}
