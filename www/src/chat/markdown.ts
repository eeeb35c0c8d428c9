/** Renders Markdown to safe HTML. Model output is untrusted: no scripts, frames or remote images. */

import DOMPurify from "dompurify";
import { marked } from "marked";

const purify = DOMPurify(window);
// Links open in a new tab: an answer must not navigate away from the conversation.
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

/** Renders a text to HTML. */
export function markdown(text: string): string {
  const html = marked.parse(text, { async: false, gfm: true, breaks: true });
  return purify.sanitize(html, { USE_PROFILES: { html: true }, FORBID_TAGS: ["img", "video", "audio", "style", "form", "input"], FORBID_ATTR: ["style"] });
}
