/** The engine's thread in Node: serves it over the thread's port. */

import { parentPort } from "node:worker_threads";
import * as engine from "./jerboa.js";
import { Host } from "./host.js";
import { drainPipelines, nodePlatform, portOf } from "./node-platform.js";
import { usePlatform } from "./platform.js";
import { serve } from "./rpc.js";

usePlatform(nodePlatform);
if (parentPort) {
  const port = portOf(parentPort);
  port.addEventListener("message", ({ data }: { data: object | null }) => {
    if (data && "drain" in data) void drainPipelines(() => port.postMessage({ drained: false })).then(() => port.postMessage({ drained: true }));
  });
  serve(port, new Host(engine), true);
}
