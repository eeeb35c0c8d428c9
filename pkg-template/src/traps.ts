/** Detects traps of the WebAssembly module. A trapped instance cannot be used again, and its running calls never settle. */

import type { EngineModule } from "./engine-calls.js";
import { isTrap, JerboaError } from "./errors.js";

const watches = new WeakMap<EngineModule, TrapWatch>();

/** Watches one module on this thread. */
export class TrapWatch {
  /** What stopped the module; undefined while it works. */
  error: JerboaError | undefined;
  /** What names of the module's file contain. */
  readonly files = ["jerboa"];
  /** Users of the module, which receive the error. */
  readonly users = new Set<(error: JerboaError) => void>();

  /** The watch of a module. */
  static of(module: EngineModule): TrapWatch {
    const watch = watches.get(module) ?? new TrapWatch();
    watches.set(module, watch);
    return watch;
  }

  private constructor() {
    if (typeof addEventListener !== "function") return;
    // A trap in a future is thrown by a microtask, not by the call.
    addEventListener("error", (event) => this.#take(event, event.error));
    addEventListener("unhandledrejection", (event) => this.#take(event, event.reason));
  }

  #take(event: Event, thrown: unknown): void {
    // The page may have other WebAssembly: its traps happen while no call of the engine runs, or name another file.
    if (!isTrap(thrown) || this.users.size === 0 || this.error) return;
    const files = String((thrown as Error).stack).match(/[^\s/()@]+\.wasm\b/g);
    if (files && !files.some((file) => this.files.some((name) => file.includes(name)))) return;
    event.preventDefault();
    this.report(thrown);
  }

  /** Takes an exception of a call; if it is a trap, ends all calls and closes the GPU devices of this thread. */
  report(thrown: unknown): void {
    if (this.error || !isTrap(thrown)) return;
    const { name, message } = thrown as Error;
    this.error = new JerboaError("internal", `The engine stopped (${name}: ${message}). The next call loads the model again in a fresh engine. This is a bug in jerboa; please report it.`, { cause: thrown });
    for (const user of this.users) user(this.error);
    this.users.clear();
    // crate/js/gpu.js registers them.
    const devices = (globalThis as unknown as Record<symbol, Set<{ destroy(): void }> | undefined>)[Symbol.for("jerboa.devices")];
    devices?.forEach((device) => device.destroy());
  }
}
