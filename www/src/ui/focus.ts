/** Moves the focus when its element disappears. */

/** Focuses the first existing selector if nothing has the focus after the next paint. */
export function refocus(...selectors: string[]): void {
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      if (document.activeElement && document.activeElement !== document.body) return;
      for (const selector of selectors) {
        const found = document.querySelector<HTMLElement>(selector);
        if (found) return found.focus();
      }
    }),
  );
}
