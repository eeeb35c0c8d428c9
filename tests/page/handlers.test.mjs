/** The server examples on Node over the fake engine, with the unmodified OpenAI client: Hono, Express, Fastify, a Next route. */

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { getRequestListener } from "@hono/node-server";
import { build } from "esbuild";
import OpenAI from "openai";
import { buildFacade } from "./support/facade.mjs";
import { ROOT } from "./support/paths.mjs";

const options = { timeout: 120_000 };
let facade, folder;

before(async () => {
  facade = await buildFacade();
  folder = await mkdtemp(join(ROOT, "target", "handlers-"));
}, options);

after(async () => {
  await facade?.remove();
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** An example's module, with the package over the fake engine. */
async function example(file) {
  const outfile = join(folder, `${file.replaceAll(/\W/g, "_")}.mjs`);
  const plugin = { name: "package", setup: ({ onResolve }) => onResolve({ filter: /^jerboa$/ }, () => ({ path: `${facade.url}/index.js`, external: true })) };
  await build({ entryPoints: [join(ROOT, "examples", file)], bundle: true, format: "esm", platform: "node", packages: "external", plugins: [plugin], outfile, logLevel: "silent" });
  return import(pathToFileURL(outfile).href);
}

/** Starts a server for a listener of Node. */
async function listen(listener) {
  const server = createServer(listener);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/v1`,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}

const SERVERS = {
  hono: async () => listen(getRequestListener((await example("hono/app.js")).app.fetch)),
  express: async () => listen((await example("express/app.js")).app),
  fastify: async () => {
    const { app } = await example("fastify/app.js");
    return { url: `${await app.listen({ host: "127.0.0.1", port: 0 })}/v1`, close: () => (app.server.closeAllConnections(), app.close()) };
  },
  next: async () => {
    const route = await example("next/app/v1/[...path]/route.js");
    return listen(getRequestListener((request) => route[request.method]?.(request) ?? new Response(null, { status: 405 })));
  },
};

for (const [name, start] of Object.entries(SERVERS)) {
  test(`${name}: chat, streams, embeddings, models, errors, an abort`, options, async () => {
    const server = await start();
    try {
      const client = new OpenAI({ apiKey: "none", baseURL: server.url, maxRetries: 0 });
      const messages = [{ role: "user", content: "one two three" }];
      const whole = await client.chat.completions.create({ model: "chat", messages });
      assert.equal(whole.choices[0].message.content, "one two three");
      const pieces = [];
      for await (const chunk of await client.chat.completions.create({ model: "chat", messages, stream: true })) pieces.push(chunk.choices[0]?.delta.content ?? "");
      assert.equal(pieces.join(""), "one two three");
      assert.ok(pieces.filter(Boolean).length > 1, "the answer is streamed");
      const { data } = await client.embeddings.create({ model: "embed", input: ["a", "bb"] });
      assert.deepEqual(data.map(({ embedding }) => embedding.length), [3, 3]);
      assert.deepEqual((await client.models.list()).data.map(({ id }) => id), ["chat", "embed"]);
      await assert.rejects(client.chat.completions.create({ model: "other", messages }), { status: 404, code: "model_not_found" });
      const controller = new AbortController();
      const long = [{ role: "user", content: "word ".repeat(5000) }];
      let seen = 0;
      const reading = (async () => {
        for await (const _ of await client.chat.completions.create({ model: "chat", messages: long, stream: true }, { signal: controller.signal })) {
          seen++;
          controller.abort();
        }
      })();
      await reading.catch(() => {});
      assert.ok(seen < 5000);
      // The aborted answer must not hold up the next one.
      const next = await client.chat.completions.create({ model: "chat", messages });
      assert.equal(next.choices[0].message.content, "one two three");
    } finally {
      await server.close();
    }
  });
}
