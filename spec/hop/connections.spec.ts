import { family, type Case } from '../fixtures/hop-family.ts';
import { sessionCookie } from '../fixtures/hop-twins.ts';
import { head } from '../fixtures/hop-wire.ts';

const keeping = (target: string, ...fields: string[]): string =>
  head(`GET ${target} HTTP/1.1`, sessionCookie, 'Connection: keep-alive', ...fields);

/** Requests one after another on a connection, each once the reply to the one before has come. */
const inTurn = (...texts: string[]): Case => ({
  requests: null,
  async converse(wire) {
    const replies: string[] = [];
    for (const text of texts) {
      wire.send(text);
      replies.push(await wire.until(/\r\n\r\n(ok)?/));
    }
    return [...replies, await wire.rest()];
  },
});

const closing = head('GET /last HTTP/1.1', sessionCookie);

family('the connection of a client whose server keeps it as Node does', {
  cases: {
    'for requests in turn': inTurn(keeping('/1'), keeping('/2'), closing),
  },
  textbook: /./,
});

family('the connection of a client whose server keeps it for a time of its own', {
  prepare: (server) => (server.keepAliveTimeout = 7_000),
  cases: { 'for requests in turn': inTurn(keeping('/1'), keeping('/2'), closing) },
  textbook: /./,
});

family('the connection of a client whose server does not say for how long it is kept', {
  prepare: (server) => (server.keepAliveTimeout = 0),
  cases: { 'for requests in turn': inTurn(keeping('/1'), keeping('/2'), closing) },
  textbook: /./,
});

family('the connection of a client whose server limits its requests', {
  prepare: (server) => (server.maxRequestsPerSocket = 2),
  cases: {
    'up to as many': inTurn(keeping('/1'), closing),
    'one more': inTurn(keeping('/1'), keeping('/2'), closing),
    'all at once': { requests: null, text: keeping('/1') + keeping('/2') + keeping('/3') + closing },
  },
  textbook: /./,
});
