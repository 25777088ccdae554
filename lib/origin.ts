import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { BoundedMap } from './bounded-map.ts';
import { clientSocket } from './client-socket.ts';
import { restoreFields } from './headers.ts';

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

type ClientMembers = ClientSocket & { readonly server: unknown };

/** What a client expects (RFC 9110, section 10.1.1) that the app is to answer. */
export type Expectation = 'continue' | 'other';

/** What a hop carries of a request beside what its client sent. */
export interface Origin {
  /** The port on which the client came in. */
  readonly localPort: number | undefined;
  readonly httpVersion: string;
  readonly expectation: Expectation | undefined;
  /** Whether the client's connection is to last, as far as the request says. */
  readonly keepsAlive: boolean;
  /** Whether this is the last request that the client's connection may send. */
  readonly isLast: boolean;
  /** Whether fields of the request are held. */
  readonly areFieldsHeld: boolean;
  /** Whether the hop frames the body by a field of its own. */
  readonly isFramed: boolean;
}

/** What is said of a request beside what it says itself. */
export type CarriedOrigin = Omit<Origin, 'localPort' | 'httpVersion'>;

/** Under which a client's socket keeps what {@link encodedClient} made of it. */
const encoded = Symbol('express-session-routing client');

/** How many clients' connections are remembered, at some 500 bytes each. */
const maximumClients = 10_000;

/** Stands between an origin and the request target, ahead of which it crosses: no origin has it. */
const originEnd = '~';

/**
 * The target of a request as it crosses the hop: what is known of where the request came from, and the client's own
 * target, byte for byte.
 *
 * It travels there, and not in a field, so that the fields are what they were: to remove one from a request that has
 * been parsed costs more than all else that the hop does with it.
 */
export function hopTarget(
  request: IncomingMessage,
  target: string,
  { expectation, keepsAlive, isLast, areFieldsHeld, isFramed }: CarriedOrigin,
): string {
  const flags =
    (keepsAlive ? 1 : 0) +
    (isLast ? 2 : 0) +
    (areFieldsHeld ? 4 : 0) +
    (expectation === 'continue' ? 8 : 0) +
    (expectation === 'other' ? 16 : 0) +
    (isFramed ? 32 : 0);
  return `/${request.httpVersion}:${flags}:${encodedClient(request.socket)}${originEnd}${target}`;
}

function encodedClient(socket: Socket & { [encoded]?: { address: string | undefined; text: string } }): string {
  const known = socket[encoded];
  if (known !== undefined && known.address === socket.remoteAddress) return known.text;
  const { remoteAddress, remoteFamily, remotePort, localAddress, localFamily, localPort } = socket;
  const isEncrypted = (socket as Partial<TLSSocket>).encrypted || undefined;
  const client: ClientSocket & { connection: number } = {
    remoteAddress,
    remoteFamily,
    remotePort,
    localAddress,
    localFamily,
    localPort,
    encrypted: isEncrypted,
    connection: Math.trunc(Math.random() * 2 ** 32), // another client may get the same port one day
  };
  const text = Buffer.from(JSON.stringify(client)).toString('base64url');
  socket[encoded] = { address: remoteAddress, text };
  return text;
}

/**
 * Makes requests that came over a private socket what they were where their clients sent them: their targets, their
 * fields, their HTTP version, and the addresses of their sockets, from which Express takes `req.ip`, `req.protocol` and
 * more.
 *
 * The addresses belong to the request: its socket is shared with other clients' requests, before and after it. Only
 * the socket of an upgrade is one client's for good, so there the socket itself has them.
 */
export class Origins {
  readonly #serverFor: (localPort: number | undefined) => Server | undefined;
  /** What the apps find on the sockets of each client's connection, and have put there. */
  readonly #clients = new BoundedMap<string, ClientMembers>(maximumClients);

  /** @param serverFor the public server with a port, whose requests these are as far as the app can tell */
  constructor(serverFor: (localPort: number | undefined) => Server | undefined) {
    this.#serverFor = serverFor;
  }

  /**
   * Adopts a request, and its reply.
   *
   * @returns where it came from; undefined, and nothing is changed, where no sibling wrote it: whoever may open the
   *   socket may send what he likes
   */
  adopt(request: IncomingMessage, response?: ServerResponse): Origin | undefined {
    const { url = '' } = request;
    const end = url.indexOf(originEnd);
    const [, httpVersion = '', flags = '', client = ''] = hopOrigin.exec(url.slice(0, Math.max(0, end))) ?? [];
    const members = this.#membersOf(client);
    if (members === undefined) return undefined;
    const origin = originOf(httpVersion, Number(flags), members);
    request.url = url.slice(end + 1);
    if (origin.areFieldsHeld) restoreFields(request, origin.isFramed);
    if (httpVersion !== '1.1') {
      const [httpVersionMajor, httpVersionMinor] = httpVersion.split('.').map(Number);
      Object.assign(request, { httpVersion, httpVersionMajor, httpVersionMinor });
    }
    const target = request as IncomingMessage & { client?: Socket };
    if (response === undefined) {
      Object.defineProperties(target.socket, Object.getOwnPropertyDescriptors(members));
      // As Node has it for a client's connection of that kind. (A Unix socket cannot be reset, and says so.)
      const allowHalfOpen = members.encrypted !== true;
      Object.assign(target.socket, { allowHalfOpen, resetAndDestroy: () => target.socket.destroy() });
    } else {
      target.socket = target.client = clientSocket(members, request, response);
      // Node takes what its own code needs from there, too.
      if (response.socket !== null) (response as { socket: Socket }).socket = target.socket;
    }
    return origin;
  }

  #membersOf(text: string): ClientMembers | undefined {
    const known = this.#clients.get(text);
    if (known !== undefined) return known;
    const client = parse(text);
    if (client === undefined) return undefined;
    const { connection: _told, ...ends } = client;
    const server = this.#serverFor(client.localPort);
    const members = { __proto__: null, ...ends, address: () => addressOf(client), server };
    this.#clients.set(text, members);
    return members;
  }
}

/** What is told of a request ahead of its target: its HTTP version, flags, and its client's connection. */
const hopOrigin = /^\/(\d\.\d):(\d+):([\w-]+)$/;

function originOf(httpVersion: string, flags: number, { localPort }: ClientSocket): Origin {
  return {
    localPort,
    httpVersion,
    expectation: flags & 8 ? 'continue' : flags & 16 ? 'other' : undefined,
    keepsAlive: (flags & 1) !== 0,
    isLast: (flags & 2) !== 0,
    areFieldsHeld: (flags & 4) !== 0,
    isFramed: (flags & 32) !== 0,
  };
}

/** What a sibling wrote of a client's connection; undefined for anything else. */
function parse(text: string): (ClientSocket & { readonly connection?: number }) | undefined {
  try {
    const value = JSON.parse(Buffer.from(text, 'base64url').toString()) as ClientSocket | null;
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** What `socket.address()` returns. */
function addressOf({ localAddress, localFamily, localPort }: ClientSocket): object {
  return localAddress === undefined ? {} : { address: localAddress, family: localFamily, port: localPort };
}
