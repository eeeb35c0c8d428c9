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
