/** The demo page's download queue over the real engine and a simulated Hub: one after another, a retry, and a reload of the page. */

import assert from "node:assert/strict";
import { cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, untilReads, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { startHub } from "./support/hub.mjs";
import { PAGE, STORIES } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 900_000 };
/** A download ends with a load, whose kernels a software GPU compiles slowly. */
const LOAD = { timeout: 400_000 };
const NAMES = ["org/queue-one", "org/queue-two"];
let folder, hub, server, browser;

before(async () => {
  assertBuilt();
  folder = await mkdtemp(join(tmpdir(), "jerboa-downloads-"));
  for (const name of NAMES) {
    await cp(STORIES, join(folder, name), { recursive: true });
    await writeFile(join(folder, name, ".hub.json"), JSON.stringify({ downloads: 5, tags: ["automatic-speech-recognition", "safetensors", "license:mit"], safetensors: { parameters: { F32: 260_032 }, total: 260_032 } }));
  }
  [hub, server, browser] = await Promise.all([startHub(folder), serve({ "/": PAGE }), launch()]);
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

const weightsOf = async (name) => (await hub.control("log")).filter(({ method, path, status }) => method === "GET" && path.includes(`${name}/`) && path.endsWith("model.safetensors") && status < 300);

test("two models are downloaded in turn, through a reload and a refusal, and load from the cache", options, async () => {
  const page = await (await browser.newContext()).newPage();
  const problems = watch(page);
  // This tab loads no model of its own.
  await page.goto(`${server.url}/#stt`);
  await warmUp(page);
  const dialog = page.getByRole("dialog");
  const queue = dialog.getByRole("region", { name: "Downloads" });
  const entry = (name) => queue.getByRole("listitem").filter({ hasText: name });

  // The first is too slow to end before the reload, the second is refused.
  await hub.control("faults", [{ match: "queue-one/", kind: "slow", rate: 60_000, piece: 6000 }]);
  await hub.control("gate", { [NAMES[1]]: "secret" });
  await page.locator(".model-button").click();
  await dialog.getByText("Advanced").click();
  await dialog.getByRole("textbox", { name: "Endpoint" }).fill(hub.url);
  await dialog.getByRole("textbox", { name: "From Hugging Face" }).fill("queue");
  await dialog.getByRole("button", { name: "Search", exact: true }).click();
  for (const name of NAMES) await dialog.getByRole("button", { name: `Download ${name} for later` }).click();
  await untilReads(entry(NAMES[0]), /Downloading · [1-9][\d.]* kB of 1\.\d MB/);
  await untilReads(entry(NAMES[1]), /Waiting · 1\.0 MB/);
  await page.reload();

  await page.getByText("2 downloads").waitFor({ state: "attached" });
  await hub.control("reset", {});
  await hub.control("gate", { [NAMES[1]]: "secret" });
  await page.locator(".model-button").click();
  await entry(NAMES[1]).getByText("accept its terms").waitFor(LOAD);
  assert.equal(await entry(NAMES[0]).count(), 0, "the first is complete");
  assert.equal((await weightsOf(NAMES[1])).length, 0);
  await hub.control("reset", {});
  await entry(NAMES[1]).getByRole("button", { name: `Try again: ${NAMES[1]}` }).click();
  await queue.waitFor({ state: "detached", ...LOAD });
  assert.ok((await weightsOf(NAMES[1])).length > 0);

  // Both are stored: no byte of them is fetched again.
  await hub.control("reset", {});
  for (const name of NAMES) await untilReads(dialog.locator(".choice", { hasText: name }), /1\.\d MB/);
  for (const name of NAMES) {
    await dialog.locator(".choice", { hasText: name }).click();
    await page.getByText(`${name} is not a speech-to-text model.`).waitFor(LOAD);
    await page.locator(".model-button").click();
  }
  const log = await hub.control("log");
  assert.ok(log.some(({ path }) => path.includes(NAMES[0])), "the server was asked for its commit");
  assert.deepEqual([...(await weightsOf(NAMES[0])), ...(await weightsOf(NAMES[1]))], []);
  assert.deepEqual(problems.filter((line) => !/40[134]/.test(line)), []);
});
