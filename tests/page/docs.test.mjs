/** The documents: every relative link and anchor leads somewhere, and every option and error code is described. */

import assert from "node:assert/strict";
import { existsSync, statSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { PAGE, ROOT } from "./support/paths.mjs";

const REPOSITORY = "https://github.com/jerboa-ai/jerboa/blob/main/";

const inFolder = async (folder) => (await readdir(join(ROOT, folder))).filter((name) => name.endsWith(".md")).map((name) => `${folder}/${name}`);
const text = (file) => readFile(join(ROOT, file), "utf8");

/** The documents that people read. */
async function documents() {
  return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pkg-template/README.md", ...(await inFolder("docs")), ...(await inFolder("www/docs"))];
}

/** The text outside of code blocks. */
const withoutBlocks = (markdown) => markdown.replaceAll(/^ *```[\s\S]*?^ *```/gm, "");

/** The text outside of code. */
const prose = (markdown) => withoutBlocks(markdown).replaceAll(/`[^`\n]*`/g, (code) => "x".repeat(code.length));

/** Level and title of a document's headings. */
const headings = (markdown) => [...withoutBlocks(markdown).matchAll(/^(#{1,6}) +(.*)$/gm)].map(([, marks, title]) => [marks.length, title]);

/** The anchors of a document's headings, as GitHub makes them. */
function anchors(markdown) {
  const seen = new Map();
  return new Set(headings(markdown).map(([, title]) => {
    const slug = title.trim().toLowerCase().replaceAll(/[^\p{L}\p{N}\s_-]/gu, "").replaceAll(" ", "-");
    const count = seen.get(slug) ?? 0;
    seen.set(slug, count + 1);
    return count === 0 ? slug : `${slug}-${count}`;
  }));
}

/** Every link of a document, in Markdown and HTML. */
function links(markdown) {
  const plain = prose(markdown);
  return [...plain.matchAll(/\]\(([^)\s]+)\)/g), ...plain.matchAll(/(?:src|srcset|href)="([^"]+)"/g)].map(([, target]) => target);
}

test("every link and anchor of the documents leads somewhere", async () => {
  let count = 0;
  const dead = [];
  for (const file of await documents()) {
    for (const target of links(await text(file))) {
      const own = target.startsWith(REPOSITORY);
      if (!own && /^(https?:|mailto:|data:)/.test(target)) continue;
      count++;
      const [path, anchor] = (own ? target.slice(REPOSITORY.length) : target).split("#");
      const found = own ? join(ROOT, path) : path === "" ? join(ROOT, file) : resolve(ROOT, dirname(file), path);
      const problem = !existsSync(found) ? "no such file" : anchor && !(statSync(found).isFile() && anchors(await readFile(found, "utf8")).has(anchor)) ? "no such heading" : undefined;
      if (problem) dead.push(`${file}: ${target}: ${problem}`);
    }
  }
  assert.deepEqual(dead, []);
  assert.ok(count > 100, `only ${count} links were found`);
});

test("no heading skips a level", async () => {
  const skipping = [];
  for (const file of await documents()) {
    const all = headings(await text(file));
    all.forEach(([level, title], index) => {
      if (level > (all[index - 1]?.[0] ?? level) + 1) skipping.push(`${file}: ${title}`);
    });
  }
  assert.deepEqual(skipping, []);
});

test("the site's menu lists every page, and each has a description for search engines", async () => {
  const config = await text("www/docs/.vitepress/config.mts");
  const listed = new Set([...config.matchAll(/link: "\/([\w-]*)"/g)].map(([, name]) => name || "index"));
  const pages = (await inFolder("www/docs")).map((file) => relative("www/docs", file).slice(0, -3));
  assert.deepEqual(pages.filter((page) => !listed.has(page)), []);
  assert.deepEqual([...listed].filter((page) => !pages.includes(page)), []);
  const [, descriptions] = /DESCRIPTIONS.*?\{([\s\S]*?)^\};/m.exec(config);
  const described = [...descriptions.matchAll(/^  "?([\w-]+)"?: ".{50,160}",$/gm)].map(([, page]) => page);
  assert.deepEqual(described, pages.toSorted());
});

test("a search of the site finds the guides before the API's members, and types by their names", async () => {
  const html = await readFile(join(PAGE, "docs/index.html"), "utf8");
  const [, source] = /\\"boostDocument\\":\\"_vp-fn_(.*?)\\"[,}]/.exec(html) ?? assert.fail("the site has no boostDocument");
  const boostDocument = new Function(`return ${JSON.parse(`"${JSON.parse(`"${source}"`)}"`)}`)();
  const chunks = join(PAGE, "docs/assets/chunks");
  const index = (await readdir(chunks)).find((name) => name.startsWith("@localSearchIndexroot"));
  const { default: json } = await import(pathToFileURL(join(chunks, index)));
  const { default: MiniSearch } = await import(pathToFileURL(createRequire(join(ROOT, "www/docs/package.json")).resolve("minisearch")));
  // VitePress's own options.
  const search = MiniSearch.loadJSON(json, { fields: ["title", "titles", "text"], storeFields: ["title", "titles"], searchOptions: { fuzzy: 0.2, prefix: true, boost: { title: 4, text: 2, titles: 1 }, boostDocument } });
  const found = (query) => search.search(query).slice(0, 5).map(({ id }) => id);
  for (const query of ["streaming", "cache", "error", "token", "abort"]) assert.ok(!found(query)[0].includes("/api/"), `${query}: ${found(query)}`);
  for (const name of ["ChatCompletionChunk", "loadModel", "JerboaError"]) assert.ok(found(name).some((id) => new RegExp(`/api/.*/${name}\\.html`).test(id)), `${name}: ${found(name)}`);
});

/** The fields of an interface or type in docs/api.txt, with those that it inherits. */
async function fields(name) {
  const api = await text("docs/api.txt");
  const [, bases = "", body] = new RegExp(`^export interface ${name}(?: extends ([^{]*?))? \\{\\n([\\s\\S]*?)^\\}`, "m").exec(api) ?? assert.fail(`docs/api.txt has no ${name}`);
  const own = [...body.matchAll(/^ {4}(\w+)\??:/gm)].map(([, field]) => field);
  const inherited = await Promise.all((bases.match(/\w+/g) ?? []).map(fields));
  return [...own, ...inherited.flat()];
}

/** Which page describes the options of which call. */
const OPTIONS = {
  "www/docs/models.md": ["LoadOptions", "LoadProgress"],
  "www/docs/chat.md": ["ChatCompletionCreateParams"],
  "www/docs/text.md": ["GenerateOptions"],
  "www/docs/embeddings.md": ["EmbedOptions", "RerankOptions", "MemoryOptions", "ChunkOptions", "MemorySearchOptions", "PackOptions"],
  "www/docs/speech.md": ["TranscribeOptions", "TranscriptionCreateParams", "SpeechCreateParams"],
  "www/docs/internals.md": ["MeasureOptions"],
};

test("every option is described", async () => {
  for (const [page, types] of Object.entries(OPTIONS)) {
    const code = [...(await text(page)).matchAll(/`([^`\n]+)`/g)].map(([, words]) => words).join("\n");
    for (const type of types) {
      const missing = (await fields(type)).filter((field) => !new RegExp(`\\b${field}\\b`).test(code));
      assert.deepEqual(missing, [], `${page} does not describe these of ${type}`);
    }
  }
});

test("every error code is described", async () => {
  const [, union] = /export type JerboaErrorCode =([\s\S]*?);/.exec(await text("pkg-template/src/errors.ts"));
  const codes = [...union.matchAll(/"(\w+)"/g)].map(([, code]) => code);
  assert.ok(codes.length > 30);
  for (const page of ["www/docs/troubleshooting.md", "pkg-template/README.md"]) {
    const described = await text(page);
    assert.deepEqual(codes.filter((code) => !described.includes(`\`${code}\``)), [], `${page} does not describe these`);
  }
});

test("requirements.txt has the versions that the scripts of the golden files name", async () => {
  const folder = "tests/golden/scripts";
  const pinned = new Map([...(await text(`${folder}/requirements.txt`)).matchAll(/^([\w-]+)==([\d.]+)$/gm)].map(([, name, version]) => [name, version]));
  assert.ok(pinned.size > 3);
  const scripts = (await readdir(join(ROOT, folder))).filter((name) => name.endsWith(".py")).map((name) => `${folder}/${name}`);
  for (const file of [...scripts, "www/docs/add-a-model.md"]) {
    for (const [said, name, version] of (await text(file)).matchAll(/\b([\w-]+) (\d+\.\d+\.\d+)\b/g)) {
      if (pinned.has(name)) assert.equal(version, pinned.get(name), `${file}: ${said}`);
    }
  }
});

test("every file of the repository that the documents name exists", async () => {
  const roots = ["", "crate/src/", "crate/src/arch/"];
  const exists = (path) => roots.some((root) => ["", ".rs", ".wgsl"].some((end) => existsSync(join(ROOT, root + path + end))));
  const missing = [];
  for (const file of await documents()) {
    const named = (await text(file)).matchAll(/(?<![\w./-])((?:crate|shaders|tests|docs|www|xtask|pkg-template|plan|exec|arch|kernels)\/[\w./-]*\w)/g);
    // FAMILY, STEM and NAME stand for a name of the reader's choice.
    for (const [, path] of named) if (!/[A-Z]{4}/.test(path) && !exists(path)) missing.push(`${file}: ${path}`);
  }
  assert.deepEqual(missing, []);
});

test("every type and function that the architecture names exists", async () => {
  const sources = async (folder) => {
    const entries = await readdir(join(ROOT, folder), { recursive: true });
    return (await Promise.all(entries.filter((name) => name.endsWith(".rs")).map((name) => text(join(folder, name))))).join("\n");
  };
  const code = await sources("crate/src");
  const names = [...(await text("docs/architecture.md")).matchAll(/`\w+::(\w+)`/g)].map(([, name]) => name);
  assert.ok(names.length > 15);
  const defined = (name) => new RegExp(`\\b(?:struct|enum|trait|type|fn|mod) ${name}\\b|^ +${name},`, "m").test(code);
  assert.deepEqual(names.filter((name) => !defined(name)), []);
});

test("the family that the guide shows is the one that is built", async () => {
  const [, shown] = /^```rust\n([\s\S]*?)^```/m.exec(await text("www/docs/add-a-model.md"));
  assert.equal(shown, await text("crate/src/arch/glm.rs"));
});

test("the other code that the guide shows is in a family", async () => {
  const quotes = [...(await text("www/docs/add-a-model.md")).matchAll(/^```rust\n([\s\S]*?)^```/gm)].slice(1).map(([, code]) => code);
  assert.ok(quotes.length >= 5);
  const names = await readdir(join(ROOT, "crate/src/arch"));
  const families = await Promise.all(names.filter((name) => name.endsWith(".rs")).map((name) => text(`crate/src/arch/${name}`)));
  for (const code of quotes) assert.ok(families.some((family) => family.includes(code)), code);
});
