/** No module of the package or the page imports itself through others, types included. */

import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";
import { ROOT } from "./support/paths.mjs";

/** The modules of a folder, each with the modules of the folder that it imports. */
async function imports(folder) {
  const files = (await readdir(folder, { recursive: true })).filter((name) => /\.tsx?$/.test(name) && !name.endsWith(".d.ts"));
  const stem = (name) => name.replace(/\.(tsx?|js)$/, "");
  const known = new Set(files.map(stem));
  const read = async (name) => {
    const found = (await readFile(join(folder, name), "utf8")).matchAll(/\bfrom "(\.[^"]+)"|\bimport\("(\.[^"]+)"\)/g);
    const targets = [...found].map(([, from, lazy]) => stem(normalize(join(dirname(name), from ?? lazy))));
    return [stem(name), targets.filter((target) => known.has(target))];
  };
  return new Map(await Promise.all(files.map(read)));
}

/** A circle of modules, or undefined. */
function circle(graph) {
  const done = new Set();
  const visit = (name, path) => {
    if (path.includes(name)) return [...path.slice(path.indexOf(name)), name];
    if (done.has(name)) return undefined;
    for (const next of graph.get(name) ?? []) {
      const found = visit(next, [...path, name]);
      if (found) return found;
    }
    done.add(name);
    return undefined;
  };
  for (const name of graph.keys()) {
    const found = visit(name, []);
    if (found) return found;
  }
  return undefined;
}

test("a circle is found", () => {
  assert.deepEqual(circle(new Map([["a", ["b"]], ["b", ["c"]], ["c", ["b"]]])), ["b", "c", "b"]);
  assert.equal(circle(new Map([["a", ["b", "c"]], ["b", ["c"]], ["c", []]])), undefined);
});

for (const folder of ["pkg-template/src", "www/src", "www/bench"]) {
  test(`${folder} has no import circles`, async () => {
    const graph = await imports(join(ROOT, folder));
    assert.ok([...graph.values()].flat().length > 5, "imports are found");
    assert.equal(circle(graph)?.join(" > "), undefined);
  });
}
