import { sign, unsign } from 'cookie-signature';
import { hkdfSync } from 'node:crypto';
import { z } from 'zod';

/** What a session token says. */
export interface SessionToken {
  /** The session. */
  readonly sid: string;
  /** The tools that may be called with the token; null for all. */
  readonly tools: readonly string[] | null;
}

/** Further members, of other versions, are ignored. */
const payloadSchema = z.object({ sid: z.string().min(1), tools: z.array(z.string()).nullable().default(null) });

/**
 * Mints and reads session tokens: a session ID, and the tools that its holder may call, signed, for clients that keep no
 * cookies. A token does not expire; its session does.
 *
 * It is `<JSON in base64url>.<signature>`. The key is derived from the session secret (HKDF, RFC 5869), because the same
 * key also signs cookies, whose IDs callers may choose: by an ID that looks like a token they would get one signed.
 */
export class SessionTokens {
  readonly #keys: readonly string[];

  /** @param secrets the session secrets, newest first: the first signs, and any is accepted */
  constructor(secrets: readonly string[]) {
    this.#keys = secrets.map((secret) =>
      Buffer.from(hkdfSync('sha256', secret, '', 'nemo-gym-mcp-session-token', 32)).toString('base64'),
    );
  }

  /** @param tools names of the tools that may be called with the token; null for all */
  mint(sessionId: string, tools: readonly string[] | null = null): string {
    const payload = JSON.stringify({ sid: sessionId, tools } satisfies SessionToken);
    return sign(Buffer.from(payload).toString('base64url'), this.#keys[0] ?? '');
  }

  /** What a token says, or undefined for one that is not validly signed. */
  read(token: string): SessionToken | undefined {
    for (const key of this.#keys) {
      const payload = unsign(token, key);
      if (payload !== false) return payloadSchema.safeParse(parsed(payload)).data;
    }
    return undefined;
  }
}

function parsed(payload: string): unknown {
  try {
    return JSON.parse(Buffer.from(payload, 'base64url').toString());
  } catch {
    return undefined;
  }
}
