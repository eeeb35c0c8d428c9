/** Compiles the facade next to the fake engine. */

import { execFile } from "node:child_process";
import { copyFile, mkdtemp, mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { ROOT } from "./paths.mjs";

/** The URL of the compiled facade, and a function that removes it. */
export async function buildFacade() {
  await mkdir(join(ROOT, "target"), { recursive: true });
  const folder = await mkdtemp(join(ROOT, "target", "facade-"));
  const tsc = join(ROOT, "node_modules", "typescript", "bin", "tsc");
  await promisify(execFile)(process.execPath, [tsc, "-p", join(ROOT, "pkg-template"), "--outDir", folder]).catch((error) => {
    throw new Error(`tsc refused the facade:\n${error.stdout}`);
  });
  for (const name of ["jerboa.js", "grammar.js"]) await copyFile(join(ROOT, "tests/page/fake-engine", name), join(folder, name));
  await copyFile(join(ROOT, "tests/page/fake-engine/train.js"), join(folder, "train/train.js"));
  await writeFile(join(folder, "package.json"), '{ "type": "module" }');
  return { folder, url: pathToFileURL(folder).href, remove: () => rm(folder, { recursive: true }) };
}
