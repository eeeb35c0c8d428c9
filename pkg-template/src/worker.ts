/** The entry of the dedicated worker: the engine behind a port. Knows only the two. */

import * as engine from "./jerboa.js";
import { Host } from "./host.js";
import { serve, type Port } from "./wire.js";

serve(globalThis as unknown as Port, new Host(engine));
