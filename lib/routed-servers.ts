import type { Server as HttpServer } from 'node:http';
import type { Server as HttpsServer } from 'node:https';

/** A public server whose requests are routed. */
export type RoutedServer = HttpServer | HttpsServer;

/** An event of a server by which a request reaches its listeners, and what goes with it. */
export type RoutedEvent = 'request' | 'checkContinue' | 'checkExpectation' | 'upgrade';

const routedEvents: ReadonlySet<string | symbol> = new Set<RoutedEvent>([
  'request',
  'checkContinue',
  'checkExpectation',
  'upgrade',
]);

/** Decides on an event: `proceed` hands it to the server's own listeners. */
export type Dispatch = (event: RoutedEvent, args: unknown[], proceed: () => void) => void;

/** The public servers of one worker. */
export class RoutedServers {
  readonly #dispatch: Dispatch;
  readonly #openPrivateSocket: () => Promise<void>;
  readonly #servers: RoutedServer[] = [];
  readonly #restores = new Map<RoutedServer, () => void>();
  #opening: Promise<void> | undefined;
  #isOpen = false;

  constructor(dispatch: Dispatch, openPrivateSocket: () => Promise<void>) {
    this.#dispatch = dispatch;
    this.#openPrivateSocket = openPrivateSocket;
  }

  /** Whether the server's listeners serve the private socket already. */
  isServing(server: RoutedServer): boolean {
    return this.#isOpen && this.#servers.includes(server);
  }

  /** Lets the server's listeners serve the private socket, and resolves once that listens. */
  serve(server: RoutedServer): Promise<void> {
    if (!this.#servers.includes(server)) this.#servers.push(server);
    this.#opening ??= this.#openPrivateSocket().then(() => void (this.#isOpen = true));
    return this.#opening;
  }

  /** Resolves once the private socket is not about to be opened. */
  async opened(): Promise<void> {
    await this.#opening?.catch(() => undefined); // whoever asked for it has been told
  }

  /**
   * The server that serves a forwarded request: the one with the port on which its client came in, else the first.
   * (Workers share their ports.)
   */
  serverFor(localPort: number | undefined): RoutedServer | undefined {
    if (this.#servers.length < 2) return this.#servers[0]; // without asking the system for its port
    const listensOn = (server: RoutedServer): boolean => {
      const address = server.address();
      return typeof address === 'object' && address !== null && address.port === localPort;
    };
    return this.#servers.find(listensOn) ?? this.#servers[0];
  }

  /** Puts the rule in front of the server's listeners, whenever they are added, by wrapping its `emit`. */
  wrap(server: RoutedServer): void {
    if (this.#restores.has(server)) return;
    let dispatch: Dispatch | undefined = this.#dispatch;
    const own = Object.getOwnPropertyDescriptor(server, 'emit');
    const emit = server.emit as (event: string | symbol, ...args: unknown[]) => boolean;
    const routedEmit = function (this: RoutedServer, event: string | symbol, ...args: unknown[]): boolean {
      if (dispatch === undefined || !routedEvents.has(event)) return emit.call(this, event, ...args);
      dispatch(event as RoutedEvent, args, () => emit.call(this, event, ...args));
      return true;
    };
    Object.defineProperty(server, 'emit', { value: routedEmit, configurable: true, enumerable: false, writable: true });
    this.#restores.set(server, () => {
      dispatch = undefined;
      if (server.emit !== (routedEmit as unknown)) return; // somebody has wrapped it since
      if (own) Object.defineProperty(server, 'emit', own);
      else delete (server as { emit?: unknown }).emit;
    });
  }

  /** Takes the rule off every server. */
  close(): void {
    for (const restore of this.#restores.values()) restore();
    this.#restores.clear();
    this.#servers.length = 0;
  }
}
