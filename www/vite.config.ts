/**
 * Builds the demo page, the bench page and the report page into dist/www, over the package that `cargo xtask build` leaves in dist/jerboa. Tests build them elsewhere
 * (JERBOA_PAGE), over a package with a double of the engine (JERBOA_PACKAGE).
 */

import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { shell } from "./shell.ts";

const path = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const jerboa = process.env["JERBOA_PACKAGE"] ?? path("../dist/jerboa");

export default defineConfig({
  root: path("."),
  base: "./",
  // What is not there is a 404: a page in its place would be taken for one of a model's files.
  appType: "mpa",
  resolve: {
    alias: [
      { find: /^jerboa$/, replacement: `${jerboa}/index.js` },
      { find: /^jerboa\/memory$/, replacement: `${jerboa}/memory/index.js` },
    ],
  },
  plugins: [{ name: "shell", transformIndexHtml: (html: string) => html.replace("<!--shell-->", shell) }],
  worker: { format: "es" },
  build: { outDir: process.env["JERBOA_PAGE"] ?? path("../dist/www"), emptyOutDir: true, target: "es2022", rolldownOptions: { input: [path("index.html"), path("bench/index.html"), path("report/index.html")] } },
  server: { fs: { allow: [path("..")] } },
});
