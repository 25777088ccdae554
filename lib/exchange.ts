import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { refusalBytes, refuse, type SessionRoutingError } from './errors.ts';
import type { Forwarder } from './forward.ts';

/** A request and whatever answers it: a reply, or the bare connection of an upgrade. */
export interface Exchange {
  readonly request: IncomingMessage;
  readonly method: string;
  /** The path below the mount, without the query. */
  readonly path: string;
  /** The reply; none for an upgrade. */
  readonly response: ServerResponse | undefined;
  /** Lets a client that waits for `100 Continue` send its body. */
  continue(): void;
  /** Calls back once, when the reply, or the upgraded connection, has ended. */
  onClosed(callback: () => void): void;
  /** The status of the reply; undefined where its head was never sent. */
  status(): number | undefined;
  refuse(error: SessionRoutingError): void;
  forward(forwarder: Forwarder, socketPath: string): void;
}

/**
 * The exchange of a `request` or `checkContinue` event.
 *
 * @param awaitsContinue whether the client waits for `100 Continue`, which nobody has sent yet
 */
export function httpExchange(
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
  awaitsContinue: boolean,
): Exchange {
  return {
    request,
    method: request.method ?? '',
    path,
    response,
    continue() {
      if (!awaitsContinue) return;
      response.writeContinue();
      response.writeContinue = () => undefined; // the app's listener would send it once more
    },
    onClosed: (callback) => void (response.closed ? process.nextTick(callback) : response.once('close', callback)),
    status: () => (response.headersSent ? response.statusCode : undefined),
    refuse: (error) => refuse(response, error),
    forward: (forwarder, socketPath) => forwarder.forward(request, response, { socketPath, awaitsContinue }),
  };
}

/** The exchange of an `upgrade` event. */
export function upgradeExchange(request: IncomingMessage, socket: Duplex, head: Buffer, path: string): Exchange {
  return {
    request,
    method: request.method ?? '',
    path,
    response: undefined,
    continue: () => undefined,
    onClosed: (callback) => void (socket.closed ? process.nextTick(callback) : socket.once('close', callback)),
    status: () => undefined,
    refuse: (error) => void socket.end(refusalBytes(error)),
    forward: (forwarder, socketPath) => forwarder.forwardUpgrade(request, socket, head, { socketPath }),
  };
}

/**
 * The path of a request target below a mount, without the query.
 *
 * An absolute-form target (RFC 9112, section 3.2.2) counts by its path, as Express takes it. A target that is not below
 * the mount is returned as it is.
 */
export function pathBelow(mount: string, target: string): string {
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0] ?? '';
  const isBelow = mount !== '' && path.toLowerCase().startsWith(`${mount.toLowerCase()}/`);
  return isBelow ? path.slice(mount.length) : path;
}
