/**
 * The documentation site: `cargo xtask build` puts it into dist/www/docs, next to the demo. JERBOA_DOCS_BASE is the path
 * that it is served at. `<!--file: PATH-->` includes a document of the repository without its title.
 */

import { readFileSync } from "node:fs";
import { dirname, relative, resolve } from "node:path";
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

/** The demo page's icon. */
const icon = `data:image/svg+xml,${encodeURIComponent(readFileSync(new URL("../../public/favicon.svg", import.meta.url), "utf8"))}`;

export default defineConfig({
  title: "Jerboa",
  description: "Hugging Face models in a web page, on WebGPU.",
  base: process.env["JERBOA_DOCS_BASE"] ?? "/docs/",
  outDir: "../../dist/docs",
  cacheDir: "../../target/vitepress",
  head: [["link", { rel: "icon", href: icon, type: "image/svg+xml" }]],
  markdown: {
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
    search: { provider: "local" },
    outline: [2, 3],
    nav: [
      { text: "Guide", link: "/" },
      { text: "API", link: "/api/jerboa/", activeMatch: "/api/" },
      { text: "Demo", link: "/../", target: "_self" },
      { text: "Source", link: REPOSITORY },
    ],
    sidebar: [
      { text: "Start", items: [{ text: "Getting started", link: "/" }, { text: "Models and memory", link: "/models" }] },
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
