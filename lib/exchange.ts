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

/** The exchange of a `request` or `checkContinue` event. */
export class HttpExchange implements Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly method: string;
  readonly path: string;
  readonly #awaitsContinue: boolean;

  /** @param awaitsContinue whether the client waits for `100 Continue`, which nobody has sent yet */
  constructor(request: IncomingMessage, response: ServerResponse, path: string, awaitsContinue = false) {
    this.request = request;
    this.response = response;
    this.method = request.method ?? '';
    this.path = path;
    this.#awaitsContinue = awaitsContinue;
  }

  continue(): void {
    if (!this.#awaitsContinue) return;
    this.response.writeContinue();
    this.response.writeContinue = () => undefined; // the app's listener would send it once more
  }

  onClosed(callback: () => void): void {
    onClosed(this.response, callback);
  }

  status(): number | undefined {
    return this.response.headersSent ? this.response.statusCode : undefined;
  }

  refuse(error: SessionRoutingError): void {
    refuse(this.response, error);
  }

  forward(forwarder: Forwarder, socketPath: string): void {
    forwarder.forward(this.request, this.response, { socketPath, awaitsContinue: this.#awaitsContinue });
  }
}

/** The exchange of an `upgrade` event. */
export class UpgradeExchange implements Exchange {
  readonly request: IncomingMessage;
  readonly response = undefined;
  readonly method: string;
  readonly path: string;
  readonly #socket: Duplex;
  readonly #head: Buffer;

  constructor(request: IncomingMessage, socket: Duplex, head: Buffer, path: string) {
    this.request = request;
    this.method = request.method ?? '';
    this.path = path;
    this.#socket = socket;
    this.#head = head;
  }

  continue(): void {
    // An upgrade request has no body.
  }

  onClosed(callback: () => void): void {
    onClosed(this.#socket, callback);
  }

  status(): undefined {
    return undefined;
  }

  refuse(error: SessionRoutingError): void {
    this.#socket.on('error', () => undefined); // the client may have left, and Node's own listener with it
    this.#socket.end(refusalBytes(error));
  }

  forward(forwarder: Forwarder, socketPath: string): void {
    forwarder.forwardUpgrade(this.request, this.#socket, this.#head, { socketPath });
  }
}

function onClosed(stream: ServerResponse | Duplex, callback: () => void): void {
  if (stream.closed) process.nextTick(callback);
  else stream.on('close', callback); // comes once
}

/**
 * The path of a request target below a mount, without the query.
 *
 * An absolute-form target (RFC 9112, section 3.2.2) counts by its path, as Express takes it. A target that is not below
 * the mount is returned as it is.
 */
export function pathBelow(mount: string, target: string): string {
  if (mount === '' && target.startsWith('/') && !target.includes('?') && !target.includes('#')) return target;
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0] ?? '';
  const isBelow = mount !== '' && path.toLowerCase().startsWith(`${mount.toLowerCase()}/`);
  return isBelow ? path.slice(mount.length) : path;
}
