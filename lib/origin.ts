import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { restoreFields, stripOwnFields } from './headers.ts';

/** What an app may ask of the socket that a client is connected to. */
interface ClientSocket {
  readonly remoteAddress?: string | undefined;
  readonly remoteFamily?: string | undefined;
  readonly remotePort?: number | undefined;
  readonly localAddress?: string | undefined;
  readonly localFamily?: string | undefined;
  readonly localPort?: number | undefined;
  readonly encrypted?: true | undefined;
}

/** What a hop carries of a request beside what its client sent. */
interface Origin {
  readonly socket: ClientSocket;
  readonly httpVersion: string;
  /** Whether the client waits for `100 Continue`, which only the app may send. */
  readonly awaitsContinue: boolean;
}

/** The value of the field by which a hop carries where a request came from. */
export function originOf({ socket, httpVersion }: IncomingMessage, awaitsContinue: boolean): string {
  const { remoteAddress, remoteFamily, remotePort, localAddress, localFamily, localPort } = socket;
  const encrypted = (socket as TLSSocket).encrypted || undefined;
  const client: ClientSocket = {
    remoteAddress,
    remoteFamily,
    remotePort,
    localAddress,
    localFamily,
    localPort,
    encrypted,
  };
  const origin: Origin = { socket: client, httpVersion, awaitsContinue };
  return Buffer.from(JSON.stringify(origin)).toString('base64url');
}

/** Removes what only a hop may carry from a request that came over a public port: there it is never believed. */
export function stripOrigin(request: IncomingMessage): void {
  stripOwnFields(request);
}

/**
 * Makes a request that came over a private socket what it was where its client sent it: its fields, its HTTP version,
 * and the addresses of its socket, from which Express takes `req.ip`, `req.protocol` and more.
 *
 * The addresses belong to the request: its socket is shared with other clients' requests, before and after it. Only
 * the socket of an upgrade is one client's for good, so there the socket itself has them.
 *
 * @returns the port on which the client came in, and whether it waits for `100 Continue`
 */
export function adoptOrigin(request: IncomingMessage): { localPort: number | undefined; awaitsContinue: boolean } {
  // A sibling wrote it: what a client sends under this name never leaves the worker that accepted it.
  const origin = parse(restoreFields(request));
  if (origin === undefined) return { localPort: undefined, awaitsContinue: false };
  const { socket, httpVersion, awaitsContinue } = origin;
  const [httpVersionMajor, httpVersionMinor] = httpVersion.split('.').map(Number);
  Object.assign(request, { httpVersion, httpVersionMajor, httpVersionMinor });
  const members = { ...socket, address: () => addressOf(socket) };
  const target = request as IncomingMessage & { readonly upgrade?: boolean; client?: Socket };
  if (target.upgrade) Object.defineProperties(target.socket, Object.getOwnPropertyDescriptors(members));
  else target.socket = target.client = withMembers(target.socket, members);
  return { localPort: socket.localPort, awaitsContinue };
}

/** What a sibling wrote; undefined for anything else, since whoever may open the socket may send what he likes. */
function parse(value: string | undefined): Origin | undefined {
  try {
    const origin = JSON.parse(Buffer.from(value ?? '', 'base64url').toString()) as Partial<Origin> | null;
    const { socket, httpVersion, awaitsContinue = false } = origin ?? {};
    if (typeof socket !== 'object' || socket === null || !/^\d\.\d$/.test(httpVersion ?? '')) return undefined;
    return { socket, httpVersion: httpVersion as string, awaitsContinue };
  } catch {
    return undefined;
  }
}

/** What `socket.address()` returns. */
function addressOf({ localAddress, localFamily, localPort }: ClientSocket): object {
  return localAddress === undefined ? {} : { address: localAddress, family: localFamily, port: localPort };
}

/** The socket as the app is to see it. Its functions are bound to the real one, which Node's own code works on. */
function withMembers(socket: Socket, members: object): Socket {
  return new Proxy(socket, {
    get(target, key) {
      if (Object.hasOwn(members, key)) return Reflect.get(members, key);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
    set: (target, key, value) => Reflect.set(target, key, value, target),
    has: (target, key) => Object.hasOwn(members, key) || Reflect.has(target, key),
  });
}
