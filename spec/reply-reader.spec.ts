import { expect } from 'chai';
import { endMarks, ReplyReader } from '../lib/reply-reader.ts';

/** Reads bytes in pieces of one size; what is behind the reply is left. */
function read(text: string, size: number, method = 'GET') {
  const interim: string[] = [];
  const reader = new ReplyReader(method, (head) => interim.push(head));
  const bytes = Buffer.from(text, 'latin1');
  let body = '';
  let end = 0;
  for (let at = 0; at < bytes.length && !reader.isComplete; at += size) {
    const piece = bytes.subarray(at, at + size);
    reader.read(piece);
    body += piece.toString('latin1', reader.bodyStart, reader.bodyEnd);
    end = at + reader.bodyEnd;
    if (reader.isComplete && (text[end] === endMarks.kept || text[end] === endMarks.closed)) end++;
    const isBehind = end < Math.min(at + size, bytes.length);
    if (reader.isComplete) expect(reader.isReusable).to.equal(text.includes(endMarks.kept) && !isBehind);
  }
  const { head, isComplete } = reader;
  return { interim, head, isComplete, body, rest: text.slice(end) };
}

const next = 'HTTP/1.1 500 Next\r\n\r\n';
const cookies = 'Set-Cookie: a=1\r\nset-cookie: b=\xe9\r\n';

/** Replies: the head, and the bytes of the body as they are to be found. */
const replies: Record<string, [head: string, body: string, method?: string]> = {
  'of a known length': [`HTTP/1.1 200 OK\r\n${cookies}Content-Length: 5\r\n\r\n`, 'he\r\n\r'],
  'of no bytes': ['HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n', ''],
  'in chunks': [
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n',
    '5\r\nhello\r\n1D\r\n0\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n\r\n0\r\n\r\n',
  ],
  'in chunks with extensions and trailers': [
    'HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: gzip, Chunked\r\nTrailer: X-T\r\n\r\n',
    '2;name="v"\r\nhi\r\n00\r\nX-T: 1\r\nx-t:\r\n\r\n',
  ],
  'in chunks of several codings, and a length that does not count': [
    'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n',
    '1\r\na\r\n0\r\n\r\n',
  ],
  'of one length, told twice': ['HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n', 'a'],
  'of a length, in a coding that is not in chunks': [
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n\r\n',
    'a',
  ],
  'to HEAD': ['HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n', '', 'HEAD'],
  'to HEAD, in chunks': ['HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n', '', 'HEAD'],
  'of status 204': ['HTTP/1.1 204 No Content\r\n\r\n', ''],
  'of status 304': ['HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n', ''],
  'without a reason': ['HTTP/1.1 299 \r\nContent-Length: 1\r\n\r\n', '.'],
};

describe('the reader of replies', () => {
  for (const [name, [head, body, method]] of Object.entries(replies)) {
    it(`finds where one ends, however its bytes come: ${name}`, () => {
      for (const text of Object.values(endMarks).flatMap((mark) => [mark + head + body, head + body + mark])) {
        for (let size = 1; size <= text.length + next.length; size++) {
          const found = read(text + next, size, method);
          expect(found).to.deep.include({ interim: [], isComplete: true, body, rest: next });
          expect(found.head).to.include({ text: head, endsWithConnection: false });
        }
      }
    });

    it(`waits until the app has ended it: ${name}`, () => {
      for (let size = 1; size <= head.length + body.length; size++) {
        expect(read(head + body, size, method)).to.deep.include({ isComplete: false, body });
      }
    });
  }

  it('reads what a head says', () => {
    const { head } = read(
      'HTTP/1.1 404 Not  \xe9\r\nX: 1\r\nconnection: a\r\nConnection:  close \r\nContent-Length: 0\r\n\r\n',
      99,
    );
    expect(head).to.include({ statusCode: 404, statusMessage: 'Not  \xe9', connection: 'a, close' });
    expect(read('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n', 99).head?.connection).to.equal(undefined);
  });

  it('hands interim replies on, and goes on to the reply itself', () => {
    const interim = ['HTTP/1.1 100 Continue\r\n\r\n', 'HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: </b>\r\n\r\n'];
    const [head, body] = replies['of a known length']!;
    for (let size = 1; size <= 200; size++) {
      const found = read(interim.join('') + endMarks.kept + head + body + next, size);
      expect(found).to.deep.include({ interim, body, isComplete: true, rest: next });
      expect(found.head?.text).to.equal(head);
    }
  });

  for (const [name, head] of Object.entries({
    'no length': 'HTTP/1.1 200 OK\r\n\r\n',
    'a coding that is not in chunks': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n',
  })) {
    it(`lets the connection end a reply of ${name}`, () => {
      const found = read(`${head}body${next}`, 7);
      expect(found).to.include({ isComplete: false, body: `body${next}`, rest: '' });
      expect(found.head?.endsWithConnection).to.equal(true);
    });
  }

  for (const [name, text] of Object.entries({
    'no reply': 'GET / HTTP/1.1\r\n\r\n',
    'a status line that is none': 'HTTP/1.1 nonsense\r\n\r\n',
    'a length that is none': 'HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n',
    'two lengths': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n',
    'a field without a name': 'HTTP/1.1 200 OK\r\n: 1\r\n\r\n',
    'a line that is no field': 'HTTP/1.1 200 OK\r\nX Y: 1\r\n\r\n',
    'a zero byte': 'HTTP/1.1 200 OK\r\nX: \0\r\n\r\n',
    'a chunk that is longer than it says': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n',
    'a line that ends in half of a line end': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n',
    'what is behind a reply that has not ended': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab',
    'another version': 'HTTP/2.0 200 OK\r\n\r\n',
    'a chunk of no length': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n',
    'a chunk of more bytes than can be counted': `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${'f'.repeat(14)}\r\n`,
    'a chunk whose length has a sign': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n',
    'a line without an end': `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${'1'.repeat(2 ** 21)}`,
  })) {
    it(`refuses ${name}`, () => {
      for (const size of [1, 10, text.length].filter((each) => text.length / each < 1000)) {
        expect(() => read(text, size)).to.throw(/reply|chunks/);
      }
    });
  }
});
