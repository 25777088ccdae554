import { AsyncResource } from 'node:async_hooks';
import { connect, type Socket } from 'node:net';

/** Shorter than the private socket keeps an idle connection, so that it is this side that closes it. */
const defaultIdleMilliseconds = 15_000;

/** As much as is read of a connection at once. */
const readBytes = 131_072;

/** Who uses a connection. */
export interface ConnectionUser {
  /**
   * Is given what came in. The bytes are good for as long as the call lasts.
   *
   * @returns false to be given no more until `resume()`
   */
  received(bytes: Buffer): boolean;
  /** Is told that what it wrote has left, where a write returned false. */
  drained(): void;
  /** Is told, once, that the connection has closed: with the error, where there was one. */
  closed(error: Error | undefined): void;
}

/** A connection to a claimant's private socket, used by one request at a time. */
export class ClaimantConnection {
  readonly path: string;
  /** Whether it has served a request before. */
  isReused = false;
  readonly #socket: Socket;
  readonly #idleTimer: NodeJS.Timeout;
  #user: ConnectionUser | undefined;

  /**
   * @param buffer into which every connection reads: what is read is handed on before anything else happens
   * @param idleMilliseconds after which it closes while nobody uses it
   * @param onClose is called when an idle connection has closed
   */
  constructor(
    path: string,
    buffer: Uint8Array,
    idleMilliseconds: number,
    onClose: (connection: ClaimantConnection) => void,
  ) {
    this.path = path;
    this.#socket = connect({
      path,
      onread: {
        buffer,
        callback: (length, bytes) => {
          if (this.#user !== undefined) return this.#user.received((bytes as Buffer).subarray(0, length));
          this.#socket.destroy(); // nobody has asked for anything
          return false;
        },
      },
    });
    let failure: Error | undefined;
    this.#socket.on('error', (error) => (failure = error));
    this.#socket.on('drain', () => this.#user?.drained());
    this.#socket.on('close', () => {
      clearTimeout(this.#idleTimer);
      if (this.#user === undefined) onClose(this);
      else this.#user.closed(failure);
    });
    this.#idleTimer = setTimeout(() => {
      if (this.#user === undefined) this.#socket.destroy();
    }, idleMilliseconds).unref();
  }

  get isUsable(): boolean {
    return !this.#socket.destroyed && this.#socket.readable;
  }

  /** Gives the connection to a user, whose it is until it is given to the next. */
  use(user: ConnectionUser): void {
    if (this.isReused) this.#socket.ref();
    this.#user = user;
  }

  /** Leaves the connection idle. While it is, it keeps no process alive. */
  idle(): void {
    this.#user = undefined;
    this.isReused = true;
    this.#socket.unref();
    this.#idleTimer.refresh();
  }

  /**
   * @param onTaken is called once the system has taken all of it, and not if it could not
   * @returns false if the connection takes no more until it has drained
   */
  write(data: Uint8Array | string, onTaken?: () => void): boolean {
    const callback = onTaken && ((error?: Error | null) => void (error ?? onTaken()));
    return typeof data === 'string'
      ? this.#socket.write(data, 'latin1', callback)
      : this.#socket.write(data, undefined, callback);
  }

  /** Writes several pieces, which leave together. Returns as {@link write} does. */
  writeAll(pieces: readonly (Uint8Array | string)[]): boolean {
    if (pieces.length === 1) return this.write(pieces[0] ?? '');
    this.#socket.cork();
    for (const piece of pieces) this.write(piece);
    this.#socket.uncork();
    return !this.#socket.writableNeedDrain;
  }

  resume(): void {
    this.#socket.resume();
  }

  destroy(): void {
    this.#socket.destroy();
  }
}

/** The connections of one worker to its siblings' private sockets, kept for the next request. */
export class ClaimantConnections {
  readonly #idle = new Map<string, ClaimantConnection[]>();
  readonly #buffer = Buffer.allocUnsafeSlow(readBytes);
  readonly #idleMilliseconds: number;
  /** In whose asynchronous context connections are made: that of a request would live as long as its connection. */
  readonly #scope = new AsyncResource('ClaimantConnections');
  #isClosed = false;

  /** @param idleMilliseconds after which a connection closes that nobody uses */
  constructor(idleMilliseconds = defaultIdleMilliseconds) {
    this.#idleMilliseconds = idleMilliseconds;
  }

  /** A connection that is free, or else a new one. The one used last comes first. */
  take(path: string): ClaimantConnection {
    const idle = this.#idle.get(path);
    for (let connection = idle?.pop(); connection !== undefined; connection = idle?.pop()) {
      if (connection.isUsable) return connection;
    }
    return this.open(path);
  }

  /** A new connection. */
  open(path: string): ClaimantConnection {
    return this.#scope.runInAsyncScope(
      () => new ClaimantConnection(path, this.#buffer, this.#idleMilliseconds, (closed) => this.#forget(closed)),
    );
  }

  /** Takes a connection back whose request is over. */
  release(connection: ClaimantConnection): void {
    if (this.#isClosed || !connection.isUsable) return connection.destroy();
    connection.idle();
    const idle = this.#idle.get(connection.path);
    if (idle === undefined) this.#idle.set(connection.path, [connection]);
    else idle.push(connection);
  }

  /** Ends the idle connections to one claimant, or to all. Requests that are under way finish. */
  dropIdle(path?: string): void {
    for (const each of path === undefined ? [...this.#idle.keys()] : [path]) {
      for (const connection of this.#idle.get(each) ?? []) connection.destroy();
      this.#idle.delete(each);
    }
  }

  /** Ends the idle connections, and each of the others once its request is over. */
  close(): void {
    this.#isClosed = true;
    this.dropIdle();
  }

  #forget(connection: ClaimantConnection): void {
    const idle = this.#idle.get(connection.path) ?? [];
    const left = idle.filter((each) => each !== connection);
    if (left.length > 0) this.#idle.set(connection.path, left);
    else this.#idle.delete(connection.path);
  }
}
