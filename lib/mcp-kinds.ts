import { z } from 'zod';
import { checked, headerField, path } from './checked.ts';
import { namedKind, recordSchemas, type SessionRecordOptions } from './custom-kind.ts';
import { SessionRoutingError, type RefusalFormat, type Refused } from './errors.ts';
import { pointerNames, valueFinder } from './json-pointer.ts';
import { pathPattern, routePattern } from './route-pattern.ts';
import type { SessionKind } from './session-kind.ts';
import { agreed, firstOf, fromHeader, idOf, type SessionIdSource } from './session-sources.ts';

/** What `mcpSessions()` takes. */
export interface McpSessionsOptions extends SessionRecordOptions {
  /** Path of the MCP endpoint, below `basePath`. Default: `/mcp`. */
  path?: string;
}

const { isOpen, released, basePath, idleSeconds } = recordSchemas;
const sessionsSchema = z.strictObject({ isOpen, released, basePath, path: path.default('/mcp') });

/** The header field that carries the ID of a session (MCP 2025-11-25, Streamable HTTP, Session Management). */
const SESSION_FIELD = 'mcp-session-id';

/**
 * The kind of a server that keeps an MCP transport in memory for each `Mcp-Session-Id`, as the protocol has sessions up to
 * its revision 2025-11-25.
 *
 * The ID is the app's: it is claimed when the app names it in its reply to `initialize`, before the head of that reply
 * leaves. POST, the GET event stream and DELETE then go to the worker that holds the transport. A session ends with a
 * successful DELETE, with a 404 of the app's to one of the three on this path, when `isOpen` says so, or by
 * `routing.ended(id)`, which is for the transport's `onclose`. One whose worker is gone is answered 404 with a JSON-RPC error, as the protocol demands, so that clients
 * begin anew; an `initialize` that still names a session which nobody holds, or a worker that is gone held, reaches the
 * app without that name and begins a new session.
 *
 * **Unverified:** whoever knows an ID has the session, so the app has to make IDs that cannot be guessed, as `randomUUID()`
 * does, and to check who calls (the protocol's authorization).
 *
 * @throws TypeError for an option that is refused or unknown
 */
export function mcpSessions(options: McpSessionsOptions = {}): SessionKind {
  const { isOpen, released, basePath, path } = checked('mcpSessions()', sessionsSchema, options);
  const isEndpoint = pathPattern(path);
  // Any other request may get a 404 though the session is there, since the app has no such route.
  const isSessionRoute = routePattern([`POST ${path}`, `GET ${path}`, `DELETE ${path}`]);
  return namedKind({
    kind: 'mcp',
    from: [fromHeader(SESSION_FIELD)],
    basePath,
    released,
    replyField: SESSION_FIELD,
    restart: {
      field: SESSION_FIELD,
      matches: (method, at) => method === 'POST' && isEndpoint(at),
      // In a batch it begins no session (MCP 2025-03-26, Lifecycle, Initialization).
      reads: isInitialize,
    },
    refusalFormat: jsonRpcSessionError,
    lifetimes: {
      isEnd({ method, path: at }, status) {
        if (!isSessionRoute(method, at)) return false;
        return status === 404 || (method === 'DELETE' && status >= 200 && status < 300);
      },
      idleSeconds: 0,
      isOpen,
    },
  });
}

/** What `mcpHandle()` takes. */
export interface McpHandleOptions extends SessionRecordOptions {
  /** Path of the MCP endpoint, below `basePath`. Default: `/mcp`. */
  path?: string;
  /** The name that the tools' input schemas give the argument as `x-mcp-header`. Default: the argument's own. */
  header?: string;
  /**
   * Seconds for which a handle that nothing has opened is held after the last call with it. 0 holds none. Default: 300.
   */
  idleSeconds?: number;
}

const handleSchema = z.strictObject({
  isOpen,
  released,
  basePath,
  idleSeconds,
  path: path.default('/mcp'),
  header: headerField.optional(),
});
const headerSchema = z.strictObject({ header: headerField });

/** The first revision of MCP whose servers refuse a call that says one thing in a field and another in its body. */
const PARAMETER_FIELDS_SINCE = '2026-07-28';

/**
 * The kind of a server whose tools take a handle as an argument, and keep in memory what it stands for: MCP has no sessions
 * since its revision 2026-07-28.
 *
 * A call is routed by the field `Mcp-Param-<name>`, into which clients copy arguments that the tool's input schema marks
 * with `x-mcp-header`, and where that is missing by the argument in its body; so is one of an earlier revision, whose
 * servers do not check that both are the same. The tool that makes a handle calls
 * `routing.claim(handle)` before it answers with it, the one that gives it back `routing.ended(handle)`. A call with a handle
 * of a worker that is gone is answered 410, with a JSON-RPC error.
 *
 * **Unverified:** whoever knows a handle has what it stands for.
 *
 * @param name the argument, a string or an integer; or, for one that is deeper, a JSON pointer below the arguments
 * @throws TypeError for an option that is refused or unknown
 */
export function mcpHandle(name: string, options: McpHandleOptions = {}): SessionKind {
  checked('mcpHandle()', z.strictObject({ name: z.string().min(1) }), { name });
  const { isOpen, released, basePath, idleSeconds, path, ...others } = checked('mcpHandle()', handleSchema, options);
  const names = name.startsWith('/') ? pointerNames(name) : [name];
  const { header } = checked('mcpHandle()', headerSchema, { header: others.header ?? names.at(-1) });
  const field = `mcp-param-${header.toLowerCase()}`;
  return namedKind({
    kind: 'mcp-handle',
    from: [firstOf(fromParameterField(field), fromArgument(['params', 'arguments', ...names], path))],
    basePath,
    released,
    refusalFormat: jsonRpcError,
    lifetimes: { idleSeconds, isOpen },
  });
}

/** A field into which clients copy an argument (MCP 2026-07-28, Custom Headers from Tool Parameters). */
function fromParameterField(field: string): SessionIdSource {
  const source = fromHeader(field);
  return {
    ...source,
    readHead(seen) {
      const { 'mcp-protocol-version': revision = '' } = seen.request.headers;
      if (revision < PARAMETER_FIELDS_SINCE) return undefined;
      const value = source.readHead(seen);
      return value === undefined || isLooseNumber(value) ? undefined : decodedParameter(value, field);
    },
  };
}

/** Whether a value may be an integer in other digits than its handle has, as `42.0`, so that the body has to tell. */
function isLooseNumber(value: string): boolean {
  return /^-?\d+(\.\d+)?$/.test(value) && String(Number(value)) !== value;
}

/** Values that are no plain ASCII come as `=?base64?…?=`. */
function decodedParameter(value: string, field: string): string | undefined {
  const [, encoded] = /^=\?base64\?(.*)\?=$/.exec(value) ?? [];
  if (encoded === undefined) return value;
  const bytes = Buffer.from(encoded, 'base64');
  if (bytes.toString('base64') === encoded) {
    try {
      return idOf(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes));
    } catch {
      // It is refused below, as what is no Base64 is.
    }
  }
  throw new SessionRoutingError('SESSION_ID_INVALID', `The header field ${field} holds no sound Base64 of UTF-8 text.`);
}

function fromArgument(names: readonly string[], endpoint: string): SessionIdSource {
  const place = `the argument ${names.slice(2).join('/')}`;
  const isEndpoint = pathPattern(endpoint);
  const find = valueFinder(names);
  const read = (body: unknown): string | undefined =>
    agreed(messagesOf(body).map((message) => ({ place, sessionId: idOf(find(message)) })));
  return {
    place,
    isVerified: false,
    readHead: () => undefined,
    bodyReader: (method, path) => (method === 'POST' && isEndpoint(path) ? read : undefined),
  };
}

/** The messages of a body: up to the revision 2025-03-26 there may be several. */
function messagesOf(body: unknown): unknown[] {
  return Array.isArray(body) ? body : [body];
}

function isInitialize(message: unknown): boolean {
  return typeof message === 'object' && message !== null && (message as { method?: unknown }).method === 'initialize';
}

/** Codes of errors that servers define (JSON-RPC 2.0, section 5.1), as the SDKs use them. */
const SESSION_NOT_FOUND = -32_001;
const SERVER_ERROR = -32_000;

/** A refusal as a JSON-RPC error, whose `data` is the problem document. */
const jsonRpcError: RefusalFormat = (error) => jsonRpc(error, error.status, SERVER_ERROR, error.message);

/**
 * The same for sessions: where the worker of one is gone, the status is the one which the protocol lets clients take as
 * the order to begin a new session.
 */
const jsonRpcSessionError: RefusalFormat = (error) =>
  error.code === 'SESSION_GONE' ? jsonRpc(error, 404, SESSION_NOT_FOUND, 'Session not found') : jsonRpcError(error);

function jsonRpc(error: SessionRoutingError, status: number, code: number, message: string): Refused {
  const body = { jsonrpc: '2.0', error: { code, message, data: error }, id: null };
  return { status, contentType: 'application/json', body: JSON.stringify(body) };
}
