import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { fieldsWithout, originField } from './headers.ts';

/** What an app may ask of the socket that a client is connected to. */
interface Origin {
  readonly remoteAddress?: string | undefined;
  readonly remoteFamily?: string | undefined;
  readonly remotePort?: number | undefined;
  readonly localAddress?: string | undefined;
  readonly localPort?: number | undefined;
  readonly encrypted?: true | undefined;
}

const members = ['remoteAddress', 'remoteFamily', 'remotePort', 'localAddress', 'localPort', 'encrypted'] as const;

/** The value of the field by which a hop carries where a request came from. */
export function originOf({ socket }: IncomingMessage): string {
  const { remoteAddress, remoteFamily, remotePort, localAddress, localPort } = socket;
  const encrypted = (socket as TLSSocket).encrypted || undefined;
  const origin: Origin = { remoteAddress, remoteFamily, remotePort, localAddress, localPort, encrypted };
  return Buffer.from(JSON.stringify(origin)).toString('base64url');
}

/** Removes the field from a request that came over a public port: there it means nothing, and no app is to see it. */
export function stripOrigin(request: IncomingMessage): void {
  if (!request.rawHeaders.some((each) => each.length === originField.length && each.toLowerCase() === originField)) {
    return;
  }
  // Node makes both of these on first use, from as many raw fields as it once parsed.
  const { headers, headersDistinct } = request;
  delete headers[originField];
  delete headersDistinct[originField];
  request.rawHeaders = fieldsWithout(request.rawHeaders, (name) => name === originField);
}

/**
 * Gives a request that came over a private socket the addresses of its client, so that `req.ip`, `req.protocol` and
 * what else Express takes from the socket are the same as on a direct one.
 *
 * The override belongs to the request: its socket is shared with other clients' requests, before and after it.
 *
 * @returns the port on which the client came in
 */
export function adoptOrigin(request: IncomingMessage): number | undefined {
  const origin = parse(request.headers[originField]);
  stripOrigin(request);
  request.socket = socketOf(request.socket, origin);
  return origin.localPort;
}

function parse(value: unknown): Origin {
  if (typeof value !== 'string') return {};
  try {
    const origin: unknown = JSON.parse(Buffer.from(value, 'base64url').toString());
    return typeof origin === 'object' && origin !== null ? origin : {};
  } catch {
    return {};
  }
}

/** The socket as the app is to see it. Its functions are bound to the real one, which Node's own code works on. */
function socketOf(socket: Socket, origin: Origin): Socket {
  const overridden: ReadonlySet<string | symbol> = new Set(members);
  return new Proxy(socket, {
    get(target, key) {
      if (overridden.has(key)) return origin[key as keyof Origin];
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
    set: (target, key, value) => Reflect.set(target, key, value, target),
    has: (target, key) => Reflect.has(target, key) || (key === 'encrypted' && origin.encrypted === true),
  });
}
