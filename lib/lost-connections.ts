import type { Worker } from 'node:cluster';

/** What a primary sends a worker along with a connection, and what the worker replies, by which Node tells them apart. */
interface ClusterMessage {
  readonly act?: unknown;
  readonly seq?: unknown;
  readonly ack?: unknown;
}

/** A connection that a worker was given, and has neither accepted nor refused yet. */
interface Given {
  readonly seq: unknown;
  readonly handle: { close?(): void } | undefined;
}

/**
 * Closes the connection that a worker was being given when it died.
 *
 * A primary gives a worker one connection after the other, each once the worker has replied to the last. Node forgets one
 * that a dead worker never replied to, and leaves it open: its client would wait for ever. It is not given to another
 * worker, since this one may have read from it.
 */
export function closeLostConnection(worker: Worker): void {
  const child = worker.process;
  const send: unknown = child.send;
  let given: Given | undefined;
  Object.assign(child, {
    send(...args: [message: ClusterMessage | undefined, handle?: Given['handle']]): unknown {
      const [message, handle] = args;
      if (message?.act === 'newconn') given = { seq: message.seq, handle };
      return Reflect.apply(send as (...args: unknown[]) => unknown, child, args);
    },
  });
  // Ahead of Node's own listener, which gives the worker the next connection, or this one to another worker.
  child.prependListener('internalMessage', (message: ClusterMessage) => {
    if (given !== undefined && message.ack === given.seq) given = undefined;
  });
  worker.once('exit', () => given?.handle?.close?.());
}
