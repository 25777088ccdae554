import { EventEmitter } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

type Listener = (...args: unknown[]) => void;

const adds: ReadonlySet<PropertyKey> = new Set('on once addListener prependListener prependOnceListener'.split(' '));

/** What does something to a socket, or to whoever listens to it. */
const acts: ReadonlySet<PropertyKey> = new Set([
  ...adds,
  ...'removeAllListeners emit setMaxListeners write end cork uncork destroy destroySoon resetAndDestroy'.split(' '),
  ...'read push unshift pause resume pipe unpipe wrap setEncoding setTimeout setNoDelay setKeepAlive ref unref'.split(
    ' ',
  ),
]);

/**
 * Shows the socket on which a forwarded request came as if it were its client's: with the client's members in the place
 * of its own. Its functions work on the real one, and so does Node's own code.
 *
 * Other clients share the real socket. So what an app adds is kept with the client's members; and once the reply has
 * ended, nothing that the app does has an effect any more, and the listeners that it left are removed.
 */
class ClientSocketHandler implements ProxyHandler<Socket> {
  readonly #members: object;
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  #listeners: [event: string | symbol, listener: Listener][] | undefined;

  constructor(members: object, request: IncomingMessage, response: ServerResponse) {
    this.#members = members;
    this.#request = request;
    this.#response = response;
  }

  get(target: Socket, key: PropertyKey, shown: unknown): unknown {
    if (key in this.#members) return Reflect.get(this.#members, key);
    const value: unknown = Reflect.get(target, key);
    if (typeof value !== 'function' || key === 'constructor') return value;
    return (...args: unknown[]): unknown => {
      if (this.#isOver && acts.has(key)) return key === 'write' ? false : shown;
      if (adds.has(key)) this.#note(target, args[0] as string | symbol, args[1]);
      else if (key === 'setTimeout') this.#note(target, 'timeout', args[1]);
      // A Unix socket cannot be reset, and says so.
      const result: unknown = Reflect.apply(key === 'resetAndDestroy' ? target.destroy : value, target, args);
      return result === target ? shown : result;
    };
  }

  set(target: Socket, key: PropertyKey, value: unknown): boolean {
    if (!(key in target)) return Reflect.set(this.#members, key, value);
    return this.#isOver || Reflect.set(target, key, value);
  }

  has(target: Socket, key: PropertyKey): boolean {
    return key in this.#members || key in target;
  }

  defineProperty(target: Socket, key: PropertyKey, descriptor: PropertyDescriptor): boolean {
    if (!(key in target)) return Reflect.defineProperty(this.#members, key, { ...descriptor, configurable: true });
    return this.#isOver || Reflect.defineProperty(target, key, { ...descriptor, configurable: true });
  }

  deleteProperty(target: Socket, key: PropertyKey): boolean {
    if (key in this.#members) return Reflect.deleteProperty(this.#members, key);
    return this.#isOver || Reflect.deleteProperty(target, key);
  }

  /** Whether the real socket serves this request no more: Node has taken it off the reply, and read all of the body. */
  get #isOver(): boolean {
    return this.#response.socket === null && this.#request.complete;
  }

  #note(target: Socket, event: string | symbol, listener: unknown): void {
    if (typeof listener !== 'function') return;
    if (this.#listeners === undefined) {
      const left: [string | symbol, Listener][] = (this.#listeners = []);
      const remove = (): void => {
        for (const [name, each] of left.splice(0)) target.removeListener(name, each);
      };
      // Whatever wraps the reply may have its own `on`.
      EventEmitter.prototype.on.call(this.#response, 'close', () => {
        if (this.#request.complete) remove();
        else EventEmitter.prototype.on.call(this.#request, 'end', remove); // until then, the socket is its client's
      });
    }
    this.#listeners.push([event, listener as Listener]);
  }
}

/** The socket of a forwarded request as its app is to see it, with a client's members in the place of its own. */
export function clientSocket(members: object, request: IncomingMessage, response: ServerResponse): Socket {
  return new Proxy(request.socket, new ClientSocketHandler(members, request, response));
}
