/** The engine on the calling thread; a separate module so that bundlers load it only when needed. */

import * as engine from "./jerboa.js";
import { Host } from "./host.js";

/** Creates a host on this thread. */
export function localHost(): Host {
  return new Host(engine);
}
