import type { IncomingMessage } from 'node:http';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { trailerLines } from './headers.ts';
import { hasBody, upgradeHead } from './request-head.ts';

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
    if (claimant.bytesRead > 0) relay(claimant, client);
    else claimant.destroy();
  });
  claimant.cork();
  setImmediate(() => claimant.uncork());
  claimant.write(requestText, 'latin1');
  sendBody(request, claimant, () => {
    // None of this can be taken for a request: on this connection, the private socket serves the upgrade and no more.
    claimant.write(head);
    relay(client, claimant);
  });
}

/** Sends the body of an upgrade request, where Node has taken that off its connection. */
function sendBody(request: IncomingMessage, claimant: Socket, onSent: () => void): void {
  if (!readsUpgradeBodies || !hasBody(request)) return onSent();
  const isChunked = request.headers['transfer-encoding'] !== undefined;
  request.on('data', (bytes: Buffer) => {
    if (isChunked) claimant.write(`${bytes.length.toString(16)}\r\n`);
    claimant.write(bytes);
    if (isChunked) claimant.write('\r\n');
  });
  request.once('end', () => {
    if (isChunked) claimant.write(`0\r\n${trailerLines(request.rawTrailers) ?? ''}\r\n`);
    onSent();
  });
}

/** Passes bytes on. When their source closes, so does where they go, once it has sent what it was given. */
function relay(from: Duplex, to: Duplex): void {
  from.on('error', () => to.destroy());
  from.once('close', () => (from.readableEnded ? to.end(() => to.destroy()) : to.destroy()));
  from.pipe(to);
}
