/** The components of www/docs/svelte-vue.md, built by Vite with the frameworks' own plugins, in Chromium over the fake engine. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import vue from "@vitejs/plugin-vue";
import { build } from "vite";
import { launch, watch } from "./support/browser.mjs";
import { buildFacade } from "./support/facade.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 120_000 };
const MOUNTS = {
  svelte: { plugin: svelte, main: 'import { mount, unmount } from "svelte";\nimport App from "./app.svelte";\nconst app = mount(App, { target: document.body });\nwindow.off = () => unmount(app);' },
  vue: { plugin: vue, main: 'import { createApp } from "vue";\nimport App from "./app.vue";\nconst app = createApp(App);\napp.mount(document.body);\nwindow.off = () => app.unmount();' },
};
let facade, folder, browser, text;

/** Waits until a condition is met. */
async function until(isMet) {
  for (let tries = 0; !isMet() && tries < 100; tries++) await new Promise((resolve) => setTimeout(resolve, 50));
  assert.ok(isMet());
}

before(async () => {
  text = await readFile(join(ROOT, "www/docs/svelte-vue.md"), "utf8");
  facade = await buildFacade();
  folder = await mkdtemp(join(ROOT, "target", "svelte-vue-"));
  browser = await launch();
}, options);

after(async () => {
  await browser?.close();
  await facade?.remove();
  if (folder) await rm(folder, { recursive: true, force: true });
});

for (const [name, { plugin, main }] of Object.entries(MOUNTS)) {
  test(`the ${name} component loads, streams and shows an answer`, options, async () => {
    const [, code] = new RegExp(`^\`\`\`${name}\\n([\\s\\S]*?)^\`\`\``, "m").exec(text);
    const root = join(folder, name);
    await mkdir(root);
    await writeFile(join(root, `app.${name}`), code);
    await writeFile(join(root, "main.js"), main);
    await writeFile(join(root, "index.html"), '<!doctype html><title>Sample</title><link rel="icon" href="data:,"><body><script type="module" src="/main.js"></script></body>');
    const alias = [{ find: /^jerboa$/, replacement: `${facade.folder}/index.js` }];
    await build({ root, configFile: false, plugins: [plugin()], logLevel: "error", resolve: { alias }, worker: { format: "es" }, build: { target: "es2022" } });
    const server = await serve({ "/": join(root, "dist") });
    const page = await browser.newPage();
    const problems = watch(page);
    await page.goto(server.url);
    await page.getByRole("button").click();
    await page.getByText("Why is the sky blue?", { exact: true }).waitFor();
    assert.ok((await page.locator("progress").getAttribute("value")) > 0);
    // A second question in the middle of an answer replaces it.
    await page.evaluate(() => [1, 2].forEach(() => document.querySelector("button").click()));
    await page.waitForTimeout(1000);
    assert.equal(await page.locator("p").textContent(), "Why is the sky blue?");
    assert.equal(page.workers().length, 1);
    // The component takes its model with it, loaded or not.
    await page.evaluate(() => off());
    await until(() => page.workers().length === 0);
    await page.reload();
    await page.evaluate(() => {
      document.querySelector("button").click();
      off();
    });
    await page.waitForTimeout(1000);
    await until(() => page.workers().length === 0);
    assert.deepEqual(problems, []);
    await page.close();
    await server.close();
  });
}
