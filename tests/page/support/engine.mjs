/** The built package on a page of Chromium, for tests of what it does over the real engine. Knows no model. */

import { launch, warmUp } from "./browser.mjs";
import { assertBuilt } from "./built.mjs";
import { PACKAGE } from "./places.mjs";
import { serve } from "./server.mjs";

/** Serves the package and `mounts`, and imports it on a page as `jerboa`, in a browser with more flags where they are given: the page, its address, and how to close all of it. */
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
    // Any file will do as a page on this origin.
    await page.goto(`${server.url}/package.json`);
    await warmUp(page);
    await page.evaluate(async () => void (window.jerboa = await import("/index.js")));
    return { page, url: server.url, close };
  } catch (error) {
    await close();
    throw error;
  }
}
