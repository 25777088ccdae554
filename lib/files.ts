import { chmodSync, mkdirSync } from 'node:fs';

/** Makes a directory that is this user's alone, whatever the umask. */
export function makePrivate(path: string): void {
  mkdirSync(path, { mode: 0o700 });
  chmodSync(path, 0o700);
}

/** Whether an error of the system has one of some codes. */
export function hasCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && codes.includes((error as NodeJS.ErrnoException).code ?? '');
}

/** Turns the error that something is not there into a value, and throws any other. */
export function ifMissing<T>(value: T): (error: unknown) => T {
  return (error) => {
    if (hasCode(error, 'ENOENT')) return value;
    throw error;
  };
}
