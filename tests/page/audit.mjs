/**
 * Runs Lighthouse and axe on the built pages: `node tests/page/audit.mjs [SCORE] [--no-performance] [PATH..]`, written to
 * target/page/audit with the table of scores. Each category must reach SCORE (95) on a phone and on a desktop, and axe must
 * find nothing. Scores of performance need an idle machine. Pages are compressed, as hosts send them; the network and the
 * CPU of a phone are simulated. Installs Lighthouse and the Node.js that it needs into target/page/lighthouse. Not in CI,
 * where axe checks every state of the page (page.test.mjs).
 */

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { loadavg } from "node:os";
import { promisify } from "node:util";
import { CHROME, launch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PAGE, SHOTS } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const FORMS = { phone: [], desktop: ["--preset=desktop"] };
/** Lighthouse's benchmark index of a fast desktop, which is slowed down four times. */
const FAST = 1500;
/** Benchmark index of a phone; slower machines cannot be audited. */
const SLOW = FAST / 4;
const TOOLS = `${SHOTS}/lighthouse`;
const run = promisify(execFile);

const given = process.argv.slice(2);
const timed = !given.includes("--no-performance");
const CATEGORIES = [...(timed ? ["performance"] : []), "accessibility", "best-practices", "seo"];
const named = given.filter((argument) => !argument.startsWith("--"));
const least = /^\d+$/.test(named[0] ?? "") ? Number(named.shift()) : 95;
assertBuilt();
const guides = (await readdir(`${PAGE}/docs`)).filter((name) => name.endsWith(".html") && name !== "404.html").sort();
const pages = named.length > 0 ? named : ["", "bench/", "report/", ...guides.map((name) => (name === "index.html" ? "docs/" : `docs/${name}`)), "docs/api/jerboa/"];
const folder = `${SHOTS}/audit`;
await mkdir(folder, { recursive: true });
if (!existsSync(`${TOOLS}/node_modules/lighthouse`)) await run("npm", ["install", "--silent", "--prefix", TOOLS, "node@22", "lighthouse@13"]);
const server = await serve({ "/": PAGE }, {}, { gzip: true });
let wrong = 0;

/** axe's findings on a page at the widths of a phone and a desktop, light and dark. */
async function runAxe(browser, axe, path) {
  for (const [width, colorScheme] of [[390, "light"], [390, "dark"], [1440, "light"], [1440, "dark"]]) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme, bypassCSP: true });
    await page.goto(`${server.url}/${path}`);
    await page.locator("h1").first().waitFor();
    await page.evaluate(axe);
    // VitePress's own parts are tested by Lighthouse's score alone.
    const { violations } = await page.evaluate((isGuide) => window.axe.run(isGuide ? ".vp-doc" : document, { resultTypes: ["violations"] }), path.startsWith("docs/"));
    wrong += violations.length;
    for (const { id, help, nodes } of violations) console.log(`/${path} ${width} ${colorScheme}: ${id}: ${help}: ${nodes.slice(0, 5).map((n) => n.html.slice(0, 200)).join(" ")}`);
    await page.close();
  }
}

/** One report of Lighthouse, also written as HTML. */
async function report(path, name, form, slowdown) {
  const file = `${folder}/${name}`;
  const throttling = form === "phone" ? [`--throttling.cpuSlowdownMultiplier=${slowdown}`] : [];
  const flags = ["--quiet", "--output=json", "--output=html", `--output-path=${file}`, `--only-categories=${CATEGORIES}`, "--disable-full-page-screenshot", "--max-wait-for-load=120000", ...FORMS[form], ...throttling, "--chrome-flags=--headless=new --no-sandbox --enable-unsafe-webgpu --use-webgpu-adapter=swiftshader"];
  await run(`${TOOLS}/node_modules/node/bin/node`, [`${TOOLS}/node_modules/lighthouse/cli/index.js`, `${server.url}/${path}`, ...flags], { env: { ...process.env, CHROME_PATH: CHROME }, maxBuffer: 1 << 26 });
  return JSON.parse(await readFile(`${file}.report.json`, "utf8"));
}

/** The report to judge by: the median of three where the first does not reach the score, since other load on the machine counts as the page's. */
async function judged(path, name, form, slowdown) {
  const reports = [await report(path, name, form, slowdown)];
  if (!timed) return reports[0];
  if (100 * reports[0].categories.performance.score < least) for (let i = 0; i < 2; i++) reports.push(await report(path, name, form, slowdown));
  return reports.sort((a, b) => a.categories.performance.score - b.categories.performance.score)[reports.length >> 1];
}

try {
  const browser = await launch();
  const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  for (const path of pages) await runAxe(browser, axe, path);
  await browser.close();
  const { benchmarkIndex } = timed ? (await report("report/", "machine", "phone", 1)).environment : { benchmarkIndex: FAST };
  const slowdown = Math.min(4, Math.max(1, (4 * benchmarkIndex) / FAST));
  if (timed) console.log(`benchmark index ${benchmarkIndex}, load ${loadavg()[0].toFixed(1)}: phones are slowed down ${slowdown.toFixed(1)} times${benchmarkIndex < SLOW ? "; this machine is busy or slow, and its scores of performance say little" : ""}`);
  const rows = [`| page | form | ${CATEGORIES.join(" | ")} |`, `|---|---|${"--:|".repeat(CATEGORIES.length)}`];
  console.log(rows.join("\n"));
  for (const path of pages) {
    for (const form of Object.keys(FORMS)) {
      const name = `${path.replaceAll(/\W+/g, "-").replace(/-$/, "") || "page"}-${form}`;
      const { categories, audits } = await judged(path, name, form, slowdown);
      const scores = CATEGORIES.map((id) => Math.round(100 * categories[id].score));
      wrong += scores.filter((score) => score < least).length;
      rows.push(`| /${path} | ${form} | ${scores.join(" | ")} |`);
      console.log(rows.at(-1));
      const worst = CATEGORIES.filter((id, i) => scores[i] < least).flatMap((id) => categories[id].auditRefs).filter(({ id, weight }) => weight > 0 && audits[id].score !== null && audits[id].score < 0.9);
      for (const { id } of worst) console.log(`    ${id}: ${audits[id].displayValue ?? audits[id].title}`);
    }
  }
  await writeFile(`${folder}/scores.md`, `${rows.join("\n")}\n`);
} finally {
  await server.close();
}
console.log(wrong === 0 ? `nothing is wrong; ${folder}` : `${wrong} findings; ${folder}`);
process.exitCode = wrong === 0 ? 0 : 1;
