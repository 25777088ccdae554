// Clients that add 1 to 10, with each poll on a connection of its own: `npx tsx examples/socket-io/client.ts`.
import { io, type Socket } from 'socket.io-client';
import type { ClientEvents, ServerEvents } from './counters.ts';

const { URL: url = 'http://127.0.0.1:3000', CLIENTS = '20' } = process.env;

/** Counts over a connection of its own, and says how it went. */
async function count(): Promise<string> {
  const options = { transports: ['polling'], forceNew: true, reconnection: false };
  const socket: Socket<ServerEvents, ClientEvents> = io(url, options);
  const broken = new Promise<never>((_, reject) => {
    socket.once('connect_error', reject);
    socket.once('disconnect', (_reason, details) => reject(details));
  });
  const add = (number: number) =>
    new Promise<[sum: number, worker: number]>((resolve) => {
      socket.emit('add', number, (sum, worker) => resolve([sum, worker]));
    });
  try {
    for (let number = 1; number < 10; number++) await Promise.race([add(number), broken]);
    const [sum, worker] = await Promise.race([add(10), broken]);
    return `${sum === 55 ? 'right' : 'WRONG'}: ${sum} by worker ${worker}`;
  } catch (error) {
    // Engine.IO's client keeps the status of a request that failed in `description`.
    const { message, description } = error as Error & { description?: unknown };
    return `BROKEN: ${message}, status ${description}`;
  } finally {
    socket.close();
  }
}

for (const line of await Promise.all(Array.from({ length: Number(CLIENTS) }, count))) console.log(line);
