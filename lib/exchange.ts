import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { refusalBytes, refuse, type RefusalFormat, type SessionRoutingError } from './errors.ts';
import type { Forwarder } from './forward.ts';
import type { Expectation } from './origin.ts';
import { onReplyClosed } from './reply-end.ts';
import { slashed } from './route-pattern.ts';

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
  refuse(error: SessionRoutingError, format?: RefusalFormat): void;
  forward(forwarder: Forwarder, socketPath: string): void;
}

/** The exchange of a `request`, `checkContinue` or `checkExpectation` event. */
export class HttpExchange implements Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly method: string;
  readonly path: string;
  readonly #expectation: Expectation | undefined;

  /** @param expectation what the client waits for, where nobody has answered it yet */
  constructor(request: IncomingMessage, response: ServerResponse, path: string, expectation?: Expectation) {
    this.request = request;
    this.response = response;
    this.method = request.method ?? '';
    this.path = path;
    this.#expectation = expectation;
  }

  continue(): void {
    if (this.#expectation !== 'continue') return;
    this.response.writeContinue();
    this.response.writeContinue = () => undefined; // the app's listener would send it once more
  }

  onClosed(callback: () => void): void {
    onReplyClosed(this.request, this.response, callback);
  }

  status(): number | undefined {
    return this.response.headersSent ? this.response.statusCode : undefined;
  }

  refuse(error: SessionRoutingError, format?: RefusalFormat): void {
    refuse(this.response, error, format);
  }

  forward(forwarder: Forwarder, socketPath: string): void {
    forwarder.forward(this.request, this.response, { socketPath, expectation: this.#expectation });
  }
}

/** The exchange of a request of the app's own making, whose reply no server of Node's closes once it has ended. */
export class AdoptedExchange extends HttpExchange {
  override onClosed(callback: () => void): void {
    let isClosed = false;
    const close = (): void => {
      if (isClosed) return;
      isClosed = true;
      callback();
    };
    if (this.response.writableFinished || this.response.closed) return process.nextTick(close);
    this.response.on('finish', close);
    this.response.on('close', close);
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
    if (this.#socket.closed) process.nextTick(callback);
    else this.#socket.on('close', callback);
  }

  status(): undefined {
    return undefined;
  }

  refuse(error: SessionRoutingError, format?: RefusalFormat): void {
    this.#socket.on('error', () => undefined); // the client may have left, and Node's own listener with it
    this.#socket.end(refusalBytes(error, format));
  }

  forward(forwarder: Forwarder, socketPath: string): void {
    forwarder.forwardUpgrade(this.request, this.#socket, this.#head, { socketPath });
  }
}

/**
 * The path of a request target below a mount, without the query, for matching routes.
 *
 * An absolute-form target (RFC 9112, section 3.2.2) counts by its path, as Express takes it. Slashes that Express takes
 * for one, or may, are one. Backslashes stay, unless the path is below the mount only if they are slashes. A target that is
 * not below the mount is returned whole.
 */
export function pathBelow(mount: string, target: string): string {
  if (mount === '' && /^(\/[\w.~-]+)*\/?$/.test(target)) return target;
  const [whole = ''] = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '').split(/[?#]/, 1);
  const path = whole.replace(/\/+/g, '/');
  if (mount === '') return path;
  const below = [path, slashed(path)].find((each) => each.toLowerCase().startsWith(`${mount.toLowerCase()}/`));
  return below === undefined ? path : below.slice(mount.length);
}
