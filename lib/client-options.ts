import { Agent } from 'node:http';
import { z } from 'zod';
import { functionSchema } from './checked.ts';
import { Cleanup, type CleanupError } from './client-cleanup.ts';
import type { SessionServer, SessionStage } from './client-errors.ts';
import { retriesSchema, secondsSchema, type RetryOptions } from './client-retries.ts';

/** A reply whose head has arrived, whether or not its body does. */
export interface ReplyInfo {
  readonly server: SessionServer;
  readonly stage: SessionStage;
  readonly status: number;
  /** Which attempt it answers: 1 for the first. */
  readonly attempt: number;
  /** The fields of the reply, by name in any case. */
  readonly headers: { get(name: string): string | null };
}

/** What every session of this client takes. */
export interface SessionClientOptions {
  /** Where the server is: an http or https URL, with or without a path that all of its routes are below. */
  readonly url: string;
  /** Ends every call but those that clean up: they reject with its reason. */
  readonly signal?: AbortSignal | undefined;
  /**
   * Opens the connections. By default each request gets a new one: a call that is sent on a connection which the server is about
   * to close fails, and only those are repeated that may be.
   */
  readonly agent?: Agent | undefined;
  /** How long an attempt may take, up to the last byte of its reply; default 300, since a seed may start a sandbox. */
  readonly requestSeconds?: number | undefined;
  /** When a call that may be repeated is. */
  readonly retries?: RetryOptions | undefined;
  /** Where the session registers its clean-up, which whoever made it runs. By default the session has one of its own. */
  readonly cleanup?: Cleanup | undefined;
  /** How long the session's own clean-up may take; default 30. */
  readonly cleanupSeconds?: number | undefined;
  /** Told when the session's own clean-up fails; by default that becomes a warning of the process. */
  readonly onCleanupFailure?: ((error: CleanupError) => void) | undefined;
  /** Told of each reply, before its body is read. */
  readonly onReply?: ((reply: ReplyInfo) => void) | undefined;
}

/** What a single call takes. */
export interface CallOptions {
  /** Ends this call, which then rejects with the signal's reason. The session's own signal counts as well. */
  readonly signal?: AbortSignal | undefined;
  /** How long an attempt may take; default: the session's. */
  readonly requestSeconds?: number | undefined;
}

/** What a call takes that the server executes anew whenever it arrives. */
export interface RepeatableCallOptions extends CallOptions {
  /**
   * Whether the call may be repeated when its connection fails. By default it is not: the server may have executed it
   * already.
   */
  readonly mayRepeat?: boolean | undefined;
}

/** What a call takes whose reply the server defines. */
export interface TypedCallOptions<Reply> extends RepeatableCallOptions {
  /** What the reply has to be. */
  readonly reply?: z.ZodType<Reply> | undefined;
}

const signalSchema = z.instanceof(AbortSignal);

const urlSchema = z
  .url({ protocol: /^https?$/, error: 'must be an http or https URL' })
  .refine((url) => /^[^?#@]+$/.test(url), 'must have no credentials, query or fragment')
  .transform((url) => url.replace(/\/+$/, ''));

/** The schema of {@link SessionClientOptions}, to be extended. */
export const clientOptionsSchema = z.strictObject({
  url: urlSchema,
  signal: signalSchema.optional(),
  agent: z.instanceof(Agent).optional(),
  requestSeconds: secondsSchema.default(300),
  retries: retriesSchema.prefault({}),
  cleanup: z.instanceof(Cleanup).optional(),
  cleanupSeconds: secondsSchema.optional(),
  onCleanupFailure: functionSchema<(error: CleanupError) => void>().optional(),
  onReply: functionSchema<(reply: ReplyInfo) => void>().optional(),
});

export const callOptionsSchema = z.strictObject({
  signal: signalSchema.optional(),
  requestSeconds: secondsSchema.optional(),
});

export const repeatableCallOptionsSchema = callOptionsSchema.extend({ mayRepeat: z.boolean().default(false) });

/** The schema of {@link TypedCallOptions}, whose `reply` its caller has to default. */
export const typedCallOptionsSchema = repeatableCallOptionsSchema.extend({
  reply: z.instanceof(z.ZodType).optional(),
});

/** {@link SessionClientOptions} as the code uses them. */
export type ClientOptions = z.output<typeof clientOptionsSchema>;
