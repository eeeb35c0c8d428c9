/** The engine's thread in Node: serves it over the thread's port. */

import { parentPort } from "node:worker_threads";
import * as engine from "./jerboa.js";
import { Host } from "./host.js";
import { nodePlatform, portOf } from "./node-platform.js";
import { usePlatform } from "./platform.js";
import { serve } from "./rpc.js";

usePlatform(nodePlatform);
if (parentPort) serve(portOf(parentPort), new Host(engine), true);
