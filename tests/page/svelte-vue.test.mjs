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
  svelte: { plugin: svelte, main: 'import { mount } from "svelte";\nimport App from "./app.svelte";\nmount(App, { target: document.body });' },
  vue: { plugin: vue, main: 'import { createApp } from "vue";\nimport App from "./app.vue";\ncreateApp(App).mount(document.body);' },
};
let facade, folder, browser, text;

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
    assert.deepEqual(problems, []);
    await page.close();
    await server.close();
  });
}
