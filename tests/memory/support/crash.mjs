/** Adds batches to a file store and prints each stored one, until the test kills the process. */

const [, , url, path] = process.argv;
const { createMemory } = await import(`${url}/memory/index.js`);
const { fileStore } = await import(`${url}/memory/file.js`);
const { embedder } = await import("./embedder.mjs");
const memory = await createMemory({ model: embedder(), store: fileStore(path), batchSize: 16 });
for (let i = 0; ; i++) {
  // A document of sixteen chunks: all of them or none must be found later.
  const text = Array.from({ length: 16 }, (_, j) => `Document ${i} says sentence ${j} with a few words more.`).join(" ");
  await memory.add({ id: `d${i}`, text }, { chunk: { maxTokens: 10, overlap: 0 } });
  process.stdout.write(`${i}\n`);
}
