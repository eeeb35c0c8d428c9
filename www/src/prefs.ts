/** Signals persisted in localStorage. */

import { effect, signal, type Signal } from "@preact/signals";

/** A signal that starts from the stored value of this name, if it is valid. */
export function stored<T>(name: string, initial: T, valid: (value: unknown) => value is T): Signal<T> {
  const key = `jerboa.${name}`;
  const result = signal<T>(read(key, initial, valid));
  effect(() => {
    try {
      localStorage.setItem(key, JSON.stringify(result.value));
    } catch {
      // Storage may be disabled or full; the page works without it.
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
