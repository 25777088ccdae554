import { connect } from 'node:net';
import { hasCode } from './files.ts';

/** `sun_path` holds 108 bytes on Linux and 104 on macOS and the BSDs, the closing zero byte among them. */
const socketPathBytes = process.platform === 'linux' ? 107 : 103;
/** A socket that neither takes nor refuses a connection for so long has a full backlog: its process is stuck, not gone. */
const connectMilliseconds = 1_000;

/** Where a worker listens for requests that its siblings forward: short, because the length of such paths is limited. */
export function socketPath(directory: string, workerId: string): string {
  return `${directory}/${workerId.slice(0, 16)}.sock`;
}

/**
 * Checks that a Unix socket can have this path. Node itself cuts a longer one and listens under another name.
 *
 * @throws Error when the path is longer than the platform allows: 107 bytes on Linux, 103 on macOS and the BSDs
 */
export function checkSocketPath(path: string): void {
  const bytes = Buffer.byteLength(path);
  if (bytes <= socketPathBytes) return;
  throw new Error(
    `The socket path "${path}" has ${bytes} bytes, and this platform allows ${socketPathBytes}. ` +
      'Use a runtime directory with a shorter path.',
  );
}

/** Whether nobody listens on a Unix socket any more. A busy, stopped or stuck process is not gone. */
export function isSocketGone(path: string): Promise<boolean> {
  return new Promise((settle) => {
    const socket = connect({ path, timeout: connectMilliseconds });
    const end = (gone: boolean) => {
      socket.destroy();
      settle(gone);
    };
    socket.once('connect', () => end(false));
    socket.once('timeout', () => end(false));
    socket.once('error', (error) => end(hasCode(error, 'ECONNREFUSED', 'ENOENT')));
  });
}
