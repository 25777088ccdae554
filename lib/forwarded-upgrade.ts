import type { IncomingMessage } from 'node:http';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { chunkEnd, chunkStart, lastChunk } from './chunks.ts';
import { hasBody } from './headers.ts';
import { upgradeHead } from './request-head.ts';

/** From here on, Node reads the body of an upgrade request. Before, it leaves it with the bytes that follow the head. */
const readsUpgradeBodies = Number(process.versions.node.split('.', 1)[0]) >= 26;

/**
 * Sends an upgrade request to a claimant, and passes on as they are the bytes that either side sends from then on.
 *
 * @param client the client's connection, which Node's own server has let go
 * @param head what the client has sent behind the request
 * @param path the claimant's private socket
 * @param onFailure is called where no byte has come back
 * @throws SessionRoutingError `CLAIMANT_UNREACHABLE` for what a lenient parser let in and cannot be written
 */
export function passUpgrade(
  request: IncomingMessage,
  client: Duplex,
  head: Buffer,
  path: string,
  onFailure: (error: Error) => void,
): void {
  if (client.destroyed) return;
  const requestText = upgradeHead(request);
  client.allowHalfOpen = true; // it is the app's to end its side
  const claimant = connect({ path, allowHalfOpen: true });
  let failure: Error = new Error('The claimant closed the connection of an upgrade before it replied.');
  claimant.on('error', (error) => (failure = error));
  claimant.once('close', () => {
    if (claimant.bytesRead === 0) onFailure(failure);
  });
  claimant.once('readable', () => {
    if (claimant.bytesRead === 0) return void claimant.destroy();
    follow(claimant, client);
    claimant.pipe(client);
  });
  follow(client, claimant);
  claimant.cork();
  setImmediate(() => claimant.uncork());
  claimant.write(requestText, 'latin1');
  sendBody(request, claimant, () => {
    // None of this can be taken for a request: on this connection, the private socket serves the upgrade and no more.
    claimant.write(head);
    client.pipe(claimant);
  });
}

/** Sends the body of an upgrade request, where Node has taken that off its connection. */
function sendBody(request: IncomingMessage, claimant: Socket, onSent: () => void): void {
  if (!readsUpgradeBodies || !hasBody(request)) return onSent();
  const isChunked = request.headers['transfer-encoding'] !== undefined;
  claimant.on('drain', () => request.resume());
  request.on('data', (bytes: Buffer) => {
    const pieces = isChunked ? [chunkStart(bytes), bytes, chunkEnd] : [bytes];
    for (const piece of pieces) if (!claimant.write(piece)) request.pause();
  });
  request.once('end', () => {
    const last = isChunked ? lastChunk(request.rawTrailers) : '';
    if (last === undefined) return void claimant.destroy();
    claimant.write(last);
    onSent();
  });
}

/** When a connection closes, lets another close as well, once it has sent what it was given. */
function follow(from: Duplex, to: Duplex): void {
  from.on('error', () => to.destroy());
  from.once('close', () => (from.readableEnded ? to.end(() => to.destroy()) : to.destroy()));
}
