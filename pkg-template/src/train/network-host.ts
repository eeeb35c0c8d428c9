/** Runs a network on this thread, one call after another. */

import { aborted, invalidRequest } from "../errors.js";
import { stripUndefined } from "../strip-undefined.js";
import type { FitSettings, NetworkDescription } from "./network-calls.js";
import type { LayerNetwork } from "./train.js";

const METHODS = ["openNetwork", "predict", "evaluate", "fit", "weights", "setWeights"] as const;

type NetworkMethod = (typeof METHODS)[number];

/** Whether a call is one to a network. */
export const isNetworkMethod = (method: string): method is NetworkMethod => (METHODS as readonly string[]).includes(method);

/** The network of this thread. */
export class NetworkHost {
  readonly #module: typeof LayerNetwork;
  #network: LayerNetwork | undefined;
  #last: Promise<unknown> = Promise.resolve();

  constructor(module: typeof LayerNetwork) {
    this.#module = module;
  }

  /** Runs a call after those before it: a network takes one at a time. */
  call(method: NetworkMethod, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    const run = this.#last.then(() => {
      if (signal.aborted) throw aborted(method);
      return this.#run(method, args, signal, onEvent);
    });
    this.#last = run.catch(() => {});
    return run;
  }

  async #run(method: NetworkMethod, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    if (method === "openNetwork") {
      this.#network = await this.#module.open(args[0] as NetworkDescription, args[1] as number);
      return this.#network.info();
    }
    const network = this.#network;
    if (!network) throw invalidRequest("the network was not created. Call createNetwork first.");
    switch (method) {
      case "predict":
        return network.predict(args[0] as Uint32Array, args[1] as number);
      case "evaluate":
        return network.evaluate(args[0] as Uint32Array, args[1] as Uint32Array, args[2] as string, args[3] as number);
      case "weights":
        return network.weights();
      case "setWeights":
        return network.setWeights(args[0] as Uint8Array);
      case "fit":
        return this.#fit(network, args as [Uint32Array, Uint32Array, FitSettings], signal, onEvent);
    }
  }

  async #fit(network: LayerNetwork, [x, y, options]: [Uint32Array, Uint32Array, FitSettings], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<number[]> {
    network.start(x, y, stripUndefined(options) as FitSettings);
    const losses: number[] = [];
    for (;;) {
      const done = await network.advance();
      if (!done) return losses;
      if (done.isEpochEnd) losses.push(done.loss);
      if (signal.aborted) throw aborted("fit");
      onEvent(done);
    }
  }
}
