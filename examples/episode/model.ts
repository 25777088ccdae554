// A stand-in for the model, which always wants the same: that 1 and then 2 be added. `PORT=3002 npx tsx examples/episode/model.ts`.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import express from 'express';
import { parse } from '../counter/bodies.ts';
import { answerError } from '../counter/routes.ts';
import { responseParams } from '../agent/bodies.ts';

const app = express();
app.use(express.json({ limit: '50mb' }));
app.post('/v1/responses', (req, res) => {
  const { input } = parse(req.body, responseParams);
  const results = typeof input === 'string' ? 0 : input.filter(({ type }) => type === 'function_call_output').length;
  const count = [1, 2][results];
  const output =
    count === undefined
      ? { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'The counter is as asked.' }] }
      : {
          type: 'function_call',
          call_id: `call_${randomUUID()}`,
          name: 'increment_counter',
          arguments: JSON.stringify({ count }),
        };
  res.json({
    id: `resp_${randomUUID()}`,
    object: 'response',
    model: 'stand-in',
    status: 'completed',
    output: [output],
  });
});
app.use(answerError);

const server = createServer(app).listen(Number(process.env.PORT ?? 3002), '127.0.0.1', () => {
  console.log(`The model listens on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
});
