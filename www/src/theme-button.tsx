/** The button that switches the color theme. */

import { render } from "preact";
import { UI } from "./strings";
import { nextTheme, theme, type Theme } from "./theme";
import { Icon, type IconName } from "./ui/icon";

const ICONS: Record<Theme, IconName> = { system: "system", light: "sun", dark: "moon" };

export function ThemeButton() {
  const label = UI.theme(UI.themes[theme.value]);
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={nextTheme}>
      <Icon name={ICONS[theme.value]} />
    </button>
  );
}

/** Adds the button to a page without the app: the bench and the report. */
export function addThemeButton(): void {
  const place = document.getElementById("theme");
  if (place) render(<ThemeButton />, place);
}
