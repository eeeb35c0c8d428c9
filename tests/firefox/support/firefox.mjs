/** Launches Firefox with WebGPU for tests, driven by puppeteer over WebDriver BiDi. */

import { existsSync } from "node:fs";
import puppeteer from "puppeteer-core";
import { assertBuilt } from "../../page/support/built.mjs";
import { PATIENCE_MS } from "../../page/support/browser.mjs";
import { PACKAGE } from "../../page/support/paths.mjs";
import { serve } from "../../page/support/server.mjs";

/** The browser; Debian's package is `firefox-esr`. */
const FIREFOX = process.env.FIREFOX ?? ["/usr/bin/firefox-esr", "/usr/bin/firefox"].find((path) => existsSync(path));

/** Firefox on Linux offers WebGPU by preference only, and blocks software adapters such as llvmpipe. */
const PREFERENCES = { "dom.webgpu.enabled": true, "gfx.webgpu.ignore-blocklist": true };

/** `JERBOA_FIREFOX=all` runs every model and more repetitions. */
export const ALL = process.env.JERBOA_FIREFOX === "all";

/** A browser with a new profile, whose pages wait for {@link PATIENCE_MS}. */
export async function launch() {
  // Calls of a page may compute for minutes.
  const browser = await puppeteer.launch({ browser: "firefox", executablePath: FIREFOX, headless: true, timeout: PATIENCE_MS, protocolTimeout: 1_200_000, extraPrefsFirefox: PREFERENCES });
  const createBrowserContext = browser.createBrowserContext.bind(browser);
  browser.createBrowserContext = async (...options) => patient(await createBrowserContext(...options));
  return patient(browser);
}

/** Lets the pages of a browser or a context wait for {@link PATIENCE_MS}. */
function patient(owner) {
  const newPage = owner.newPage.bind(owner);
  owner.newPage = async () => {
    const page = await newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    page.setDefaultNavigationTimeout(PATIENCE_MS);
    return page;
  };
  return owner;
}

/** Serves the package and `mounts`; `tab()` opens a page that imports it as `jerboa`. */
export async function openPackage(mounts = {}) {
  assertBuilt();
  const server = await serve({ "/": PACKAGE, ...mounts });
  let browser;
  const close = async () => {
    await browser?.close();
    await server.close();
  };
  try {
    browser = await launch();
    const tab = async () => {
      const page = await browser.newPage();
      // Any file serves as a page on this origin.
      await page.goto(`${server.url}/package.json`);
      await page.evaluate(async () => {
        window.jerboa = await import("/index.js");
        /** The result of a promise, or "no end" after a while. */
        window.within = (seconds, promise) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, 1000 * seconds, "no end"))]);
      });
      return page;
    };
    return { tab, server, close };
  } catch (error) {
    await close();
    throw error;
  }
}
