import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { chunked, head } from '../fixtures/hop-wire.ts';

const smuggled = 'GET /smuggled HTTP/1.1\r\nHost: app.example\r\n\r\n';
const lasting = (line: string, ...fields: string[]): string =>
  head(line, sessionCookie, 'Connection: keep-alive', ...fields);
const last = head('GET /last HTTP/1.1', sessionCookie);
const post = lasting('POST /1 HTTP/1.1', 'Transfer-Encoding: chunked') + chunked([smuggled], ['X-T: 1']);

/** Slow for a target that says so, so that later requests are answered ahead of it. */
const inTurn: NonNullable<Case['answer']> = (response, { url }) => {
  const end = (): void => void response.end(`answer to ${url}`);
  if (!url?.includes('slow')) return end();
  response.write('slow ');
  setTimeout(end, 20);
};

family('the requests of a connection that does not wait for replies', {
  cases: {
    'with bodies, without, and of other methods': {
      text: post + lasting('GET /2 HTTP/1.1') + lasting('HEAD /3 HTTP/1.1') + lasting('DELETE /4 HTTP/1.1') + last,
      requests: 5,
      answer: inTurn,
    },
    'the first of which is slow': {
      text: lasting('GET /slow HTTP/1.1') + lasting('GET /2 HTTP/1.1') + post + last,
      requests: 4,
      answer: inTurn,
    },
    'of which a few belong to no session': {
      text: lasting('GET /1 HTTP/1.1') + head('GET /2 HTTP/1.1', 'Connection: keep-alive') + last,
      requests: 3,
      answer: inTurn,
    },
    'of which one is a seed': {
      text: lasting('GET /slow HTTP/1.1') + lasting('POST /seed_session HTTP/1.1', 'Content-Length: 2') + `{}${last}`,
      requests: 3,
      answer: inTurn,
    },
    'many of them': {
      text:
        Array.from({ length: 50 }, (_, index) => lasting(`GET /${index}${index % 7 ? '' : 'slow'} HTTP/1.1`)).join('') +
        last,
      requests: 51,
      answer: inTurn,
    },
    'with hints ahead of each reply': {
      text: lasting('GET /slow HTTP/1.1') + lasting('GET /2 HTTP/1.1') + last,
      requests: 3,
      answer: (response, seen) => {
        response.writeProcessing();
        inTurn(response, seen);
      },
    },
    'one of which has its connection closed by the app': {
      text: lasting('GET /1 HTTP/1.1') + lasting('GET /close HTTP/1.1') + lasting('GET /never HTTP/1.1'),
      requests: 2,
      serve: (request, response, note) => {
        if (request.url === '/never') return; // it may have come by then
        note(request.url);
        if (request.url === '/close') response.setHeader('Connection', 'close');
        response.end(request.url);
      },
    },
    'the last of which is none': { text: `${lasting('GET /1 HTTP/1.1')}nonsense\r\n\r\n`, requests: 1 },
  },
  textbook: ['with bodies, without, and of other methods', 'with hints ahead of each reply'],
});
