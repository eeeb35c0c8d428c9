/** The package's entry for Node, Deno and Bun: the same API as in a browser. */

import "./node-guard.js";
import { nodePlatform } from "./node-platform.js";
import { usePlatform } from "./platform.js";

usePlatform(nodePlatform);

export * from "./index.js";
