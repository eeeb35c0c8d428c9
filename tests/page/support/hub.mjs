/** The simulated Hub of tests/hub as a child process. */

import { spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { ROOT } from "./paths.mjs";

/** Serves the repositories under a folder (`org/name/…`); `control` sends a request to /_control/…, with an optional body. */
export async function startHub(folder) {
  const child = spawn(process.env.JERBOA_NODE ?? process.execPath, [join(ROOT, "tests/hub/hub-server.mjs"), "--root", folder], { stdio: ["pipe", "pipe", "inherit"] });
  let url;
  for await (const line of createInterface({ input: child.stdout })) {
    url = JSON.parse(line).hub;
    break;
  }
  const control = async (what, body) => {
    const method = body === undefined ? "GET" : "POST";
    const response = await fetch(`${url}/_control/${what}`, { method, body: body && JSON.stringify(body) });
    return response.json();
  };
  return { url, control, close: () => child.kill() };
}
