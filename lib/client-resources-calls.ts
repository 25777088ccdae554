import { z } from 'zod';
import type { Calls } from './client-calls.ts';
import { checked } from './checked.ts';
import {
  repeatableCallOptionsSchema,
  typedCallOptionsSchema,
  type RepeatableCallOptions,
  type TypedCallOptions,
} from './client-options.ts';
import { verifyReplySchema, type McpServerMetadata, type ToolAccess, type VerifyReply } from './client-replies.ts';
import { toolAccessSchema } from './protocol.ts';

/** POST routes of a resources server that are no tools, so that a name that a model made up cannot reach them. */
const NO_TOOLS: readonly string[] = [
  'seed_session',
  'close_session',
  'verify',
  'sandbox_access',
  'aggregate_metrics',
  'mcp',
];

/** Options of {@link ResourcesSessionCalls.verify}. */
export interface VerifyOptions extends RepeatableCallOptions {
  /** Whether to say that a close follows, so that the verify does not end the session. */
  readonly closeFollows?: boolean | undefined;
}

const verifyOptionsSchema = repeatableCallOptionsSchema.extend({
  closeFollows: z.boolean().optional(),
});

/** What can be asked of an open session of a resources server. */
export class ResourcesSessionCalls {
  /** How to reach the server's tools over MCP, if it says so. */
  readonly tools: McpServerMetadata | null;
  readonly #calls: Calls;
  readonly #closeFollows: boolean;

  /** @param closeFollows what a verify says unless it is told otherwise */
  protected constructor(calls: Calls, tools: McpServerMetadata | null, closeFollows: boolean) {
    this.#calls = calls;
    this.tools = tools;
    this.#closeFollows = closeFollows;
  }

  /** The session's cookies, by name. */
  get cookies(): Record<string, string> {
    return this.#calls.jar.toRecord();
  }

  /**
   * Throws the session's cookies away and takes others: those that an agent gave back when it closed.
   *
   * @throws TypeError if one cannot be sent
   */
  useCookies(cookies: Readonly<Record<string, string>>): void {
    this.#calls.jar.replace(cookies);
  }

  /**
   * The access to this session's tools that an agent is given, with the cookies as they are now.
   *
   * @throws ZodError if the name is refused
   */
  directHttpAccess(name: string, { required = true }: { readonly required?: boolean } = {}): ToolAccess {
    const { url } = this.#calls;
    return toolAccessSchema.parse({ kind: 'direct_http', name, required, base_url: url, cookies: this.cookies });
  }

  /**
   * Calls a tool: `POST /<name>` with `args`. It is never repeated unless `mayRepeat` says that it may be.
   *
   * @throws TypeError if the name cannot be that of a tool; SessionClientError; the reason of an aborted signal
   */
  async callTool<Reply = unknown>(
    name: string,
    args: object = {},
    options: TypedCallOptions<Reply> = {},
  ): Promise<Reply> {
    const { reply = z.unknown(), ...call } = checked('callTool()', typedCallOptionsSchema, options);
    const body = JSON.stringify(args);
    return (await this.#calls.post({ ...call, stage: 'tool', path: toolPath(name), body, reply })) as Reply;
  }

  /**
   * Has the session scored: `POST /verify`. It is not repeated unless `mayRepeat` says that it may be.
   *
   * @throws SessionClientError; the reason of an aborted signal
   */
  async verify(body: object, options: VerifyOptions = {}): Promise<VerifyReply> {
    const { closeFollows = this.#closeFollows, ...call } = checked('verify()', verifyOptionsSchema, options);
    const headers = closeFollows ? { 'X-NG-Checkpoint-Close-Follows': '1' } : {};
    return this.#calls.post({
      ...call,
      stage: 'verify',
      path: '/verify',
      headers,
      body: JSON.stringify(body),
      reply: verifyReplySchema,
    });
  }
}

function toolPath(name: string): string {
  const segments = name.split('/');
  const isPath = segments.every((segment) => segment !== '' && segment !== '.' && segment !== '..');
  const [first, last] = [segments[0], segments.at(-1)].map((segment = '') => segment.toLowerCase());
  // Every route answers below a rollout's prefix, too.
  const isTool = first !== 'ng-rollout' && first !== 'mcp' && !NO_TOOLS.includes(last ?? '');
  if (!isPath || !isTool || /\p{Surrogate}/u.test(name)) throw new TypeError(`${JSON.stringify(name)} is no tool`);
  return `/${segments.map(encodeURIComponent).join('/')}`;
}
