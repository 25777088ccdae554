import { z } from 'zod';

/** Which kind of server a call went to. */
export type SessionServer = 'resources' | 'agent';

/** What a call was for. */
export type SessionStage = 'seed' | 'tool' | 'respond' | 'verify' | 'close';

/** Statuses below 500 that say nothing about the session: the same may be tried again later. */
const PASSING_STATUSES: readonly number[] = [408, 425, 429];

/** How much of a body that is no JSON an error shows. */
const SHOWN_CHARACTERS = 1_000;

/** A problem document of ours, or what FastAPI answers: `detail` is a sentence, or a list of what is wrong with a body. */
const problemSchema = z.object({ detail: z.unknown().optional(), code: z.string().optional().catch(undefined) });

/** What a {@link SessionClientError} knows beside its message. */
export interface SessionFailure {
  readonly server: SessionServer;
  readonly stage: SessionStage;
  /** The reply's status, if there was a complete reply. */
  readonly status?: number;
  /** The `code` of a problem document, such as `SESSION_GONE`. */
  readonly code?: string | undefined;
  /** The `detail` of a problem document or of FastAPI; else the reply's body. */
  readonly detail?: unknown;
  readonly isOver: boolean;
  readonly cause?: unknown;
}

/**
 * A call of a session that failed.
 *
 * `isOver` says what its caller may do: `true` ends the episode for good (404, 409, 410, 422, any other status that is no
 * success, and a reply that breaks the protocol); `false` means that a new attempt at the episode, with new sessions, may
 * fare better (408, 425, 429, 5xx, and a connection that failed or gave no reply in time).
 */
export class SessionClientError extends Error {
  override readonly name = 'SessionClientError';
  readonly server: SessionServer;
  readonly stage: SessionStage;
  readonly status: number | undefined;
  readonly code: string | undefined;
  readonly detail: unknown;
  readonly isOver: boolean;

  constructor(message: string, failure: SessionFailure) {
    super(message, failure.cause === undefined ? undefined : { cause: failure.cause });
    this.server = failure.server;
    this.stage = failure.stage;
    this.status = failure.status;
    this.code = failure.code;
    this.detail = failure.detail;
    this.isOver = failure.isOver;
  }
}

/** The call that failed, as far as its errors tell of it. */
export interface FailedCall {
  readonly server: SessionServer;
  readonly stage: SessionStage;
  readonly path: string;
}

/** The error for a complete reply whose status is no success. */
export function statusError({ server, stage, path }: FailedCall, status: number, text: string): SessionClientError {
  const { code, detail } = problemIn(text);
  const shown = typeof detail === 'string' ? detail : text;
  const isOver = status < 500 && !PASSING_STATUSES.includes(status);
  const message = `POST ${path}: status ${status}${shown ? `, ${shown.slice(0, SHOWN_CHARACTERS)}` : ''}`;
  return new SessionClientError(message, { server, stage, status, code, detail, isOver });
}

/** The error for a success whose body is not what it should be. */
export function replyError(
  { server, stage, path }: FailedCall,
  status: number,
  what: string,
  cause?: unknown,
): SessionClientError {
  return new SessionClientError(`POST ${path}: ${what}`, { server, stage, status, isOver: true, cause });
}

/** The error for a call that got no complete reply. */
export function connectionError(
  { server, stage, path }: FailedCall,
  attempts: number,
  cause: Error,
): SessionClientError {
  const times = attempts === 1 ? '' : ` (attempt ${attempts})`;
  return new SessionClientError(`POST ${path}: ${cause.message}${times}`, { server, stage, isOver: false, cause });
}

function problemIn(text: string): { code?: string | undefined; detail: unknown } {
  try {
    const body: unknown = JSON.parse(text);
    const problem = problemSchema.safeParse(body);
    if (!problem.success) return { detail: body };
    return { code: problem.data.code, detail: problem.data.detail ?? body };
  } catch {
    return { detail: text === '' ? undefined : text.slice(0, SHOWN_CHARACTERS) };
  }
}
