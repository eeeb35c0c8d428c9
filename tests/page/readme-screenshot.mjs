/** Screenshots for README.md: the built page as it opens, light and dark: `node tests/page/readme-screenshot.mjs`, to docs/pictures. Not in CI. */

import { mkdir } from "node:fs/promises";
import { launch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PAGE, ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

assertBuilt();
const folder = `${ROOT}/docs/pictures`;
await mkdir(folder, { recursive: true });
const server = await serve({ "/": PAGE });
const browser = await launch();
try {
  const context = await browser.newContext({ viewport: { width: 1120, height: 860 } });
  const page = await context.newPage();
  page.setDefaultTimeout(180_000);
  const take = async (name) => {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.screenshot({ path: `${folder}/${name}-${colorScheme}.png` });
    }
  };
  await page.goto(server.url);
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await take("chat");
} finally {
  await browser.close();
  await server.close();
}
console.log(folder);
