import { randomUUID } from 'node:crypto';
import type { Server as HttpServer } from 'node:http';
import type { SessionRouting } from 'express-session-routing';
import { Server, type DefaultEventsMap, type ServerOptions } from 'socket.io';

/** What clients send. */
export interface ClientEvents {
  /** Adds to the connection's counter; the reply has its sum, and the process that keeps it. */
  add(number: number, reply: (sum: number, worker: number) => void): void;
}

/** What the server sends. */
export interface ServerEvents {
  /** Follows each reply, so that clients can check that nothing is lost, doubled or out of order. */
  sum(sum: number): void;
}

export type CounterServer = Server<ClientEvents, ServerEvents, DefaultEventsMap, unknown>;

/** A counter for each Socket.IO connection, in the memory of the worker that accepted it. */
export function serveCounters(
  server: HttpServer,
  routing: Pick<SessionRouting, 'claim' | 'ended'>,
  options: Partial<ServerOptions> = {},
): CounterServer {
  const io: CounterServer = new Server(server, options);

  // A connection is claimed before its client, or anybody else, learns of its ID ...
  io.engine.generateId = () => {
    const sid = randomUUID();
    routing.claim(sid);
    return sid;
  };
  // ... and until it closes: by either side, by a ping timeout, with a WebSocket.
  io.engine.on('connection', (connection) => connection.once('close', () => routing.ended(connection.id)));

  io.on('connection', (socket) => {
    let sum = 0;
    socket.on('add', (number, reply) => {
      sum += number;
      reply(sum, process.pid);
      socket.emit('sum', sum);
    });
  });
  return io;
}
