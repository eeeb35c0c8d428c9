/** The engine on the calling thread, in a module of its own so that bundlers load it only where it is wanted. */

import * as engine from "./jerboa.js";
import { Host } from "./host.js";

/** A host on this thread. */
export function localHost(): Host {
  return new Host(engine);
}
