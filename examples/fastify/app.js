import { getRequestListener } from "@hono/node-server";
import fastify from "fastify";
import { jerboa } from "./models.js";

const listener = getRequestListener(jerboa);

export const app = fastify();
// The handler reads the request itself.
app.removeAllContentTypeParsers();
app.addContentTypeParser("*", (request, payload, done) => done(null));
app.all("/v1/*", (request, reply) => {
  reply.hijack();
  return listener(request.raw, reply.raw);
});
