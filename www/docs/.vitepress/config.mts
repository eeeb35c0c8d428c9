/**
 * The documentation site: `cargo xtask build` puts it into dist/www/docs, next to the demo. JERBOA_DOCS_BASE is the path
 * that it is served at. `<!--file: PATH-->` includes a document of the repository without its title.
 */

import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitepress";

const REPOSITORY = "https://github.com/jerboa-ai/jerboa";
const root = fileURLToPath(new URL("../../..", import.meta.url));
const pages = fileURLToPath(new URL("..", import.meta.url));

/** Links to files outside the site lead to the repository. */
function withRepositoryLinks(text: string, folder: string): string {
  return text.replaceAll(/\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)/g, (link, path: string, anchor = "") => {
    const file = resolve(folder, path);
    return file.startsWith(pages) ? link : `](${REPOSITORY}/blob/main/${relative(root, file)}${anchor})`;
  });
}

/** Replaces the includes of a page. */
function withIncludes(text: string, folder: string): string {
  return text.replaceAll(/<!--file: (\S+)-->/g, (_, path: string) => {
    const file = resolve(folder, path);
    return withRepositoryLinks(readFileSync(file, "utf8").replace(/^# .*\n/, ""), dirname(file));
  });
}

/** The anchor of a heading as GitHub makes it, which typedoc and the guides link to. */
const githubSlug = (title: string): string => title.trim().toLowerCase().replaceAll(/[^\p{L}\p{N}\s_-]/gu, "").replaceAll(" ", "-");

/** Fails if a link of the built site leads to a page or an anchor that does not exist. Links out of the site are not checked. */
function checkLinks(outDir: string, base: string): void {
  const files = readdirSync(outDir, { recursive: true }).map(String).filter((name) => name.endsWith(".html"));
  const built = new Map(files.map((file) => {
    const html = readFileSync(join(outDir, file), "utf8");
    const values = (attribute: string): string[] => [...html.matchAll(new RegExp(` ${attribute}="([^"]*)"`, "g"))].map(([, value]) => value!.replaceAll("&amp;", "&"));
    return [`${base}${file.replaceAll("\\", "/")}`, { ids: new Set(values("id")), links: values("href") }];
  }));
  const dead: string[] = [];
  for (const [page, { links }] of built) {
    for (const link of new Set(links)) {
      const { origin, pathname, hash } = new URL(link, `https://site${page}`);
      if (origin !== "https://site" || !pathname.startsWith(base) || /\.(?!html$)\w+$/.test(pathname)) continue;
      const target = built.get(pathname.endsWith("/") ? `${pathname}index.html` : pathname);
      if (!target || (hash && !target.ids.has(decodeURIComponent(hash.slice(1))))) dead.push(`${page}: ${link}`);
    }
  }
  if (dead.length) throw new Error(`the documentation has ${dead.length} dead links:\n${dead.join("\n")}`);
}

/** What search engines show of each guide. */
const DESCRIPTIONS: Record<string, string> = {
  "add-a-model": "How a model family is added to Jerboa: one Rust file that turns config.json into a graph, and a test against transformers.",
  "ai-sdk": "Jerboa as a provider of the AI SDK: text, objects, tools, embeddings, transcription and speech on the visitor's GPU.",
  bundlers: "Jerboa with Vite, webpack, Next.js or a plain script tag, and what a Content-Security-Policy must allow.",
  chat: "Streamed chat in a web page with OpenAI's request format: sampling, templates, sessions, reasoning and vision.",
  cli: "npx jerboa: chat, embed, transcribe and serve an OpenAI-compatible API from a terminal.",
  clients: "OpenAI's JavaScript client and other clients over models in the same page, without a server.",
  devices: "What Jerboa needs of a browser and a GPU, how it adapts to them, and how much memory models take.",
  embeddings: "Text and image embeddings, reranking, and a searchable memory that stays on the device.",
  handlers: "An OpenAI-compatible API from local models in Hono, Next.js, Express and Fastify.",
  index: "Run Hugging Face models in a web page on the visitor's GPU: install, load a model, stream an answer.",
  internals: "What a model costs on a device, measured in the page: dispatches, kernels, memory and time.",
  langchain: "LangChain's chat model and embeddings over models in the page: streaming, tools and structured output.",
  layers: "Describe, train and run small neural networks on WebGPU: dense, convolution, recurrent and attention layers.",
  migrate: "The calls of WebLLM and transformers.js next to those of Jerboa, and what only the others do.",
  models: "Load models from the Hugging Face Hub: formats, precision, progress, cache, storage and memory.",
  node: "Jerboa in Node, Deno, Bun, Electron and browser extensions, with the same API as in a page.",
  react: "React hooks for chat, completion, objects, embeddings, transcription and speech on the device.",
  responses: "OpenAI's Responses API over a model in the page: items, streaming events, function calls and reasoning.",
  router: "Route requests between models in the page and an OpenAI-compatible server, and observe them.",
  server: "Serve models from your own server: files, CORS, ranges, caching and checksums.",
  speech: "Speech to text and text to speech in a web page, from a file or the microphone.",
  "structured-output": "Answers that match a JSON schema, a regular expression, a grammar or a list of choices.",
  "svelte-vue": "A streamed answer in Svelte and in Vue, each in about twenty lines.",
  tabs: "One engine for all tabs of an origin, in a shared worker, a service worker or a leading tab.",
  text: "Text completion, tokens, log-probabilities and saved sessions, below the level of a chat.",
  tools: "Functions that a model calls: formats, forced calls, parallel calls and loops.",
  train: "Train a LoRA adapter for a model in the page, on the visitor's GPU, and use or save it.",
  troubleshooting: "Jerboa's error codes, what each one means, and what to do.",
  vision: "Images and video in a chat, and image embeddings, in a web page.",
};

/** The demo page's icon. */
const icon = `data:image/svg+xml,${encodeURIComponent(readFileSync(new URL("../../public/favicon.svg", import.meta.url), "utf8"))}`;

export default defineConfig({
  title: "Jerboa",
  description: "Hugging Face models in a web page, on WebGPU.",
  base: process.env["JERBOA_DOCS_BASE"] ?? "/docs/",
  transformPageData: ({ relativePath }) => ({ description: DESCRIPTIONS[relativePath.replace(/\.md$/, "")] ?? "" }),
  outDir: "../../dist/docs",
  cacheDir: "../../target/vitepress",
  // Suspending transitions while the theme is applied recalculates the style of the whole page twice during hydration.
  appearance: { disableTransition: false },
  // VitePress links the stylesheet of its icon packs in every page, which blocks rendering; the site uses none, and it is empty.
  transformHtml: (html) => html.replace(/\s*<link rel="preload stylesheet" href="[^"]*vp-icons\.css" as="style">/, ""),
  buildEnd: ({ outDir, site }) => checkLinks(outDir, site.base),
  head: [["link", { rel: "icon", href: icon, type: "image/svg+xml" }]],
  markdown: {
    anchor: { slugify: githubSlug },
    // Colors with a contrast of 4.5 on the blocks of code.
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
    config(md) {
      const render = md.render.bind(md);
      md.render = (text, env) => {
        const folder = dirname((env as { path: string }).path);
        return render(withIncludes(withRepositoryLinks(text, folder), folder), env);
      };
    },
  },
  themeConfig: {
    logo: icon,
    // A word of a guide is often the name of many members of the API.
    search: { provider: "local", options: { miniSearch: { searchOptions: { boostDocument: (id: string) => (id.includes("/api/") ? 1 : 3) } } } },
    outline: [2, 3],
    nav: [
      { text: "Guide", link: "/" },
      { text: "API", link: "/api/jerboa/", activeMatch: "/api/" },
      { text: "Demo", link: "/../", target: "_self" },
      { text: "Source", link: REPOSITORY },
    ],
    sidebar: [
      { text: "Start", items: [{ text: "Getting started", link: "/" }, { text: "Models and memory", link: "/models" }, { text: "From WebLLM or transformers.js", link: "/migrate" }] },
      {
        text: "Tasks",
        items: [
          { text: "Chat", link: "/chat" },
          { text: "Responses API", link: "/responses" },
          { text: "OpenAI's clients", link: "/clients" },
          { text: "Structured output", link: "/structured-output" },
          { text: "Tools", link: "/tools" },
          { text: "Vision", link: "/vision" },
          { text: "Embeddings and memory", link: "/embeddings" },
          { text: "Speech", link: "/speech" },
          { text: "Text and sessions", link: "/text" },
          { text: "Training", link: "/train" },
          { text: "Own networks", link: "/layers" },
        ],
      },
      {
        text: "Frameworks",
        items: [
          { text: "AI SDK", link: "/ai-sdk" },
          { text: "LangChain", link: "/langchain" },
          { text: "React", link: "/react" },
          { text: "Svelte and Vue", link: "/svelte-vue" },
          { text: "Hono, Next.js, Express, Fastify", link: "/handlers" },
          { text: "Router and events", link: "/router" },
          { text: "Tabs and workers", link: "/tabs" },
        ],
      },
      {
        text: "Deploy",
        items: [
          { text: "Node, Deno, Bun", link: "/node" },
          { text: "Command line", link: "/cli" },
          { text: "Bundlers and CSP", link: "/bundlers" },
          { text: "Your own server", link: "/server" },
          { text: "Devices", link: "/devices" },
          { text: "Troubleshooting", link: "/troubleshooting" },
        ],
      },
      { text: "Engine", items: [{ text: "Internals", link: "/internals" }, { text: "Add a model family", link: "/add-a-model" }] },
      { text: "API", items: [{ text: "jerboa", link: "/api/jerboa/" }, { text: "jerboa/memory", link: "/api/jerboa/memory/" }, { text: "jerboa/ai", link: "/api/jerboa/ai/" }, { text: "jerboa/langchain", link: "/api/jerboa/langchain/" }, { text: "jerboa/react", link: "/api/jerboa/react/" }, { text: "jerboa/router", link: "/api/jerboa/router/" }, { text: "jerboa/tabs", link: "/api/jerboa/tabs/" }, { text: "jerboa/train", link: "/api/jerboa/train/" }, { text: "jerboa/layers", link: "/api/jerboa/layers/" }] },
    ],
  },
});
