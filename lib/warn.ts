import { inspect } from 'node:util';

/** Makes a warning of the process of something that failed where nobody waits for it. Never throws. */
export function warn(message: string, cause: unknown, code?: string): void {
  process.emitWarning(message, {
    type: 'SessionRoutingWarning',
    detail: textOf(cause),
    ...(code !== undefined && { code }),
  });
}

/** What was thrown, as text: it may be anything, and show itself in any way. */
function textOf(thrown: unknown): string {
  try {
    return inspect(thrown);
  } catch {
    return 'an error that cannot be shown';
  }
}
