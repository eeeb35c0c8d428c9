/** Builds that test files share: each is made once and stored until its inputs change. */

import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { ROOT } from "./paths.mjs";

const BUILDS = join(ROOT, "target", "page-builds");

/**
 * The folder of a build: `make(folder)` writes it, unless it exists for the current content of `inputs`, files and
 * folders of the repository. Callers only read it. Builds of the same name from other inputs are removed.
 */
export async function buildOnce(name, inputs, make) {
  await mkdir(BUILDS, { recursive: true });
  const folder = join(BUILDS, `${name}-${await fingerprint(inputs)}`);
  if (await exists(folder)) return folder;
  const earlier = (await readdir(BUILDS)).filter((entry) => entry.startsWith(`${name}-`));
  const unfinished = await mkdtemp(join(BUILDS, "unfinished-"));
  try {
    await make(unfinished);
    // Another file may have built it meanwhile.
    await rename(unfinished, folder).catch(async (error) => {
      if (!(await exists(folder))) throw error;
    });
  } finally {
    await rm(unfinished, { recursive: true, force: true });
  }
  for (const entry of earlier) await rm(join(BUILDS, entry), { recursive: true, force: true });
  return folder;
}

async function fingerprint(inputs) {
  const hash = createHash("sha256");
  const add = async (path) => {
    const full = join(ROOT, path);
    if ((await stat(full)).isDirectory()) {
      for (const entry of (await readdir(full)).sort()) await add(`${path}/${entry}`);
    } else {
      const content = await readFile(full);
      hash.update(`${path}\0${content.length}\0`).update(content);
    }
  };
  for (const input of inputs) await add(input);
  return hash.digest("hex").slice(0, 16);
}

const exists = (path) => stat(path).then(() => true, () => false);
