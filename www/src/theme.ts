/** The color theme: light, dark or system. */

import { effect } from "@preact/signals";
import { stored } from "./prefs";

export type Theme = "system" | "light" | "dark";

const THEMES: Theme[] = ["system", "light", "dark"];

/** The selected theme. */
export const theme = stored<Theme>("theme", "system", (v): v is Theme => THEMES.includes(v as Theme));

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme.value;
});

/** Switches to the next theme. */
export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
}
