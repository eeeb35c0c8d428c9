/**
 * Builds the demo, bench and report pages into dist/www, with the package in dist/jerboa from `cargo xtask build`.
 * Tests build them elsewhere (JERBOA_PAGE), with a fake engine (JERBOA_PACKAGE).
 */

import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { shell } from "./shell.ts";

const path = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const jerboa = process.env["JERBOA_PACKAGE"] ?? path("../dist/jerboa");

export default defineConfig({
  root: path("."),
  base: "./",
  // Missing files must return 404: a page in their place would be taken for a model file.
  appType: "mpa",
  resolve: {
    alias: [
      { find: /^jerboa$/, replacement: `${jerboa}/index.js` },
      { find: /^jerboa\/memory$/, replacement: `${jerboa}/memory/index.js` },
      { find: /^jerboa\/train$/, replacement: `${jerboa}/train/index.js` },
    ],
  },
  plugins: [{ name: "shell", transformIndexHtml: (html: string) => html.replace("<!--shell-->", shell) }],
  worker: { format: "es" },
  build: { outDir: process.env["JERBOA_PAGE"] ?? path("../dist/www"), emptyOutDir: true, target: "es2022", rolldownOptions: { input: [path("index.html"), path("bench/index.html"), path("report/index.html")] } },
  server: { fs: { allow: [path("..")] } },
});
