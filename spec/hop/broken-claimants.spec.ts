import { expect } from 'chai';
import { refusalOf, startRemoteFront, type RemoteFront } from '../fixtures/hop-front.ts';
import { textbookForwarder } from '../fixtures/hop-textbook.ts';
import { looksWhole, standIn, type StandIn } from '../fixtures/hop-stand-in.ts';
import { head, talk, Wire } from '../fixtures/hop-wire.ts';
import { listening, portOf } from '../fixtures/routed.ts';

const gone = { status: 410, code: 'SESSION_GONE' };
const brokenOff = { status: 502, code: 'CLAIMANT_UNREACHABLE' };

const get = (target: string, ...fields: string[]): string => head(`GET ${target} HTTP/1.1`, ...fields);
const early = 'HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n';
const bound = 'HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 9\r\n';
const chunks = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n';

/** What is no reply, or no whole head of one, from a claimant that closes behind it. */
const noReplies: Record<string, string> = {
  'no byte': '',
  'part of a status line': 'HTTP/1.1 200 O',
  'a status line': 'HTTP/1.1 200 OK\r\n',
  'part of a field name': 'HTTP/1.1 200 OK\r\nContent-Le',
  'part of a field': `${bound}X-B: `,
  'a head that lacks its end': bound,
  'a head that lacks half of its end': `${bound}\r`,
  'an interim reply and no other': early,
  'interim replies, and part of a head': early.repeat(3) + bound,
};

/** What is no reply, from a claimant that waits for more. */
const garbage: Record<string, string> = {
  'a word': 'garbage\r\n\r\n',
  'a page': '<!DOCTYPE html>\r\n<title>Hello</title>\r\n\r\n',
  'a request': get('/smuggled'),
  'a status line that lacks a status': 'HTTP/1.1 nonsense\r\n\r\n',
  'a status of two digits': 'HTTP/1.1 20 OK\r\n\r\n',
  'a status of four digits': 'HTTP/1.1 2000 OK\r\n\r\n',
  'another protocol': 'SSH-2.0-OpenSSH_9.6\r\n\r\n',
  'an alert of TLS': '\x15\x03\x01\x00\x02\x02\x46\r\n\r\n',
  'zero bytes': '\0'.repeat(100),
  'a field that has no name': `${bound}: value\r\n\r\n`,
  'a line that is no field': `${bound}nonsense\r\n\r\n`,
  'a name that has a space': `${bound}X Y: 1\r\n\r\n`,
  'a zero byte in a field': `${bound}X-B: a\0b\r\n\r\n`,
  'a length that is no number': 'HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n',
  'a length below zero': 'HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n',
  'two lengths': `${bound}Content-Length: 5\r\n\r\nfirst`,
  'an interim reply, and then a word': `${early}garbage\r\n\r\n`,
};

/** What begins a reply, and breaks it. */
const brokenBodies: Record<string, string> = {
  'less than its length': `${bound}\r\nfirst`,
  'no byte of its length': `${bound}\r\n`,
  'no chunk': chunks,
  'part of a chunk': `${chunks}9\r\nfirst`,
  'a chunk, and no last one': `${chunks}5\r\nfirst\r\n`,
  'a last chunk that lacks its end': `${chunks}5\r\nfirst\r\n0\r\n`,
  'a part of a trailer': `${chunks}5\r\nfirst\r\n0\r\nX-T: `,
};

/** What breaks a reply at once. */
const unsoundBodies: Record<string, string> = {
  'a chunk of no known size': `${chunks}5\r\nfirst\r\nnonsense\r\n`,
  'a chunk that is longer than it says': `${chunks}5\r\nfirst and more\r\n0\r\n\r\n`,
  'a chunk that is longer than it says by what looks like a size': `${chunks}5\r\nfirstBAD\r\n0\r\n\r\n`,
  'a chunk whose size ends with half of its line end': `${chunks}5\nfirst\r\n0\r\n\r\n`,
};

describe('a claimant that breaks', () => {
  let front: RemoteFront;
  let claimant: StandIn | undefined;

  before(async () => (front = await startRemoteFront()));
  afterEach(async () => {
    await claimant?.close();
    claimant = undefined;
    // Now it is gone, and so are the connections that were kept.
    expect(refusalOf(await talk(front.port, get('/')))).to.deep.equal(gone);
    expect(front.process.exitCode).to.equal(null);
  });
  after(() => front.close());

  /** Stands in for a claimant that says something, but to `/fine`, and closes or waits. */
  async function says(bytes: string, closes: boolean): Promise<void> {
    claimant = await standIn(front.socketPath, (socket, request) => {
      const isFine = request === 'GET /fine';
      socket.write(Buffer.from(isFine ? 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine' : bytes, 'latin1'));
      if (!isFine && closes) socket.end();
    });
  }

  const isFine = async (): Promise<void> => {
    expect(await talk(front.port, get('/fine'))).to.match(/ 200 [^]*fine$/);
  };

  for (const [what, bytes] of [...Object.entries(noReplies), ...Object.entries(garbage)]) {
    it(`is a 502 where it says ${what}`, async () => {
      await says(bytes, what in noReplies);
      await isFine(); // so that the connection is a used one
      const reply = await talk(front.port, get('/broken'));
      expect(refusalOf(reply.replace(/^(HTTP\/1\.1 1\d\d [^]*?\r\n\r\n)+/, ''))).to.deep.equal(brokenOff);
      await isFine();
    });
  }

  for (const [what, bytes] of Object.entries(brokenBodies)) {
    it(`shows as such to the client where it says ${what} behind the head`, async () => {
      await says(bytes, true);
      const wire = new Wire(front.port).send(get('/broken', 'Connection: keep-alive'));
      const reply = await wire.rest();
      expect(reply).to.match(/^HTTP\/1\.1 200 OK\r\n/);
      expect(looksWhole(reply)).to.equal(false);
      await isFine();
    });
  }

  for (const [what, bytes] of Object.entries(unsoundBodies)) {
    it(`is a 502 where it says ${what} along with the head, and shows as such where that has left`, async () => {
      await says(bytes, false);
      expect(refusalOf(await talk(front.port, get('/broken')))).to.deep.equal(brokenOff);
      await claimant!.close();
      claimant = await standIn(front.socketPath, (socket) => {
        socket.write(bytes.slice(0, chunks.length));
        void wire.until('\r\n\r\n').then(() => socket.write(bytes.slice(chunks.length)));
      });
      const wire = new Wire(front.port).send(get('/broken', 'Connection: keep-alive'));
      expect(looksWhole(`${chunks}${await wire.rest()}`)).to.equal(false);
    });
  }

  it('is not blind: a textbook forwarder makes a whole reply of what is broken', async () => {
    const textbook = await listening(textbookForwarder(front.socketPath));
    const port = { port: portOf(textbook) };
    for (const what of ['a chunk of no known size', 'a chunk that is longer than it says']) {
      await says(unsoundBodies[what]!, true);
      expect(looksWhole(await talk(port, get('/broken'))), what).to.equal(true);
      await claimant!.close();
    }
    textbook.close();
  });

  it('gives no client what it says behind the reply to another', async () => {
    await says(`${bound}\r\nall of itHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled`, false);
    for (let index = 0; index < 5; index++) {
      expect(await talk(front.port, get('/broken'))).to.match(/\r\n\r\nall of it$/);
      await isFine();
    }
  });
});
