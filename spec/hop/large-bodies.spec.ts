import { expect } from 'chai';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest, type ClientRequest, type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { Readable, type Writable } from 'node:stream';
import { startRemoteFront, type RemoteFront } from '../fixtures/hop-front.ts';
import { head, talk } from '../fixtures/hop-wire.ts';

const mebibyte = 1024 * 1024;
const total = 500 * mebibyte;
const chunk = randomBytes(mebibyte);

/** How far ahead of its reader a writer may be: the system's buffers of two connections, and those of their streams. */
const lead = 24 * mebibyte;

/** What else a process takes, whatever it is that crosses it: garbage that is not collected yet. */
const slack = 100 * mebibyte;

/** Writes chunks as fast as they are taken, and counts their bytes. */
class Writer {
  written = 0;
  readonly #to: Writable;
  readonly #length: number;

  constructor(to: Writable, length = total) {
    this.#to = to;
    this.#length = length;
    to.on('drain', () => this.#write());
    this.#write();
  }

  #write(): void {
    while (this.written < this.#length) {
      this.written += chunk.length;
      if (!this.#to.write(chunk)) return;
    }
    if (this.#to.writable) this.#to.end();
  }
}

describe('a large body', () => {
  let front: RemoteFront;
  let least: number;
  let most: number;
  /** The writers of large replies, and the large requests that have arrived and are not read. */
  let writers: Writer[];
  let arrivals: IncomingMessage[];

  async function start(manner?: 'greedy'): Promise<void> {
    front = await startRemoteFront(manner);
    least = most = await front.memory();
    writers = [];
    await front.serve((request, response) => {
      if (request.url === '/short') return void response.end('short');
      if (request.method === 'GET') {
        response.writeHead(200, { 'Content-Length': total });
        writers.push(new Writer(response));
      } else {
        arrivals.push(request);
        request.once('end', () => response.end('read'));
      }
    });
  }
  beforeEach(() => void (arrivals = []));
  afterEach(async () => {
    for (const request of arrivals) request.destroy(); // unread, it does not see that its client has left
    await front.close();
  });

  /** Makes short exchanges beside, and notes how much memory the forwarder has. */
  async function exchange(): Promise<void> {
    for (let index = 0; index < 10; index++) {
      expect(await talk(front.port, head('GET /short HTTP/1.1'))).to.match(/short$/);
    }
    most = Math.max(most, await front.memory());
  }

  /** Waits until a writer is kept from writing more, while others are served. */
  async function isHeld(writer: Writer): Promise<void> {
    for (let still = 0; still < 3; still++) {
      const { written } = writer;
      await exchange();
      if (writer.written !== written) still = -1;
    }
  }

  /** Reads what is left, and notes how much memory the forwarder has meanwhile, and how far the writer is ahead. */
  async function readAll(stream: Readable, writer?: Writer): Promise<{ length: number; furthest: number }> {
    let [length, furthest, next] = [0, 0, 0];
    for await (const bytes of stream) {
      length += (bytes as Buffer).length;
      if (writer !== undefined) furthest = Math.max(furthest, writer.written - length);
      if (length < next) continue;
      next += 50 * mebibyte;
      most = Math.max(most, await front.memory());
    }
    return { length, furthest };
  }

  /** Asks for a large reply on a connection that is not read. */
  async function download(): Promise<Readable> {
    const client = connect({ ...front.port, host: '127.0.0.1' }).pause();
    client.write(head('GET / HTTP/1.1'));
    await once(client, 'readable');
    return client;
  }

  function upload(headers: Record<string, string | number> = {}): ClientRequest {
    return httpRequest({ ...front.port, host: '127.0.0.1', method: 'POST', headers, agent: false });
  }

  it('waits for a client that does not read; memory stays flat, and nobody else waits', async () => {
    await start();
    const client = await download();
    const [writer] = writers;
    await isHeld(writer!);
    expect(writer!.written).to.be.below(lead);
    const other = await readAll(await download()); // meanwhile
    expect(other.length).to.be.above(total);
    const { length, furthest } = await readAll(client, writer);
    expect(length).to.be.above(total);
    expect(furthest).to.be.below(lead);
    expect(most - least).to.be.below(slack);
  });

  for (const framing of [{ 'Content-Length': total }, { 'Transfer-Encoding': 'chunked' }]) {
    it(`waits for an app that does not read; memory stays flat (${Object.keys(framing)[0]})`, async () => {
      await start();
      const client = upload(framing);
      const replied = once(client, 'response');
      const writer = new Writer(client);
      await isHeld(writer);
      expect(writer.written).to.be.below(lead);
      const { length, furthest } = await readAll(arrivals[0]!, writer);
      expect(length).to.equal(total);
      expect(furthest).to.be.below(lead);
      expect(most - least).to.be.below(slack);
      const [reply] = (await replied) as [IncomingMessage];
      expect(reply.resume().statusCode).to.equal(200);
    });
  }

  it('is not blind: a forwarder that takes what it cannot pass on is caught', async () => {
    await start('greedy');
    const client = await download();
    await isHeld(writers[0]!);
    expect(writers[0]!.written).to.be.above(lead);
    client.destroy();
    const request = upload({ 'Content-Length': total }).on('error', () => undefined);
    const writer = new Writer(request);
    await isHeld(writer);
    expect(writer.written).to.be.above(lead);
    expect(most - least).to.be.above(slack);
    request.destroy();
  });

  for (const mebibytes of [9, 50]) {
    for (const framing of ['in chunks', 'of a known length']) {
      it(`of ${mebibytes} MiB ${framing} crosses both ways`, async () => {
        const fields: Record<string, number> =
          framing === 'in chunks' ? {} : { 'Content-Length': mebibytes * mebibyte };
        front = await startRemoteFront();
        await front.serve(async (request, response) => {
          response.writeHead(200, { 'X-Hash': await hashed(request), ...fields });
          new Writer(response, mebibytes * mebibyte);
        });
        const request = upload(fields);
        const replied = once(request, 'response');
        new Writer(request, mebibytes * mebibyte);
        const [reply] = (await replied) as [IncomingMessage];
        const expected = await hashed(Readable.from(Array.from({ length: mebibytes }, () => chunk)));
        expect(reply.headers['x-hash']).to.equal(expected);
        expect(await hashed(reply)).to.equal(expected);
      });
    }
  }
});

async function hashed(stream: Readable): Promise<string> {
  const hash = createHash('sha256');
  for await (const bytes of stream) hash.update(bytes as Buffer);
  return hash.digest('hex');
}
