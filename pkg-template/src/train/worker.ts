/** The entry of the training's worker. */

import type { Port } from "../platform.js";
import { serve } from "../rpc.js";
import { TrainHost } from "./host.js";
import * as module from "./train.js";

serve(globalThis as unknown as Port, new TrainHost(module));
