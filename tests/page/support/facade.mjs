/** Compiles the facade next to the fake engine, once for all files of a run. */

import { execFile } from "node:child_process";
import { copyFile, cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { buildOnce } from "./build-once.mjs";
import { ROOT } from "./paths.mjs";

/** The files that determine the compiled facade. */
export const FACADE_INPUTS = ["pkg-template/src", "pkg-template/tsconfig.json", "tests/page/fake-engine", "package-lock.json"];

/** A copy of the compiled facade: its folder, its URL, and a function that removes it. */
export async function buildFacade() {
  const built = await buildOnce("facade", FACADE_INPUTS, compile);
  const folder = await mkdtemp(join(ROOT, "target", "facade-"));
  await cp(built, folder, { recursive: true });
  return { folder, url: pathToFileURL(folder).href, remove: () => rm(folder, { recursive: true }) };
}

async function compile(folder) {
  const tsc = join(ROOT, "node_modules", "typescript", "bin", "tsc");
  await promisify(execFile)(process.execPath, [tsc, "-p", join(ROOT, "pkg-template"), "--outDir", folder]).catch((error) => {
    throw new Error(`tsc refused the facade:\n${error.stdout}`);
  });
  for (const name of ["jerboa.js", "grammar.js"]) await copyFile(join(ROOT, "tests/page/fake-engine", name), join(folder, name));
  await copyFile(join(ROOT, "tests/page/fake-engine/train.js"), join(folder, "train/train.js"));
  await writeFile(join(folder, "package.json"), '{ "type": "module" }');
}

/** Runs a test on a model of the facade at `url` in this thread, and on one behind a port, as in a worker. */
export async function onBothThreads(url, run) {
  const [{ loadModel }, { RemoteBackend, serve }, { Host }, { Model }, fake] = await Promise.all(["index", "rpc", "host", "model", "jerboa"].map((name) => import(`${url}/${name}.js`)));
  await run(await loadModel("org/name", { worker: false }));
  const { port1, port2 } = new MessageChannel();
  serve(port1, new Host(fake));
  const backend = new RemoteBackend(port2, () => [port1, port2].forEach((port) => port.close()));
  port1.start();
  port2.start();
  await run(new Model(backend, await backend.call("load", [{ model: "org/name" }]), Promise.resolve()));
  await backend.close();
}
