/** The bench page on the software adapter: it measures and reports, a decode step creates no WebGPU object, and no speed is shown without a GPU. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PAGE } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { asText } from "../../xtask/bench/table.mjs";

const options = { timeout: 600_000 };
let server, browser;

before(async () => {
  assertBuilt();
  server = await serve({ "/": PAGE });
  browser = await launch();
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

/** Opens the page with settings and waits for its result. */
async function measured(query) {
  const page = await browser.newPage();
  const problems = watch(page);
  await page.goto(`${server.url}/favicon.svg`);
  await warmUp(page);
  await page.goto(`${server.url}/bench/index.html?${query}`);
  await page.waitForFunction(() => window.result, null, options);
  return { page, problems, result: await page.evaluate(() => window.result) };
}

test("a generated model is measured, shown and reported", options, async () => {
  const { page, problems, result } = await measured("shape=tiny&smoke=1&prompt=16,40&gen=12&reps=2&warm=2");
  assert.ok(!result.err, result.err);
  assert.deepEqual(result.runs.map((run) => [run.prompt_tokens, run.tokens]), [[16, 12], [40, 12], [16, 12], [40, 12]]);
  for (const run of result.runs) assert.ok(run.ttft_ms > 0 && run.decode_tps > 0 && run.prefill_tps > 0);
  assert.equal(result.rows.length, 2);
  for (const { prompt, measured, decode_tps, share_of_limit } of result.rows) {
    assert.ok(share_of_limit.min > 0 && share_of_limit.min <= share_of_limit.median && share_of_limit.median <= share_of_limit.max);
    assert.ok(decode_tps.min <= decode_tps.median && decode_tps.median <= decode_tps.max);
    assert.ok(measured.dispatchesPerToken > 0 && measured.dispatchesPerToken === result.info.dispatchesPerToken);
    assert.equal(measured.position, prompt + 6);
    assert.ok(measured.bytesPerToken > 0 && measured.bytesPerToken < result.info.bytes.weights + result.info.bytes.kv);
  }
  assert.ok(result.limits.readGbs > 0);
  assert.ok(result.info.weights.includes("4"), result.info.weights);
  assert.equal(await page.locator("#report table").first().locator("tr").count(), 3);
  assert.ok(await page.locator("#report svg polyline").count());
  // A wrong field is named, and the report of other settings is gone.
  for (const [field, value, said] of [["Runs", "0", /“Runs” must be a whole number of at least 1, not “0”/], ["Runs", "abc", /“Runs” must be .*, not “abc”/], ["Prompt lengths", "16,abc", /“Prompt lengths” must be .*, not “abc”/], ["New tokens", "", /“New tokens” must be .* at least 2/]]) {
    const input = page.getByLabel(field, { exact: true });
    const valid = await input.inputValue();
    await input.fill(value);
    await page.getByRole("button", { name: "Measure", exact: true }).click();
    await page.locator("#state").getByText(said).waitFor();
    assert.equal(await page.locator("#report, #log").filter({ hasText: /./ }).count(), 0, field);
    await input.fill(valid);
  }
  // The server has no /result; that is not a problem of the page.
  assert.deepEqual(problems.filter((line) => !/404|Failed to load resource/.test(line)), []);
  await page.close();
});

test("decode with JSON schemas is measured next to free text", options, async () => {
  const { page, result } = await measured("shape=tiny&smoke=1&prompt=16&gen=16&reps=1&warm=2&profile=0&tokenizer=/models/stories260K/tokenizer.json");
  assert.ok(!result.err, result.err);
  assert.deepEqual(result.constrained.map(({ prompt, schema }) => [prompt, schema]), [[16, "texts"], [16, "strings"], [16, "records"], [16, "letters"]]);
  for (const { free_tps, decode_tps, share, tokens_per_readback } of result.constrained) {
    assert.ok(tokens_per_readback.min > 0.5);
    assert.ok(free_tps.min > 0 && decode_tps.min > 0 && share.min > 0 && share.min <= share.median && share.median <= share.max);
  }
  assert.match(await page.locator("#report").innerText(), /Decode with a JSON schema[^]*records/);
  assert.match(asText([result]), /with schema tok\/s/);
  await page.close();
});

test("several sequences are measured at once", options, async () => {
  const { page, result } = await measured("shape=tiny&smoke=1&prompt=16&gen=12&reps=1&warm=2&profile=0&sequences=3");
  assert.ok(!result.err, result.err);
  assert.deepEqual(result.batches.map(({ sequences, prompt, tokens }) => [sequences, prompt, tokens]), [[3, 16, 12]]);
  for (const { decode_tps, late_ttft_ms } of result.batches) assert.ok(decode_tps.min > 0 && late_ttft_ms.min > 0);
  assert.match(await page.locator("#report").innerText(), /Several sequences at once/);
  await page.close();
});

test("a decode step creates no buffer, no pipeline and no bind group", options, async () => {
  const { page, result } = await measured("shape=host&smoke=1&prompt=8&gen=4&reps=1&warm=0&worker=0");
  assert.ok(!result.err, result.err);
  const { host } = result.rows[0].measured;
  assert.equal(host.objectsCreated, 0);
  assert.ok(host.steps >= 32 && host.msPerStep > 0);
  await page.close();
});

test("quantizing during a load reports where the time went and the peak memory", options, async () => {
  const { page, result } = await measured("shape=tiny&stored=f16&weights=q4&smoke=1&prompt=8&gen=4&reps=1&warm=0&profile=0");
  assert.ok(!result.err, result.err);
  const { load, bytes } = result.info;
  const parts = [load.readingMs, load.writingMs, load.transcodingMs, load.tuningMs, load.compilingMs];
  for (const part of parts) assert.ok(part >= 0, JSON.stringify(load));
  assert.ok(load.transcodingMs > 0 && load.compilingMs > 0);
  assert.ok(parts.reduce((a, b) => a + b) <= load.totalMs && load.totalMs <= result.load_ms, JSON.stringify({ load, all: result.load_ms }));
  assert.ok(load.bytes > bytes.weights && load.peakBytes >= bytes.weights + bytes.kv);
  assert.match(await page.locator("#report").textContent(), /Transcoding and quantizing/);
  await page.close();
});

test("an embedding model reports documents per second", options, async () => {
  const { page, problems, result } = await measured("shape=minilm&smoke=1&texts=5&lengths=16,20&reps=2&warm=1");
  assert.ok(!result.err, result.err);
  const { texts, tokens, runs } = result.embed;
  assert.equal(texts, 5);
  assert.ok(tokens >= 80 && tokens <= 100);
  assert.equal(runs.length, 2);
  for (const run of runs) assert.ok(run.texts_per_s > 0 && run.tokens_per_s >= 16 * run.texts_per_s);
  assert.equal(result.info.task, "embed");
  assert.ok(Math.abs(result.info.parameters - 22.6e6) < 0.2e6, String(result.info.parameters));
  assert.match(await page.locator("#report").textContent(), /Texts\/s/);
  assert.match(asText([result]), /\| minilm \| f16 \| 5 \|/);
  assert.deepEqual(problems.filter((line) => !/404|Failed to load resource/.test(line)), []);
  await page.close();
});

test("tables show a software adapter's work, not its speed", () => {
  const range = { median: 1234, min: 1200, max: 1300 };
  const load = { totalMs: 80, readingMs: 40, writingMs: 10, transcodingMs: 20, tuningMs: 1, compilingMs: 5, kernelsMs: 50, bytes: 2e6, peakBytes: 3e6 };
  const measured = { dispatchesPerToken: 17, bytesPerToken: 5e6, host: { msPerStep: 0.2 }, profiles: [{ rows: 1, position: 9, ms: 2, kernels: { matmul: { dispatches: 8, ms: 1.5 } } }] };
  const row = { prompt: 128, decode_tps: range, prefill_tps: range, ttft_ms: range, share_of_limit: { median: 0.61, min: 0.58, max: 0.64 }, share_of_bandwidth: 0.5, measured };
  const result = (software) => ({
    model: "tiny", agent: "Test", adapter: { vendor: "v", f16: true, subgroups: true, software }, info: { weights: "q4", load }, load_ms: 100, memory: { wasmBytes: 4e6 },
    rows: [row], limits: { readGbs: 4000, dispatchUs: 1.5 },
  });
  const [gpu, software] = [asText([result(false)]), asText([result(true)])];
  for (const cell of ["1234 (1200–1300)", "61 % (58–64)", "40 %", "| matmul |", "75 %", "4000 GB/s"]) assert.ok(gpu.includes(cell), cell);
  for (const cell of ["1234", "61 %", "40 %", "matmul", "GB/s"]) assert.ok(!software.includes(cell), cell);
  assert.match(software, /on the CPU/);
  assert.match(software, /\| 17 \| 5\.00 \|/);
});

test("without a GPU the page says so instead of showing a speed", options, async () => {
  const { page, result } = await measured("shape=tiny&prompt=8");
  assert.match(result.err, /runs WebGPU on the CPU/);
  assert.match(await page.locator("#state").textContent(), /runs WebGPU on the CPU/);
  await page.close();
});

test("the report page tests the device and posts one record, with the overrides of its URL", options, async () => {
  const page = await browser.newPage();
  const problems = watch(page);
  await page.goto(`${server.url}/report/index.html?run&groups=free&limits=minimum&f16=0&force=gemv.ROWS%3D2`);
  await page.waitForFunction(() => window.result, null, options);
  const report = await page.evaluate(() => window.result);
  assert.deepEqual(report.errors, []);
  assert.deepEqual([...report.checks, ...report.model].filter(({ ok }) => !ok), []);
  assert.ok(report.checks.length > 10, `${report.checks.length} checks`);
  assert.deepEqual(report.model.map(({ name }) => name), ["weights equal files", "prefill equals decode", "matmul equals CPU"]);
  assert.deepEqual(report.groups.map(({ group, right }) => [group, right]), [["free", true]]);
  assert.ok(report.device.software && report.measured.dispatchesPerToken > 0 && report.forced.force === "gemv.ROWS=2");
  assert.match(await page.locator("#report p").first().textContent(), /all checks passed/);
  assert.deepEqual(problems, []);
  await page.close();
});
