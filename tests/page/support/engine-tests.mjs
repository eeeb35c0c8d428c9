/** crate/tests served to any browser by wasm-bindgen's runner, as `wasm-pack test` does for browsers with a driver. */

import { spawn } from "node:child_process";
import { ROOT } from "./paths.mjs";

/** The result in the page's text. */
export const RESULT = /test result: (\w+)\. (\d+) passed; (\d+) failed/;

/** Serves the tests whose names contain `filter`; the page at `url` runs them and writes their results. */
export async function serveEngineTests(filter = "") {
  const file = process.env.JERBOA_ENGINE_TESTS;
  if (!file) throw new Error("JERBOA_ENGINE_TESTS names no compiled tests: run them with `cargo xtask test wasm`, `firefox` or `webkit`.");
  const env = { ...process.env, PATH: `${process.env.PATH}:${process.env.HOME}/.cargo/bin`, NO_HEADLESS: "1", WASM_BINDGEN_TEST_ADDRESS: "127.0.0.1:0" };
  const runner = spawn("wasm-bindgen-test-runner", [file, ...(filter ? [filter] : [])], { cwd: `${ROOT}/crate`, env, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  const url = await new Promise((resolve, reject) => {
    const read = (data) => {
      output += data;
      const [found] = /http:\/\/127\.0\.0\.1:\d+/.exec(output) ?? [];
      if (found) resolve(found);
    };
    runner.stdout.on("data", read);
    runner.stderr.on("data", read);
    runner.on("error", reject);
    runner.on("exit", () => reject(new Error(`wasm-bindgen-test-runner ended:\n${output}`)));
  });
  return { url, close: () => runner.kill() };
}
