/** Signals that outlive the visit, in localStorage. Does not know what they mean. */

import { effect, signal, type Signal } from "@preact/signals";

/** A signal that starts from what was stored under this name, when it has the right shape. */
export function stored<T>(name: string, initial: T, valid: (value: unknown) => value is T): Signal<T> {
  const key = `jerboa.${name}`;
  const result = signal<T>(read(key, initial, valid));
  effect(() => {
    try {
      localStorage.setItem(key, JSON.stringify(result.value));
    } catch {
      // Storage may be off or full: the page works without it.
    }
  });
  return result;
}

function read<T>(key: string, initial: T, valid: (value: unknown) => value is T): T {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(key) ?? "null");
    return valid(value) ? value : initial;
  } catch {
    return initial;
  }
}
