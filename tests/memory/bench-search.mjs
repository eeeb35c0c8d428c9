/**
 * Times exact search over 100,000 vectors of 384 in Chromium, on the CPU and on the GPU, and checks that both find the same.
 * `node tests/memory/bench-search.mjs [ROWS] [DIMS]`; `JERBOA_WEBGPU_ADAPTER=` (empty) takes the machine's own GPU instead of SwiftShader.
 */

import { fileURLToPath } from "node:url";
import { launch, warmUp } from "../page/support/browser.mjs";
import { buildFacade } from "../page/support/facade.mjs";
import { serve } from "../page/support/server.mjs";

const [rows, dims] = [Number(process.argv[2] ?? 100_000), Number(process.argv[3] ?? 384)];
const built = await buildFacade();
const site = await serve({ "/": built.folder, "/support/": fileURLToPath(new URL("support", import.meta.url)) });
const browser = await launch();
try {
  const page = await browser.newPage();
  await page.goto(`${site.url}/support/page.html`);
  await warmUp(page);
  const report = await page.evaluate(measure, [rows, dims]);
  console.log(`${rows} x ${dims} on ${report.device}`);
  for (const { name, times, same } of report.results) {
    times.sort((a, b) => a - b);
    const [least, median, most] = [times[0], times[times.length >> 1], times.at(-1)].map((t) => t.toFixed(2));
    console.log(`${name}: median ${median} ms, least ${least}, most ${most}${same ? "" : " - THE RESULTS DIFFER"}`);
    if (!same) process.exitCode = 1;
  }
} finally {
  await browser.close();
  await site.close();
  await built.remove();
}

/** Runs in the page. A search is everything from the query's vector to the ranked rows, the copy of the scores included. */
async function measure([rows, dims]) {
  const [{ VectorTable, unit }, { searchExact, searchScored }, { GpuScorer }] = await Promise.all(["vectors", "search", "search-gpu"].map((n) => import(`/memory/${n}.js`)));
  const table = new VectorTable(dims);
  const vector = new Float32Array(dims);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < dims; j++) vector[j] = Math.random() - 0.5;
    table.set({ id: `r${i}`, document: "d", part: i, metadata: {} }, unit(vector));
  }
  const queries = Array.from({ length: 20 }, () => unit(Array.from({ length: dims }, () => Math.random() - 0.5)));
  const options = { k: 10 };
  const exact = queries.map((query) => JSON.stringify(searchExact(table, query, options)));
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  const device = await adapter.requestDevice();
  const results = [];
  const time = async (name, search) => {
    await search(queries[0]);
    const times = [];
    let same = true;
    for (const [i, query] of queries.entries()) {
      const start = performance.now();
      const found = await search(query);
      times.push(performance.now() - start);
      same &&= JSON.stringify(found) === exact[i];
    }
    results.push({ name, times, same });
  };
  await time("CPU", async (query) => searchExact(table, query, options));
  for (const precision of ["f32", "f16"]) {
    const scorer = new GpuScorer(precision, device);
    await time(`GPU ${precision}`, async (query) => {
      const scored = await scorer.scores(table, query);
      return searchScored(table, query, scored.scores, scored.error, options);
    });
    // A table's rows are marked as copied; the next scorer needs them all again.
    for (const block of table.blocks) block.dirty = { from: 0, to: table.rowsPerBlock };
  }
  const { vendor, architecture, description } = adapter.info;
  return { device: [vendor, architecture, description].filter(Boolean).join(" "), results };
}
