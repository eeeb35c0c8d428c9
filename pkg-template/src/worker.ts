/** The entry of the dedicated worker: serves the engine over the worker's port. */

import * as engine from "./jerboa.js";
import { Host } from "./host.js";
import type { Port } from "./platform.js";
import { serve } from "./rpc.js";

serve(globalThis as unknown as Port, new Host(engine));
