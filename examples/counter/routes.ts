import { Router, type ErrorRequestHandler, type Request, type RequestHandler, type Response } from 'express';
import type { SessionRouting } from 'express-session-routing';
import { BadBody, close, increment, parse, typedSeed, untypedSeed, verify } from './bodies.ts';
import { Conflict, type Counters } from './counter.ts';

/** The counter over HTTP, for sessions that express-session knows by `req.sessionID`. */
export function counterRoutes(counters: Counters): Router {
  const routes = Router();

  routes.get(['/', '/health', '/healthz', '/livez', '/readyz'], (_req, res) => {
    res.json({ status: 'ok' });
  });

  routes.post('/seed_session', (req, res) => {
    const seed = parse(req.body, typedSeed, untypedSeed);
    if ('initial_count' in seed) {
      counters.start(req.sessionID, seed.initial_count);
      res.json({});
    } else {
      counters.seed(seed);
      res.json({ resources_session_id: seed.resources_session_id, resources_tools: null, sandbox_access: null });
    }
  });

  routes.post('/increment_counter', (req, res) => {
    counters.add(req.sessionID, parse(req.body, increment).count);
    res.json({ success: true });
  });

  routes.post('/get_counter_value', (req, res) => {
    res.json({ count: counters.read(req.sessionID) });
  });

  routes.post('/verify', (req, res) => {
    const { expected_count: expectedCount, ...reply } = parse(req.body, verify);
    const reward = counters.reward(req.sessionID, expectedCount);
    res.json({ ...reply, reward, mask_sample: false, failure_kind: null, failure_reason: null });
  });

  routes.post('/close_session', (req, res) => {
    const body = parse(req.body, close);
    counters.close(body);
    res.json({ resources_session_id: body.resources_session_id });
  });

  routes.use((_req, res) => {
    res.status(404).json({ detail: 'Not Found' });
  });
  return routes;
}

/** Tells which worker served a request: only for you to see, and for `npm start` to count. */
export function servedBy(routing: SessionRouting): RequestHandler {
  return (req, res, next) => {
    res.set('X-Served-By', `worker ${process.pid}${routing.isForwarded(req) ? ', forwarded' : ''}`);
    next();
  };
}

/** A handler that may be async on Express 4 too, which would let a rejection end the process. */
export function awaited(handle: (req: Request, res: Response) => Promise<void>): RequestHandler {
  return (req, res, next) => {
    handle(req, res).catch(next);
  };
}

/** Answers with what went wrong, in the form of FastAPI. */
export const answerError: ErrorRequestHandler = (error, req, res, next) => {
  if (res.headersSent) return next(error);
  if (error instanceof BadBody) {
    res.status(422).json({ detail: error.detail });
  } else if (error instanceof Conflict) {
    res.status(409).json({ detail: error.message });
  } else if (error.type === 'entity.parse.failed') {
    res.status(422).json({ detail: [{ type: 'json_invalid', loc: ['body'], msg: error.message }] });
  } else {
    const status: number = error.status ?? 500;
    if (status >= 500) console.error(`${req.method} ${req.originalUrl}: ${error}`);
    res.status(status).json({ detail: error.expose ? error.message : 'Internal Server Error' });
  }
};
