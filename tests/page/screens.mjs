/** Screenshots of every state of the page at four widths, light and dark, and a check of each state at 57 widths: `node tests/page/screens.mjs [WIDTH..]`, to target/page/screens. For review; not in CI. */

import { mkdir } from "node:fs/promises";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { SHOTS } from "./support/paths.mjs";
import { STATES, VISITS } from "./support/states.mjs";
import { overflows } from "./support/widths.mjs";

const widths = process.argv.slice(2).map(Number);
const folder = `${SHOTS}/screens`;
await mkdir(folder, { recursive: true });
const site = await fakeEnginePage();

async function take(page, width, colorScheme, name) {
  await page.screenshot({ path: `${folder}/${width}-${colorScheme}-${name}.png` });
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (over > 0) console.log(`${width} ${colorScheme} ${name}: ${over} pixels stick out`);
}

try {
  for (const [width, height] of [[320, 640], [390, 844], [820, 1180], [1440, 900]]) {
    if (widths.length && !widths.includes(width)) continue;
    for (const colorScheme of ["light", "dark"]) {
      const { page, context } = await site.open({ viewport: { width, height }, colorScheme });
      for (const [name, reach] of STATES) {
        await reach(page);
        await take(page, width, colorScheme, name);
      }
      await context.close();
      for (const [name, prepare, path, sign] of VISITS) {
        const { page, context } = await site.open({ viewport: { width, height }, colorScheme }, prepare, path);
        await page.locator(sign).first().waitFor();
        await take(page, width, colorScheme, name);
        await context.close();
      }
    }
    console.log(`${width}: ${2 * (STATES.length + VISITS.length)} screenshots`);
  }
  if (widths.length === 0) {
    const { page } = await site.open();
    for (const [name, reach] of STATES) {
      await reach(page);
      for (const found of await overflows(page)) console.log(`${name} at ${found} stick out`);
      await page.setViewportSize({ width: 1280, height: 800 });
    }
  }
} finally {
  await site.close();
}
console.log(folder);
