/** The public API of the package as text: every exported declaration, without comments. */

import { execFile } from "node:child_process";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { promisify } from "node:util";
import { ROOT } from "./paths.mjs";

/** The entries of package.json's `exports` that have types. */
const ENTRIES = ["index", "memory/index", "memory/file", "ai/index", "react/index", "langchain/index", "router/index", "tabs/index", "train/index", "layers/index"];

/** Top-level declarations, each up to the line that closes it. */
function declarations(text) {
  const found = new Map();
  let open;
  for (const line of text.split("\n")) {
    const [, name] = /^(?:export )?(?:default )?(?:declare )?(?:abstract )?(?:async )?(?:function|class|interface|type|const|let|enum) (\w+)/.exec(line) ?? [];
    if (name) found.set(name, [...(found.get(name) ?? []), (open = [])]);
    if (!open) continue;
    open.push(line.replace(/^export declare /, "export "));
    if (/^\}|;$/.test(line) && !/^\s/.test(line)) open = undefined;
  }
  return found;
}

/** The names in a module's `export { … } from` lines, with their source. */
function passedOn(text) {
  const lists = text.matchAll(/export (?:type )?\{([^}]*)\} from "([^"]+)"/g);
  return [...lists].flatMap(([, names, from]) => names.split(",").map((name) => ({ name: name.replace(/^\s*type /, "").trim(), from })).filter(({ name }) => name));
}

/** The text, sorted by name, entry by entry. */
export async function surface() {
  const folder = await mkdtemp(join(tmpdir(), "jerboa-surface-"));
  try {
    const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
    const flags = ["--emitDeclarationOnly", "--removeComments", "--stripInternal", "--outDir", folder];
    await promisify(execFile)(process.execPath, [tsc, "-p", join(ROOT, "pkg-template"), ...flags]);
    const read = (module) => readFile(join(folder, `${module}.d.ts`), "utf8");
    const exported = async (module) => {
      const text = await read(module);
      const own = [...declarations(text)].filter(([, [first]]) => first[0].startsWith("export ")).map(([name, list]) => [name, list]);
      const passed = passedOn(text).map(async ({ name, from }) => {
        const there = relative(folder, join(folder, dirname(module), from)).replace(/\.js$/, "");
        const list = new Map(await exported(there)).get(name);
        if (!list) throw new Error(`${module} passes on ${name}, which ${there} does not declare`);
        return [name, list];
      });
      return [...own, ...(await Promise.all(passed))];
    };
    // Declarations that exported ones use and no entry exports.
    const modules = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith(".d.ts")).map((name) => name.slice(0, -5));
    const everywhere = new Map((await Promise.all(modules.map(read))).flatMap((text) => [...declarations(text)]));
    const parts = [];
    const reported = new Set();
    const tell = (list) => {
      for (const [name] of list) reported.add(name);
      parts.push(...list.map(([, forms]) => `${forms.map((lines) => lines.join("\n")).join("\n")}\n`));
    };
    for (const entry of ENTRIES) {
      const name = entry === "index" ? "jerboa" : `jerboa/${entry.replace(/\/index$/, "")}`;
      const list = (await exported(entry)).sort(([a], [b]) => (a < b ? -1 : 1));
      parts.push(`// ${name}\n`);
      tell(list);
    }
    parts.push("// used by these\n");
    for (let more = true; more; ) {
      const used = new Set(parts.join("\n").match(/\b[A-Z]\w+/g));
      const list = [...everywhere].filter(([name]) => used.has(name) && !reported.has(name)).sort(([a], [b]) => (a < b ? -1 : 1));
      tell(list);
      more = list.length > 0;
    }
    return parts.join("\n");
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
