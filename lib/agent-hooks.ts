import { z } from 'zod';
import { checked, functionSchema } from './checked.ts';
import {
  agentSessionResultSchema,
  type AgentSessionReceipt,
  type AgentSessionResult,
  type AgentSessionSeed,
} from './protocol.ts';
import { monotonicSeconds, type Clock } from './seconds.ts';

/** What an agent does to open and to close a session. For one session, no two of these run at the same time. */
export interface AgentSessionHooks<State extends object> {
  /**
   * Sets a session up, once for each that is opened. What it throws leaves nothing behind, unless that is an
   * {@link AgentSessionSetupError}; a client that leaves meanwhile changes nothing.
   *
   * @param request the body of the seed, a copy
   * @returns the state of the session
   */
  seed(request: AgentSessionSeed): State | Promise<State>;
  /**
   * May refuse, by throwing, to have a session that was set up: `close` then runs at once, and nothing is left.
   * Default: none is refused.
   */
  admit?(request: AgentSessionSeed, state: State): void | Promise<void>;
  /**
   * Gives back what a session has. What it throws leaves the session closing, so that the next close runs it again.
   *
   * @returns what the reply to the close tells besides the ID. Default: nothing.
   */
  close(state: State): AgentSessionResult | void | Promise<AgentSessionResult | void>;
}

/** What `new AgentSessions()` takes. */
export interface AgentSessionsOptions<State extends object> extends AgentSessionHooks<State> {
  /** Seconds for which a close is remembered, and for which a failed seed waits for its close. Default: 300. */
  closeRetryWindowSeconds?: number;
  /** The clock of the routing that the sessions belong to, in seconds. Default: the monotonic one. */
  clock?: Clock;
}

/** Thrown by a `seed` hook that failed and left something to be closed. */
export class AgentSessionSetupError<State extends object> extends Error {
  override readonly name = 'AgentSessionSetupError';
  /** What was set up, for the `close` hook. */
  readonly state: State;

  /** @param cause what went wrong: the error that the seed fails with */
  constructor(state: State, cause: unknown) {
    super('The setup of an agent session failed, and has to be closed', { cause });
    this.state = state;
  }
}

const hook = functionSchema();
const optionsSchema = z.strictObject({
  seed: hook,
  admit: hook.optional(),
  close: hook,
  closeRetryWindowSeconds: z.number().positive().finite().default(300),
  clock: functionSchema<Clock>().default(() => monotonicSeconds),
});

/** {@link AgentSessionsOptions} with every default filled in. */
export interface CompleteAgentSessionsOptions<State extends object> {
  readonly hooks: AgentSessionHooks<State>;
  readonly closeRetryWindowSeconds: number;
  readonly clock: Clock;
}

/**
 * Checks the options of `AgentSessions` and fills in the defaults.
 *
 * @throws TypeError that names the first key that is refused or unknown
 */
export function completeAgentSessionsOptions<State extends object>(
  options: AgentSessionsOptions<State>,
): CompleteAgentSessionsOptions<State> {
  const { closeRetryWindowSeconds, clock } = checked('AgentSessions', optionsSchema, options);
  return { hooks: options, closeRetryWindowSeconds, clock };
}

/** A copy that shares nothing with what was sent, or will be, as JSON. */
export function copyOf<Value>(value: Value): Value {
  return JSON.parse(JSON.stringify(value)) as Value;
}

/**
 * What a `seed` hook returned, if it is a state.
 *
 * @throws TypeError if it is none
 */
export function checkState<State>(state: State): State {
  if (typeof state === 'object' && state !== null) return state;
  throw new TypeError('The seed hook of AgentSessions must return the state of the session, an object.');
}

/**
 * What a `close` hook returned, as JSON has it and with all that it left out.
 *
 * @throws TypeError if it is no result
 */
export function checkResult(result: unknown): Omit<AgentSessionReceipt, 'agent_session_id'> {
  const { success, data, error } = agentSessionResultSchema.safeParse(copyOf(result ?? {}));
  if (success) return data;
  throw new TypeError(`The close hook of AgentSessions returned what is no result: ${z.prettifyError(error)}`);
}
