/**
 * Renders Markdown with code and formulas to safe HTML. Model output is untrusted: no scripts, frames, controls or
 * remote images.
 */

import { signal } from "@preact/signals";
import DOMPurify from "dompurify";
import { Marked, type TokenizerAndRendererExtension, type Tokens } from "marked";
import { ANSWERS } from "../strings";

/** Loads of modules that have not ended. */
const loading = new Set<Promise<unknown>>();

/** A module that is loaded with its first use. Texts that read it render again once it is there. */
function onFirstUse<T>(load: () => Promise<T>): () => T | undefined {
  const loaded = signal<T | undefined>(undefined);
  let asked: Promise<unknown> | undefined;
  return () => {
    if (!asked) {
      const done: Promise<unknown> = load()
        .then(
          (module) => (loaded.value = module),
          () => (asked = undefined),
        )
        .finally(() => loading.delete(done));
      asked = done;
      loading.add(done);
    }
    return loaded.value;
  };
}

const highlighter = onFirstUse(() => import("./highlight"));
const typesetter = onFirstUse(() => import("./math"));

/** Results of the last blocks: a growing answer renders its finished blocks again and again. */
const recent = new Map<string, string | undefined>();
const MAX_RECENT = 100;

function remembered(key: string, make: () => string | undefined): string | undefined {
  if (!recent.has(key)) {
    if (recent.size >= MAX_RECENT) recent.delete(recent.keys().next().value!);
    recent.set(key, make());
  }
  return recent.get(key);
}

const escaped = (text: string): string => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

function formula(latex: string, display: boolean): string {
  const module = typesetter();
  const made = module && remembered(`${display} ${latex}`, () => module.mathML(latex, display));
  return made ?? `<code class="math">${escaped(latex)}</code>`;
}

/** A formula between delimiters, each with its pattern at the start of a text. */
function formulas(name: string, level: "block" | "inline", opening: RegExp, patterns: [RegExp, display: boolean][]): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (text) => text.match(opening)?.index,
    tokenizer(text) {
      for (const [pattern, display] of patterns) {
        const [raw, latex] = pattern.exec(text) ?? [];
        if (raw !== undefined && latex?.trim()) return { type: name, raw, latex: latex.trim(), display };
      }
      return undefined;
    },
    renderer: ({ latex, display }) => formula(latex as string, display as boolean),
  };
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [
    formulas("formulaBlock", "block", /\$\$|\\\[/, [
      [/^ {0,3}\$\$([^$]+)\$\$[^\S\n]*(?:\n|$)/, true],
      [/^ {0,3}\\\[([\s\S]+?)\\\][^\S\n]*(?:\n|$)/, true],
    ]),
    // As in pandoc, a dollar sign next to a space or before a digit is a currency's.
    formulas("formula", "inline", /\$|\\[([]/, [
      [/^\$\$([^$]+)\$\$/, true],
      [/^\\\[([\s\S]+?)\\\]/, true],
      [/^\\\(([\s\S]+?)\\\)/, false],
      [/^\$(?!\s)((?:\\.|[^\\$`\n])+?)(?<!\s)\$(?!\d)/, false],
    ]),
  ],
  renderer: {
    code({ text, lang = "" }: Tokens.Code) {
      const language = lang.split(/\s/)[0]!.toLowerCase();
      const module = language ? highlighter() : undefined;
      const colored = module && remembered(`${language} ${text}`, () => module.highlight(text, language));
      return `<pre data-language="${escaped(language)}"><code>${colored ?? escaped(text)}\n</code></pre>`;
    },
  },
});

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
  const html = marked.parse(text, { async: false });
  const body = purify.sanitize(html, {
    USE_PROFILES: { html: true, mathMl: true },
    FORBID_TAGS: ["img", "video", "audio", "style", "form", "input", "button", "select", "textarea"],
    FORBID_ATTR: ["style"],
    RETURN_DOM: true,
  }) as HTMLElement;
  for (const pre of body.querySelectorAll("pre")) pre.replaceWith(framed(pre));
  return body.innerHTML;
}

/** Renders a text once the modules for its code and formulas are loaded, or could not be. */
export async function settledMarkdown(text: string): Promise<string> {
  const html = markdown(text);
  if (loading.size === 0) return html;
  await Promise.all(loading);
  return markdown(text);
}

/** A code block with its language and a button that copies it; see {@link copyCode}. */
function framed(pre: HTMLElement): HTMLElement {
  const box = document.createElement("div");
  box.className = "code-block";
  const head = box.appendChild(document.createElement("div"));
  head.className = "code-head";
  head.appendChild(document.createElement("span")).textContent = pre.dataset["language"] ?? "";
  const copy = head.appendChild(document.createElement("button"));
  copy.type = "button";
  copy.className = "quiet-button";
  copy.textContent = ANSWERS.copyCode;
  pre.tabIndex = 0;
  box.append(pre.cloneNode(true));
  return box;
}
