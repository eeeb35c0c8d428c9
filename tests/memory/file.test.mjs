/** The file store with real files and processes: persistence, crashes, damage, migration, refusals, compaction. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, open, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { buildFacade } from "../page/support/facade.mjs";
import { embedder } from "./support/embedder.mjs";

let api, fileStore, log, url, folder, cleanUp;

before(async () => {
  const built = await buildFacade();
  ({ url } = built);
  api = await import(`${url}/memory/index.js`);
  log = await import(`${url}/memory/log.js`);
  ({ fileStore } = await import(`${url}/memory/file.js`));
  folder = await mkdtemp(join(tmpdir(), "jerboa-memory-"));
  cleanUp = () => Promise.all([built.remove(), rm(folder, { recursive: true })]);
});
after(() => cleanUp());

const refusal = (code, pattern) => (error) => {
  assert.equal(error.name, "JerboaError", String(error.stack ?? error));
  assert.equal(error.code, code);
  assert.match(error.message, pattern);
  return true;
};
const at = (name) => join(folder, name);
const opened = (path, options = {}) => api.createMemory({ model: embedder(), store: fileStore(path), ...options });
const size = async (path) => (await stat(path)).size;
const three = [
  { id: "bees", text: "Bees live in hives.", metadata: { n: 1 } },
  { id: "iron", text: "Iron rusts in water." },
  { id: "moon", text: "The moon turns one face to us." },
];

test("added documents are there after reopening", async () => {
  const path = at("lasting");
  const memory = await opened(path);
  await memory.add(three);
  await memory.delete({ document: "moon" });
  await memory.close();
  const again = await opened(path);
  assert.deepEqual((await again.list()).map(({ id, metadata }) => [id, metadata]), [["bees#0", { n: 1 }], ["iron#0", {}]]);
  assert.equal((await again.search("iron in water"))[0].document, "iron");
  assert.deepEqual(again.repairs, []);
  await again.clear();
  await again.close();
  const empty = await opened(path, { model: embedder(8, "another") });
  assert.equal(empty.size, 0);
  await empty.close();
});

test("a truncated file opens with its complete batches, and accepts new ones", async () => {
  const path = at("cut");
  const memory = await opened(path);
  const ends = [await size(path)];
  for (const document of three) {
    await memory.add(document);
    ends.push(await size(path));
  }
  await memory.close();
  const whole = await readFile(path);
  const cuts = [0, 5, ends[0], ends[0] + 1, ends[0] + 11, ends[1] - 1, ends[1], ends[2] + 13, ends[3] - 4, ends[3]];
  for (const cut of cuts) {
    await writeFile(path, whole.subarray(0, cut));
    const damaged = await opened(path);
    const kept = ends.filter((end) => end > ends[0] && end <= cut).length;
    assert.equal(damaged.size, kept, `cut at ${cut}`);
    assert.equal(damaged.repairs.length, ends.includes(cut) || cut < ends[0] ? 0 : 1, `cut at ${cut}: ${damaged.repairs}`);
    await damaged.add({ id: "new", text: "New text." });
    await damaged.close();
    const again = await opened(path);
    assert.equal(again.size, kept + 1);
    assert.deepEqual(again.repairs, []);
    await again.close();
  }
});

test("a damaged frame in the middle loses only its own records", async () => {
  const path = at("damaged");
  const memory = await opened(path);
  const ends = [];
  for (const document of three) {
    await memory.add(document);
    ends.push(await size(path));
  }
  await memory.close();
  for (const place of [ends[0] + 40, ends[0] + 5, ends[0]]) {
    const bytes = await readFile(path);
    bytes[place] ^= 0xff;
    await writeFile(at("damaged2"), bytes);
    const again = await opened(at("damaged2"));
    assert.deepEqual((await again.list()).map(({ document }) => document), ["bees", "moon"]);
    assert.match(again.repairs[0], /damaged/);
    await again.close();
  }
});

test("a process killed during a batch leaves complete documents, including every one that it reported", async () => {
  const path = at("crash");
  const child = spawn(process.execPath, [fileURLToPath(new URL("support/crash.mjs", import.meta.url)), url, path], { stdio: ["ignore", "pipe", "inherit"] });
  let reported = -1;
  await new Promise((resolve, reject) => {
    child.stdout.on("data", (data) => {
      reported = Number(String(data).trim().split("\n").at(-1));
      if (reported >= 5) child.kill("SIGKILL");
    });
    child.on("exit", resolve);
    child.on("error", reject);
  });
  const memory = await opened(path);
  const parts = Map.groupBy ? Map.groupBy(await memory.list(), (r) => r.document) : (await memory.list()).reduce((m, r) => m.set(r.document, [...(m.get(r.document) ?? []), r]), new Map());
  for (let i = 0; i <= reported; i++) assert.ok(parts.has(`d${i}`), `d${i} was reported`);
  for (const [document, records] of parts) assert.deepEqual(records.map(({ part }) => part), Array.from({ length: 16 }, (_, i) => i), document);
  await memory.close();
});

test("one writer at a time; the lock of a dead process is ignored", async () => {
  const path = at("locked");
  const memory = await opened(path);
  await assert.rejects(opened(path), refusal("store_locked", /already open in this process or another/));
  await memory.close();
  await writeFile(`${path}.lock`, "999999999");
  const again = await opened(path);
  await again.close();
  await assert.rejects(again.add("x"), refusal("store", /closed/));
});

test("a newer version is refused and unchanged", async () => {
  const path = at("newer");
  await (await opened(path)).close();
  const bytes = await readFile(path);
  bytes.writeUInt32LE(3, 8);
  await writeFile(path, bytes);
  await assert.rejects(opened(path), refusal("store_version", /layout 3, from a newer version.*was not changed/));
  assert.deepEqual(await readFile(path), bytes);
});

test("version 1 migrates and the old file remains as a backup", async () => {
  const path = at("old.json");
  const old = { version: 1, model: "words", records: [] };
  for (const { id, text, metadata } of three) old.records.push({ id, text, ...(metadata && { metadata }), vector: Array.from((await embedder().embed([text]))[0]), createdAt: 7 });
  await writeFile(path, JSON.stringify(old, null, 2));
  const memory = await opened(path);
  assert.match(memory.repairs[0], /migrated/);
  assert.deepEqual(JSON.parse(await readFile(`${path}.v1`, "utf8")), old);
  assert.equal((await memory.search("bees in hives"))[0].id, "bees");
  await memory.close();
  const again = await opened(path);
  assert.deepEqual([again.size, again.repairs], [3, []]);
  await again.close();
  for (const [text, pattern] of [["not json", /no store header/], ['{"version":1,"records":[{"id":"a"}]}', /lacks/], ['{"a":1}', /version 1/]]) {
    await writeFile(at("strange"), text);
    await assert.rejects(opened(at("strange")), refusal("malformed", pattern));
    assert.equal(await readFile(at("strange"), "utf8"), text);
  }
});

test("obsolete records are removed on opening", async () => {
  const path = at("garbage");
  const memory = await opened(path);
  const text = "word ".repeat(3000);
  for (let i = 0; i < 120; i++) await memory.add({ id: "same", text: `${text}${i}` }, { chunk: false });
  await memory.add({ id: "other", text: "Another text." });
  await memory.close();
  const before = await size(path);
  const again = await opened(path);
  assert.deepEqual((await again.list()).map(({ id }) => id), ["other#0", "same#0"]);
  assert.ok((await size(path)) < before / 20);
  await again.close();
  const last = await opened(path);
  assert.equal(last.size, 2);
  await last.close();
});

test("a full disk is an error that preserves earlier documents", async () => {
  const path = at("full");
  const store = fileStore(path);
  const memory = await api.createMemory({ model: embedder(), store });
  await memory.add(three);
  const before = await size(path);
  // A file handle simulates the disk: half of a write succeeds, then it is full.
  const probe = await open(path, "r");
  const handle = Object.getPrototypeOf(probe);
  await probe.close();
  const { write } = handle;
  let room = 100;
  handle.write = async function (bytes, offset, length, position) {
    if (room <= 0) throw Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
    const part = Math.min(length, room);
    room -= part;
    return write.call(this, bytes, offset, part, position);
  };
  try {
    await assert.rejects(memory.add({ id: "more", text: "More text than fits." }), refusal("quota", /disk is full.*Earlier records are intact/));
  } finally {
    handle.write = write;
  }
  assert.equal(await size(path), before);
  assert.equal(memory.size, 3);
  await memory.add({ id: "later", text: "There is room again." });
  await memory.close();
  const again = await opened(path);
  assert.deepEqual([again.size, again.repairs], [4, []]);
  await again.close();
});

test("a store of another model is refused, or embedded again on request", async () => {
  const path = at("model");
  const memory = await opened(path);
  await memory.add(three);
  await memory.close();
  await assert.rejects(opened(path, { model: embedder(32, "new") }), refusal("model_mismatch", /words.*new/));
  const again = await opened(path, { model: embedder(32, "new"), onModelChange: "reembed" });
  assert.deepEqual((await again.list()).map(({ id, vector }) => [id, vector.length]), [["bees#0", 32], ["iron#0", 32], ["moon#0", 32]]);
  await again.close();
});
