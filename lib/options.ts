import { isAbsolute } from 'node:path';
import { z } from 'zod';
import { checked } from './checked.ts';
import { web } from './session-kinds.ts';
import type { SessionKind } from './session-kind.ts';

/** What `sessionRouting()` takes. */
export interface SessionRoutingOptions {
  /**
   * Where requests name their session and how long sessions live: `resources()`, `agent()`, `web()`, `mcpSessions()`,
   * `mcpHandle()`, or one made by `sessionKind()`. Default: `web()`.
   */
  kind?: SessionKind;
  /**
   * Signs the session cookie, as express-session takes it: one secret, or several with the newest first. Only a kind whose
   * sessions no cookie names does without.
   */
  secret?: string | readonly string[];
  /** Name of the session cookie. Default: `connect.sid` for `web`, else `<kind>.sid`. */
  name?: string;
  /**
   * Absolute path of the directory that the workers of this server share. Default: the environment's
   * `SESSION_ROUTING_DIR`, which `runWorkers()` sets. None of both: one worker, which routes nothing.
   */
  runtimeDirectory?: string;
  /** Bytes that the body of a seed or close may have, before and after inflating. Default: 64 MiB. */
  bodyLimit?: number;
  /** `false` opts a stateless server out: every worker answers for itself. Default: `true`. */
  routing?: boolean;
}

/** {@link SessionRoutingOptions} with every default filled in. */
export interface CompleteOptions {
  readonly kind: SessionKind;
  readonly secrets: readonly string[];
  readonly name: string;
  readonly runtimeDirectory: string | undefined;
  readonly bodyLimit: number;
  readonly routing: boolean;
}

const secret = z.string().min(1, 'must not be empty');

const schema = z.strictObject({
  kind: z
    .custom<SessionKind>(
      (value) => typeof value === 'object' && value !== null && 'createLifetimes' in value,
      'must be a kind, such as resources(), agent() or web()',
    )
    .optional(),
  secret: z
    .union([secret, z.array(secret).min(1).readonly()], 'must be a non-empty string or a list of them')
    .optional(),
  name: z
    .string()
    .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'must be a cookie name (RFC 6265, section 4.1.1)')
    .optional(),
  runtimeDirectory: z.string().refine(isAbsolute, 'must be an absolute path').optional(),
  bodyLimit: z
    .int()
    .positive()
    .default(64 * 1024 * 1024),
  routing: z.boolean().default(true),
});

/**
 * Checks the options of `sessionRouting()` and fills in the defaults.
 *
 * @throws TypeError that names the first key that is refused or unknown
 */
export function completeOptions(options: SessionRoutingOptions): CompleteOptions {
  const { secret, ...others } = checked('sessionRouting()', schema, options);
  const { kind = web(), name = kind.cookieName, runtimeDirectory, bodyLimit, routing } = others;
  if (secret === undefined && kind.cookies !== 'none') {
    throw new TypeError('sessionRouting(): option "secret": must be a non-empty string or a list of them');
  }
  const secrets = typeof secret === 'string' ? [secret] : (secret ?? []);
  return { kind, secrets, name, runtimeDirectory, bodyLimit, routing };
}
