/** Answers of the demo page as Markdown: code blocks, formulas, and markup that must not work. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { chatting, send } from "./support/states.mjs";

const options = { timeout: 120_000 };
let site;

before(async () => {
  site = await fakeEnginePage();
}, options);
after(() => site?.close());

const last = (page) => page.getByRole("article", { name: "Answer", exact: true }).last();

test("code blocks name their language, are colored, and copied", options, async () => {
  const { page, context, problems } = await chatting(site, { permissions: ["clipboard-read", "clipboard-write"] });
  const requests = [];
  page.on("request", (request) => requests.push(request.url()));
  await send(page, "Only **words** here.");
  assert.deepEqual(requests.filter((url) => /highlight|math/.test(url)), [], "words load no highlighter");
  const code = 'def greet(name):\n    return f"Hello, {name}"  # polite';
  await send(page, `\`\`\`python\n${code}\n\`\`\`\n\nand\n\n\`\`\`klingon\nqapla'\n\`\`\`\n\nand\n\n    indented <b>code</b>`);
  const blocks = last(page).locator(".code-block");
  await blocks.first().locator(".hljs-keyword").first().waitFor();
  assert.equal(requests.filter((url) => /highlight/.test(url)).length, 1);
  assert.deepEqual(await blocks.locator(".code-head span").allInnerTexts(), ["python", "klingon", ""]);
  assert.equal(await blocks.first().locator(".hljs-comment").innerText(), "# polite");
  assert.equal((await blocks.nth(0).locator("code").innerText()).trim(), code);
  assert.equal((await blocks.nth(1).locator("code").innerText()).trim(), "qapla'");
  assert.equal((await blocks.nth(2).locator("code").innerText()).trim(), "indented <b>code</b>");
  await blocks.first().getByRole("button", { name: "Copy code", exact: true }).click();
  await blocks.first().getByRole("button", { name: "Copied", exact: true }).waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), code);
  assert.deepEqual(problems, []);
  await context.close();
});

test("formulas are MathML; prices, code and invalid LaTeX are not", options, async () => {
  const { page, context, problems } = await chatting(site);
  const formulas = ["inline $a^2$ and \\(b_1\\)", "$$\\frac{1}{2}$$", "\\[ \\sqrt{x} \\]"].join("\n\n");
  await send(page, formulas);
  const math = last(page).locator("math");
  await math.first().waitFor();
  assert.equal(await math.count(), 4);
  assert.equal(await last(page).locator("math.tml-display, math[display='block']").count(), 2);
  assert.equal(await math.locator("mfrac").count(), 1);
  await send(page, "It costs $5 and $10, or $5-$10; `$x$` is code, and $\\frac{$ is invalid, as is $a}b$.");
  await last(page).locator("code.math").last().waitFor();
  assert.equal(await last(page).locator("math").count(), 0);
  assert.match(await last(page).locator(".prose").innerText(), /costs \$5 and \$10, or \$5-\$10; \$x\$ is code/);
  assert.deepEqual(problems, []);
  await context.close();
});

test("markup of an answer runs nothing and has no controls", options, async () => {
  const { page, context } = await chatting(site);
  const attacks = ['<img src=x onerror="window.hit=1">', "<script>window.hit=2</script>", "<button onclick='window.hit=3'>x</button>", "<form><input></form>", '$\\href{javascript:window.hit=4}{x}$', '<math><mtext><a href="javascript:window.hit=5">y</a></mtext></math>', '```x"><img/src/onerror=window.hit=6>\n<img src=x onerror=window.hit=7>\n```', "$<img/src=x/onerror=window.hit=8>$"];
  await send(page, attacks.join("\n\n"));
  await last(page).locator(".code-block").waitFor();
  const prose = last(page).locator(".prose");
  assert.equal(await prose.locator("img, script, form, input, style, [onclick], [onerror], [style]").count(), 0);
  assert.equal(await prose.locator("button").count(), 1, "the one of the code block");
  assert.equal(await prose.locator("a[href^='javascript']").count(), 0);
  for (const link of await prose.locator("a").all()) await link.click({ timeout: 1000 }).catch(() => {});
  await page.waitForTimeout(200);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  await context.close();
});
