/**
 * Benchmarks exact search over 100,000 vectors of 384 in Chromium, on the CPU and on the GPU, and checks that results are equal.
 * `node tests/memory/bench-search.mjs [ROWS] [DIMS]`; `JERBOA_WEBGPU_ADAPTER=` (empty) uses the machine's own GPU instead of SwiftShader.
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
  const report = await page.evaluate(async ([rows, dims]) => {
    const { measure } = await import("/support/search-speed.mjs");
    return measure(new URL("/memory/", location.href), rows, dims);
  }, [rows, dims]);
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
