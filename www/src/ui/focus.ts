/** Where the focus goes when the control that had it is gone. */

/** Moves the focus to the first that is there, when nothing has it after the next paint. */
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
