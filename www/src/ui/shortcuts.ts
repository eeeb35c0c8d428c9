/** Keyboard shortcuts with Ctrl, or Command on Apple devices. */

const isApple = /Mac|iPhone|iPad/.test(navigator.userAgent);

/** A letter with the modifier keys of a shortcut. */
export interface Shortcut {
  letter: string;
  shift?: boolean;
}

/** The shortcut as tooltips show it. */
export function shortcutHint({ letter, shift }: Shortcut): string {
  return isApple ? `${shift ? "⇧" : ""}⌘${letter.toUpperCase()}` : `Ctrl+${shift ? "Shift+" : ""}${letter.toUpperCase()}`;
}

/** The shortcut for assistive technology. */
export function ariaShortcut({ letter, shift }: Shortcut): string {
  return `${isApple ? "Meta" : "Control"}+${shift ? "Shift+" : ""}${letter.toUpperCase()}`;
}

/** Calls `act` on the shortcut, except under an open dialog; returns a function that ends it. */
export function onShortcut({ letter, shift = false }: Shortcut, act: () => void): () => void {
  const pressed = (event: KeyboardEvent): void => {
    const isModified = (isApple ? event.metaKey : event.ctrlKey) && event.shiftKey === shift && !event.altKey;
    if (!isModified || event.key.toLowerCase() !== letter || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    act();
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}
