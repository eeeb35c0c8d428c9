/** Renders answers for display. The Markdown renderer is loaded lazily: the first screen does not need it. */

import { computed, signal } from "@preact/signals";

const make = signal<((text: string) => string) | undefined>(undefined);
/** Whether the Markdown renderer is loaded. */
export const settled = computed(() => make.value !== undefined);

let asked: Promise<unknown> | undefined;

/** Loads the renderer, once. */
export function prepare(): void {
  asked ??= import("./markdown").then(
    ({ markdown }) => (make.value = markdown),
    () => (asked = undefined),
  );
}

/** Renders a text to HTML; plain text until the renderer is loaded. */
export function prose(text: string): string {
  prepare();
  return make.value ? make.value(text) : plain(text);
}

function plain(text: string): string {
  const p = document.createElement("p");
  p.style.whiteSpace = "pre-wrap";
  p.textContent = text;
  return p.outerHTML;
}

/** An answer in JSON as a block of code, indented once it is complete. */
export function asCode(text: string): string {
  if (!/^\s*\{/.test(text)) return text;
  let shown = text.trim();
  try {
    shown = JSON.stringify(JSON.parse(shown), null, 2);
  } catch {
    // Not complete yet.
  }
  return `\`\`\`json\n${shown}\n\`\`\``;
}
