/** The built package on a page of Chromium, for tests with the real engine. */

import { launch, warmUp } from "./browser.mjs";
import { assertBuilt } from "./built.mjs";
import { PACKAGE } from "./paths.mjs";
import { serve } from "./server.mjs";

/** Serves the package and `mounts`, and imports it on a page as `jerboa`, in a browser with additional flags; returns the page, its URL, and a function that closes everything. */
export async function openPackage(mounts = {}, flags = []) {
  assertBuilt();
  const server = await serve({ "/": PACKAGE, ...mounts });
  let browser;
  const close = async () => {
    await browser?.close();
    await server.close();
  };
  try {
    browser = await launch(flags);
    const page = await (await browser.newContext()).newPage();
    // Any file serves as a page on this origin.
    await page.goto(`${server.url}/package.json`);
    await warmUp(page);
    await page.evaluate(async () => void (window.jerboa = await import("/index.js")));
    return { page, url: server.url, close };
  } catch (error) {
    await close();
    throw error;
  }
}
