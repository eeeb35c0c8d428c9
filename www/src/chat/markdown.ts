/** Markdown as safe HTML. What a model writes is not to be trusted: no scripts, no frames, no pictures from elsewhere. */

import DOMPurify from "dompurify";
import { marked } from "marked";

const purify = DOMPurify(window);
// Links open beside the page: a model's answer must not carry the user away from the conversation.
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

/** The HTML of a text. */
export function markdown(text: string): string {
  const html = marked.parse(text, { async: false, gfm: true, breaks: true });
  return purify.sanitize(html, { USE_PROFILES: { html: true }, FORBID_TAGS: ["img", "video", "audio", "style", "form", "input"], FORBID_ATTR: ["style"] });
}

/** Splits off what a model thinks before it answers. */
export function splitThinking(text: string): { thinking: string; answer: string; open: boolean } {
  const start = text.match(/^\s*<think>/);
  if (!start) return { thinking: "", answer: text, open: false };
  const end = text.indexOf("</think>");
  if (end < 0) return { thinking: text.slice(start[0].length), answer: "", open: true };
  return { thinking: text.slice(start[0].length, end), answer: text.slice(end + "</think>".length), open: false };
}
