/**
 * Runs Lighthouse and axe on the built pages: `node tests/page/audit.mjs [SCORE]`, written to target/page/audit. Each Lighthouse category must reach SCORE (95), and axe must find
 * nothing. Pages are compressed, as hosts send them, at the speed of a slow phone's network. The CPU is slowed down to that of a phone. npx installs Lighthouse 13 and Node.js 22.
 * Not in CI, where axe checks every state of the page (page.test.mjs).
 */

import { execFile } from "node:child_process";
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { promisify } from "node:util";
import { CHROME, launch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PAGE, SHOTS } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const PAGES = ["", "bench/", "report/"];
const CATEGORIES = ["performance", "accessibility", "best-practices"];
/** Lighthouse's benchmark index of a fast desktop, which is slowed down four times. */
const FAST = 1500;
/** Benchmark index of a phone; slower machines cannot be audited. */
const SLOW = FAST / 4;
const least = Number(process.argv[2] ?? 95);
const run = promisify(execFile);

assertBuilt();
const folder = `${SHOTS}/audit`;
await mkdir(folder, { recursive: true });
const server = await serve({ "/": PAGE }, {}, { gzip: true });
let wrong = 0;
try {
  const browser = await launch();
  const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  for (const path of PAGES) {
    for (const [width, colorScheme] of [[390, "light"], [390, "dark"], [1440, "light"], [1440, "dark"]]) {
      const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme, bypassCSP: true });
      await page.goto(`${server.url}/${path}`);
      await page.locator("h1").first().waitFor();
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
      wrong += violations.length;
      for (const { id, help, nodes } of violations) console.log(`/${path} ${width} ${colorScheme}: ${id}: ${help}: ${nodes.map((n) => n.html).join(" ")}`);
      await page.close();
    }
  }
  await browser.close();
  const look = async (path, report, slowdown) => {
    const flags = ["--quiet", "--output=json", "--output=html", `--output-path=${report}`, `--only-categories=${CATEGORIES}`, "--disable-full-page-screenshot", "--max-wait-for-load=120000", `--throttling.cpuSlowdownMultiplier=${slowdown}`, "--chrome-flags=--headless=new --no-sandbox --enable-unsafe-webgpu --use-webgpu-adapter=swiftshader"];
    await run("npx", ["--yes", "--package=node@22", "--package=lighthouse@13", "lighthouse", `${server.url}/${path}`, ...flags], { env: { ...process.env, CHROME_PATH: CHROME }, maxBuffer: 1 << 26 });
    return JSON.parse(await readFile(`${report}.report.json`, "utf8"));
  };
  const { benchmarkIndex } = (await look("report/", `${folder}/machine`, 1)).environment;
  const slowdown = Math.min(4, Math.max(1, (4 * benchmarkIndex) / FAST));
  console.log(`this machine's benchmark index is ${benchmarkIndex}: slowed down ${slowdown.toFixed(1)} times${benchmarkIndex < SLOW ? "; it is busy or slow: its scores of performance say little" : ""}`);
  for (const path of PAGES) {
    const report = `${folder}/${path.replace("/", "") || "page"}`;
    // The median of three runs: other load on the machine counts as the page's.
    const reports = [];
    for (let i = 0; i < 3; i++) reports.push(await look(path, report, slowdown));
    const { categories, audits } = reports.sort((a, b) => a.categories.performance.score - b.categories.performance.score)[1];
    const scores = CATEGORIES.map((name) => [name, Math.round(100 * categories[name].score)]);
    wrong += scores.filter(([, score]) => score < least).length;
    console.log(`/${path}: ${scores.map(([name, score]) => `${name} ${score}`).join(", ")}`);
    const worst = CATEGORIES.flatMap((name) => categories[name].auditRefs).filter(({ id, weight }) => weight > 0 && audits[id].score !== null && audits[id].score < 0.9);
    for (const { id } of worst) console.log(`    ${id}: ${audits[id].displayValue ?? audits[id].title}`);
  }
} finally {
  await server.close();
}
console.log(wrong === 0 ? `nothing is wrong; ${folder}` : `${wrong} findings; ${folder}`);
process.exitCode = wrong === 0 ? 0 : 1;
