/** The text of an answer as it is shown. What makes HTML of it is fetched aside: the first screen has no use for it. */

import { computed, signal } from "@preact/signals";

const make = signal<((text: string) => string) | undefined>(undefined);
/** Whether texts are shown as they will stay. */
export const settled = computed(() => make.value !== undefined);

let asked: Promise<unknown> | undefined;

/** Fetches what is needed, once. */
export function prepare(): void {
  asked ??= import("./markdown").then(
    ({ markdown }) => (make.value = markdown),
    () => (asked = undefined),
  );
}

/** The HTML of a text; plain until its maker is there. */
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

/** Splits off what a model thinks before it answers. */
export function splitThinking(text: string): { thinking: string; answer: string; open: boolean } {
  const start = text.match(/^\s*<think>/);
  if (!start) return { thinking: "", answer: text, open: false };
  const end = text.indexOf("</think>");
  if (end < 0) return { thinking: text.slice(start[0].length), answer: "", open: true };
  return { thinking: text.slice(start[0].length, end), answer: text.slice(end + "</think>".length), open: false };
}
