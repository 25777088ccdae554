import { readdir } from 'node:fs/promises';
import { request } from 'node:http';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import type { SessionsOfWorker, WorkerState } from '../fixtures/stress-counter/watched.ts';

/** What the workers of the counter hold: those that live, for the socket of a dead one refuses. */
export async function workerStates(folder: string): Promise<WorkerState[]> {
  const names = await readdir(folder);
  const states = await Promise.all(names.map((name) => stateAt(join(folder, name))));
  return states.filter((state) => state !== undefined);
}

function stateAt(socketPath: string): Promise<WorkerState | undefined> {
  return new Promise((resolve, reject) => {
    const asked = request({ socketPath, agent: false });
    asked.on('response', (response) => void json(response).then((state) => resolve(state as WorkerState), reject));
    asked.on('error', (error: NodeJS.ErrnoException) =>
      ['ECONNREFUSED', 'ENOENT', 'ECONNRESET'].includes(error.code ?? '') ? resolve(undefined) : reject(error),
    );
    asked.end();
  });
}

/** Sessions that have begun on more than one worker. */
export function splitSessions(workers: readonly SessionsOfWorker[]): string[] {
  const seen = new Set<string>();
  const split = new Set<string>();
  for (const sessionId of workers.flatMap(({ begun }) => begun)) (seen.has(sessionId) ? split : seen).add(sessionId);
  return [...split];
}

/** Sessions of which some worker still has something. */
export function liveSessions(workers: readonly SessionsOfWorker[]): string[] {
  return workers.flatMap(({ live }) => live);
}
