import express from 'express';
import { resources, sessionRouting } from 'express-session-routing';

const app = express();
const routing = sessionRouting({ secret: process.env.SESSION_SECRET ?? 'for development only', kind: resources() });
const notes = new Map<string, string[]>(); // live state: only the worker that made it has it

app.use(routing); // ahead of express-session and of body parsers
app.use(routing.session({ resave: false, saveUninitialized: false })); // express-session
app.use(express.json({ limit: '50mb' }));

app.post('/seed_session', (req, res) => {
  if (!notes.has(req.sessionID)) notes.set(req.sessionID, []);
  res.json({ worker: process.pid });
});
app.post('/add_note', (req, res) => {
  notes.get(req.sessionID)?.push(req.body.text);
  res.json({ worker: process.pid, notes: notes.get(req.sessionID) });
});
app.post('/close_session', (req, res) => {
  res.json({ worker: process.pid, wasOpen: notes.delete(req.sessionID) });
});

await routing.listen(app, { port: Number(process.env.PORT ?? 3000) });
console.log(`Worker ${process.pid} listens`);
