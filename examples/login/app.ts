// A login on express-session's MemoryStore, as every worker runs it. Or alone: `npx tsx examples/login/app.ts`.
import { createHash, timingSafeEqual } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import express, { type Request } from 'express';
import session from 'express-session';
import { sessionRouting, web } from 'express-session-routing';
import { homePage, loginPage } from './pages.ts';

declare module 'express-session' {
  interface SessionData {
    user: string;
    visits: number;
  }
}

const { PORT = '3000', SESSION_SECRET = 'for development only', LOGIN_PASSWORD = 'sesame' } = process.env;

const routing = sessionRouting({ secret: SESSION_SECRET, kind: web({ idleSeconds: 3600 }) });
const app = express();
app.disable('x-powered-by');
app.use((_req, res, next) => {
  res.set({ 'Content-Security-Policy': "default-src 'none'; style-src 'self'; form-action 'self'" });
  next();
});
app.use(routing);
app.use(express.static(fileURLToPath(new URL('public', import.meta.url))));
app.use(
  session({
    secret: SESSION_SECRET,
    genid: routing.genid,
    resave: false,
    saveUninitialized: false,
    // Lax: no other site can post a form with this cookie.
    cookie: { httpOnly: true, sameSite: 'lax', secure: 'auto' },
  }),
);
app.use(express.urlencoded({ extended: false }));

app.get('/', (req, res) => {
  const { user } = req.session;
  if (user === undefined) return res.redirect(303, '/login');
  const visits = (req.session.visits = (req.session.visits ?? 0) + 1);
  res.set('Cache-Control', 'no-store').send(homePage({ user, visits, worker: process.pid }));
});

app.get('/login', (_req, res) => {
  res.send(loginPage({ worker: process.pid }));
});

app.post('/login', (req, res, next) => {
  const { name = '', password = '' } = (req.body ?? {}) as Record<string, unknown>;
  if (typeof name !== 'string' || name.trim() === '' || !isPassword(password)) {
    return res.status(401).send(loginPage({ worker: process.pid, failed: true }));
  }
  // A new session ID, or whoever planted the old one in this browser would be logged in too (session fixation).
  req.session.regenerate((error) => {
    if (error) return next(error);
    req.session.user = name.trim();
    res.redirect(303, '/');
  });
});

app.post('/logout', (req: Request, res, next) => {
  req.session.destroy((error) => {
    if (error) return next(error);
    res.clearCookie('connect.sid').redirect(303, '/login');
  });
});

/** Compares hashes, whose length and time of comparison tell nothing about the password. */
function isPassword(written: unknown): boolean {
  const hash = (text: string) => createHash('sha256').update(text).digest();
  return typeof written === 'string' && timingSafeEqual(hash(written), hash(LOGIN_PASSWORD));
}

const server = await routing.listen(app, { host: '127.0.0.1', port: Number(PORT) });
console.log(`Worker ${process.pid} listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
