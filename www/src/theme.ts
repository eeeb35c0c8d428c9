/** The color theme: light, dark or system. The documentation shares the choice. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const THEMES: Theme[] = ["system", "light", "dark"];
/** VitePress's key, whose values are `auto`, `light` and `dark`. theme.js reads it, too. */
const KEY = "vitepress-theme-appearance";

/** The selected theme. */
export const theme = signal<Theme>(read());

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme.value;
});

// Changed in another tab, or in the documentation before the browser's Back button.
for (const event of ["storage", "pageshow"]) addEventListener(event, () => (theme.value = read()));

function read(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

/** Switches to the next theme, and remembers it. */
export function nextTheme(): void {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
  theme.value = next;
  try {
    localStorage.setItem(KEY, next === "system" ? "auto" : next);
  } catch {
    // Storage may be disabled or full; the page works without it.
  }
}
