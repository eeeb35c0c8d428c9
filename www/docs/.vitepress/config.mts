/**
 * The documentation as a site: `npm --prefix www/docs install && npm --prefix www/docs run build`, to dist/docs, to be served at JERBOA_DOCS_BASE (`/`). Its texts are those of
 * the repository: `<!--section: FILE heading-->` stands for what FILE says under a heading, or for all of it.
 */

import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { defineConfig } from "vitepress";

const anchor = (heading: string): string => heading.toLowerCase().replace(/[^a-z0-9 -]/g, "").trim().replaceAll(" ", "-");

/** What a file says under a heading, up to the next one of its rank. */
function section(file: string, heading: string | undefined): string {
  const text = readFileSync(file, "utf8");
  if (!heading) return text;
  const parts = text.split(/^(?=## )/m);
  const found = parts.find((part) => anchor(part.split("\n")[0]!.slice(3)) === heading);
  if (!found) throw new Error(`${file} has no section '${heading}'`);
  return found.slice(found.indexOf("\n") + 1);
}

/** The animal of the demo page. */
const mark = `data:image/svg+xml,${encodeURIComponent(readFileSync(new URL("../../public/favicon.svg", import.meta.url), "utf8"))}`;

export default defineConfig({
  title: "Jerboa",
  description: "Hugging Face models in a web page, on WebGPU.",
  base: process.env["JERBOA_DOCS_BASE"] ?? "/",
  outDir: "../../dist/docs",
  cleanUrls: false,
  head: [["link", { rel: "icon", href: mark, type: "image/svg+xml" }]],
  // The manuals link to files of the repository, which are not part of the site.
  ignoreDeadLinks: true,
  markdown: {
    config(md) {
      const render = md.render.bind(md);
      md.render = (text, env) => {
        const folder = dirname((env as { path: string }).path);
        return render(text.replaceAll(/<!--section: (\S+)(?: (\S+))?-->/g, (_, file: string, heading?: string) => section(resolve(folder, file), heading)), env);
      };
    },
  },
  themeConfig: {
    logo: mark,
    search: { provider: "local" },
    nav: [
      { text: "Quick start", link: "/" },
      { text: "API", link: "/api/" },
      { text: "Source", link: "https://github.com/jerboa-ai/jerboa" },
    ],
    sidebar: [
      { text: "Begin", items: [{ text: "Quick start", link: "/" }, { text: "Which model", link: "/models" }, { text: "Bundlers, frameworks, CDNs", link: "/bundlers" }] },
      { text: "Guides", items: [{ text: "Chat", link: "/chat" }, { text: "Pictures and videos", link: "/pictures" }, { text: "Speech", link: "/speech" }, { text: "Text, sessions", link: "/text" }, { text: "Vectors and search", link: "/vectors" }, { text: "Phones, lost devices, storage", link: "/phones" }] },
      {
        text: "Behind it",
        items: [
          { text: "How it works", link: "/how-it-works" },
          { text: "Devices and browsers", link: "/devices" },
          { text: "Add a model, add a kernel", link: "/add-a-model" },
          { text: "Troubleshooting", link: "/troubleshooting" },
        ],
      },
      { text: "Reference", items: [{ text: "API", link: "/api/" }] },
    ],
  },
});
