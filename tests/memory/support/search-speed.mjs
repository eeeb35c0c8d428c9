/** Benchmarks exact search over random vectors, on the CPU and on the GPU, and compares the results. Runs in a page. */

import { firstAdapter } from "./adapter.mjs";

/** `folder` is the URL of the package's memory/. A search spans from the query's vector to the ranked rows, including the readback of scores. */
export async function measure(folder, rows, dims) {
  const [{ VectorTable, normalized }, { searchExact, searchScored }, { GpuScorer }] = await Promise.all(
    ["vectors", "search", "search-gpu"].map((name) => import(new URL(`${name}.js`, folder).href)),
  );
  const table = new VectorTable(dims);
  const vector = new Float32Array(dims);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < dims; j++) vector[j] = Math.random() - 0.5;
    table.set({ id: `r${i}`, document: "d", part: i, metadata: {} }, normalized(vector));
  }
  const queries = Array.from({ length: 20 }, () => normalized(Array.from({ length: dims }, () => Math.random() - 0.5)));
  const options = { k: 10 };
  const exact = queries.map((query) => JSON.stringify(searchExact(table, query, options)));
  const adapter = await firstAdapter();
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
    // Rows are marked as uploaded; the next scorer needs all of them again.
    for (const block of table.blocks) block.dirty = { from: 0, to: table.rowsPerBlock };
  }
  const { vendor, architecture, description } = adapter.info;
  return { device: [vendor, architecture, description].filter(Boolean).join(" "), results };
}
