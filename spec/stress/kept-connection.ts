import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

/** One connection that is kept, on which one request after another is sent, in bytes: so that little of the time is the client's. */
export class KeptConnection {
  readonly #socket: Socket;
  readonly #request: Buffer;

  private constructor(socket: Socket, request: Buffer) {
    this.#socket = socket;
    this.#request = request;
  }

  static async open(url: string, path: string, cookie: string, body: string): Promise<KeptConnection> {
    const { hostname, port, host } = new URL(url);
    const socket = connect(Number(port), hostname).setNoDelay();
    await once(socket, 'connect');
    const head = [
      `POST ${path} HTTP/1.1`,
      `Host: ${host}`,
      `Cookie: ${cookie}`,
      'Content-Type: application/json',
      `Content-Length: ${Buffer.byteLength(body)}`,
    ];
    return new KeptConnection(socket, Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`));
  }

  /** Sends the request. Returns the reply, and how many milliseconds it took to be complete. */
  async send(): Promise<{ text: string; milliseconds: number }> {
    const began = performance.now();
    this.#socket.write(this.#request);
    let text = '';
    for (;;) {
      const [chunk] = (await once(this.#socket, 'data')) as [Buffer];
      text += chunk.toString('latin1');
      const end = text.indexOf('\r\n\r\n');
      const length = /^content-length: *(\d+)/im.exec(text)?.[1];
      if (end === -1 || length === undefined || text.length < end + 4 + Number(length)) continue;
      const milliseconds = performance.now() - began;
      if (!text.startsWith('HTTP/1.1 200 ')) throw new Error(`A tool call was answered with ${text}`);
      return { text, milliseconds };
    }
  }

  close(): void {
    this.#socket.destroy();
  }
}
