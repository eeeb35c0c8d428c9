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
