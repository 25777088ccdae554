import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { chunked, head } from '../fixtures/hop-wire.ts';

const get = (...fields: string[]): string => head('GET /a HTTP/1.1', sessionCookie, ...fields);
const post = (...fields: string[]): string => head('POST /a HTTP/1.1', sessionCookie, ...fields);
const smuggled = 'GET /smuggled HTTP/1.1\r\nHost: app.example\r\n\r\n';

/** What `insecureHTTPParser` lets in, and a forwarder that hands it on must frame soundly all the same. */
const requests: Record<string, Case | string> = {
  'with control characters in a field': get('X-A: a\x01\x02b'),
  'with control characters in the field that names its session': get('X-A: 1', 'Cookie: a=\x01'),
  'with control characters in a field of a body': `${post('X-A: a\x01', 'Content-Length: 2')}hi`,
  'both in chunks and of a known length': post('Transfer-Encoding: chunked', 'Content-Length: 3') + chunked(['hello']),
  'both of a known length and in chunks': post('Content-Length: 3', 'Transfer-Encoding: chunked') + chunked([smuggled]),
  'both of no length and in chunks': post('Content-Length: 0', 'Transfer-Encoding: chunked') + chunked([smuggled]),
};

family('a request that only a lenient parser takes', {
  server: { insecureHTTPParser: true },
  cases: requests,
  textbook: /control/,
});
