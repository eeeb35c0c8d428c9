/** The package's declarations: OpenAI's own types go in and come out without casts, and all are complete without others. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { buildFacade } from "./support/facade.mjs";
import { ROOT } from "./support/paths.mjs";

/** Compiler options of strict projects of today. */
const OPTIONS = {
  target: "ES2022",
  lib: ["ES2022", "DOM", "DOM.Iterable", "DOM.AsyncIterable"],
  module: "ESNext",
  moduleResolution: "bundler",
  skipLibCheck: true,
  noEmit: true,
  types: [],
  strict: true,
  noUncheckedIndexedAccess: true,
};

/** Compiles a file of a project that has the package; returns what the compiler says. `check` gets the package's folder. */
async function compiled(name, code, settings, check = async () => {}) {
  const facade = await buildFacade();
  const folder = await mkdtemp(join(ROOT, "target", "types-"));
  try {
    await copyFile(join(ROOT, "pkg-template/package.json"), join(facade.folder, "package.json"));
    await mkdir(join(folder, "node_modules"));
    await symlink(facade.folder, join(folder, "node_modules/jerboa"));
    await writeFile(join(folder, name), code);
    await writeFile(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: { ...OPTIONS, ...settings }, files: [name] }));
    const { stdout } = await promisify(execFile)(process.execPath, [join(ROOT, "node_modules/typescript/bin/tsc"), "-p", folder]).catch((error) => error);
    await check(facade.folder);
    return stdout;
  } finally {
    await rm(folder, { recursive: true, force: true });
    await facade.remove();
  }
}

test("requests and answers are of the types of the newest openai package", { timeout: 300_000 }, async () => {
  assert.equal(await compiled("openai.ts", await readFile(join(ROOT, "tests/page/types/openai.ts"), "utf8"), {}), "");
});

/** Entries without types of frameworks. */
const ENTRIES = ["jerboa", "jerboa/memory", "jerboa/memory/file", "jerboa/layers", "jerboa/router", "jerboa/tabs", "jerboa/train"];

test("the declarations are complete by themselves, without skipLibCheck and without types of WebGPU", { timeout: 300_000 }, async () => {
  const code = `import { createMemory } from "jerboa/memory";
${ENTRIES.map((entry, i) => `export * as entry${i} from "${entry}";`).join("\n")}
declare const device: GPUDevice;
declare const model: NonNullable<NonNullable<Parameters<typeof createMemory>[0]>["model"]>;
export const memory = createMemory({ model, gpu: device });
// @ts-expect-error no device
export const wrong = createMemory({ model, gpu: {} });
`;
  // The library of TypeScript 5 has no types of WebGPU.
  const namesNoGpu = async (folder) => {
    for (const name of await readdir(folder, { recursive: true })) {
      if (!name.endsWith(".d.ts")) continue;
      const code = (await readFile(join(folder, name), "utf8")).replace(/\/\*[^]*?\*\/|\/\/.*|(["'`]).*?\1/g, "");
      assert.doesNotMatch(code, /\bGPU[A-Z]\w*|\bNavigatorGPU\b/, name);
    }
  };
  assert.equal(await compiled("entries.ts", code, { skipLibCheck: false }, namesNoGpu), "");
});
