import type { IncomingMessage, ServerResponse } from 'node:http';

/** Calls back once, when a reply has ended or its client has left. */
export function onReplyClosed(request: IncomingMessage, response: ServerResponse, callback: () => void): void {
  if (response.closed) return process.nextTick(callback);
  if (response.socket !== null) return void response.on('close', callback); // comes once
  // A reply that waits behind others of its connection never hears that the connection has closed.
  const { socket } = request;
  const close = (): void => {
    response.off('close', close);
    socket.off('close', close);
    callback();
  };
  response.on('close', close);
  socket.setMaxListeners(0); // a client may have any number of requests wait
  if (socket.destroyed) process.nextTick(close);
  else socket.on('close', close);
}
