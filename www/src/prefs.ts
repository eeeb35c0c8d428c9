/** Signals persisted in localStorage. */

import { effect, signal, type Signal } from "@preact/signals";

/** A persisted signal, and a function that reads again what is stored. */
interface Persisted<T> {
  signal: Signal<T>;
  /** Takes over what another tab has stored by now. */
  refresh: () => void;
}

/** A signal that starts from the stored value of this name, if it is valid. */
export function stored<T>(name: string, initial: T, valid: (value: unknown) => value is T): Signal<T> {
  return persisted(name, initial, valid).signal;
}

/**
 * A stored signal that follows the changes of other tabs. Refresh it before a change that depends on its value. `completed`
 * adds to another tab's value what that tab had not seen.
 */
export function shared<T>(name: string, initial: T, valid: (value: unknown) => value is T, completed?: (value: T) => T): Persisted<T> {
  const result = persisted(name, initial, valid, completed);
  addEventListener("storage", ({ key }) => {
    if (key === keyOf(name) || key === null) result.refresh();
  });
  return result;
}

const keyOf = (name: string): string => `jerboa.${name}`;

function persisted<T>(name: string, initial: T, valid: (value: unknown) => value is T, completed = (value: T): T => value): Persisted<T> {
  const key = keyOf(name);
  const result = signal<T>(read(key, initial, valid));
  // The stored text of the signal's value; undefined if storage refused it.
  let text: string | null | undefined;
  effect(() => {
    text = JSON.stringify(result.value);
    try {
      if (localStorage.getItem(key) !== text) localStorage.setItem(key, text);
    } catch {
      // Storage may be disabled or full; the page works without it.
      text = undefined;
    }
  });
  const refresh = (): void => {
    if (text === undefined || localStorage.getItem(key) === text) return;
    const isCleared = localStorage.getItem(key) === null;
    const value = read(key, isCleared ? initial : result.peek(), valid);
    result.value = isCleared ? value : completed(value);
  };
  return { signal: result, refresh };
}

function read<T>(key: string, initial: T, valid: (value: unknown) => value is T): T {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(key) ?? "null");
    return valid(value) ? value : initial;
  } catch {
    return initial;
  }
}
