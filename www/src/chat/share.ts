/**
 * Writes a conversation as an HTML file that needs no other file, runs no script and loads nothing. The texts of a
 * conversation are untrusted: they enter the document as text or as the Markdown renderer's sanitized HTML, and the file's
 * content security policy allows only its own styles and images.
 */

import { locale } from "../language";
import { HISTORY, MESSAGE } from "../strings";
import BASE from "../styles/base.css?inline";
import PROSE from "../styles/prose.css?inline";
import SHARE from "../styles/share.css?inline";
import { save } from "../ui/save";
import { type SavedConversation, type SavedFile, type SavedTurn, timeOf } from "./history";
import { getImage } from "./image-store";
import { settledMarkdown } from "./markdown";
import { asCode } from "./prose";
import { splitThinking } from "./thinking";

const POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'";
const MAX_FILE_NAME = 60;

/** Hands the conversation's page to the system's share sheet, or saves it where there is none; returns whether it was saved. */
export async function shareConversation(conversation: SavedConversation): Promise<boolean> {
  const file = new File([await conversationPage(conversation)], fileName(conversation.name), { type: "text/html" });
  const data = { files: [file], title: conversation.name };
  if (navigator.canShare?.(data)) {
    try {
      await navigator.share(data);
      return false;
    } catch (thrown) {
      // The user closed the share sheet. After any other failure the file is saved.
      if ((thrown as DOMException).name === "AbortError") return false;
    }
  }
  save(file.name, file);
  return true;
}

/** Characters that file systems refuse become spaces. */
function fileName(name: string): string {
  const allowed = name.replaceAll(/[\\/:*?"<>|\p{C}]+/gu, " ").replace(/^[.\s]+/, "");
  return `${[...allowed].slice(0, MAX_FILE_NAME).join("").trim() || "conversation"}.html`;
}

/** The turns on the way from the first to the last one shown. */
function shownTurns({ turns, leaf }: SavedConversation): SavedTurn[] {
  const path: SavedTurn[] = [];
  // A parent precedes its turn.
  for (let at = turns[leaf ?? -1] ? leaf! : turns.length - 1; at >= 0; at = turns[at]!.parent ?? at - 1) path.unshift(turns[at]!);
  return path;
}

/** The conversation as an HTML document, without its system prompt and the passages of its files. */
export async function conversationPage(conversation: SavedConversation): Promise<string> {
  const { name, model, updated, completion } = conversation;
  const page = document.implementation.createHTMLDocument(name);
  page.documentElement.lang = locale();
  page.documentElement.dir = document.documentElement.dir;
  page.head.prepend(
    element("meta", { charset: "utf-8" }),
    element("meta", { "http-equiv": "Content-Security-Policy", content: POLICY }),
    element("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    element("meta", { name: "referrer", content: "no-referrer" }),
  );
  page.head.append(element("style", {}, BASE + PROSE + SHARE));
  const facts = element("p", { class: "hint" }, [HISTORY.answeredBy(model || "Jerboa"), new Date(timeOf(updated)).toLocaleDateString(locale())].join(" · "));
  const header = element("header");
  header.append(element("h1", { dir: "auto" }, name), facts);
  const main = element("main");
  main.append(header);
  const turns = shownTurns(conversation);
  if (completion) main.append(story(turns));
  else for (const turn of turns) main.append(turn.role === "user" ? await question(turn) : await answer(turn));
  page.body.append(main);
  return `<!DOCTYPE html>\n${page.documentElement.outerHTML}\n`;
}

/** A continued text: what the user wrote in another color. */
function story(turns: SavedTurn[]): HTMLElement {
  const text = element("p", { class: "story", dir: "auto" });
  for (const { role, text: part } of turns) text.append(role === "user" ? element("span", { class: "given" }, part) : `${part}\n\n`);
  return text;
}

async function question({ text, files = [] }: SavedTurn): Promise<HTMLElement> {
  const section = element("section", { class: "user" });
  section.append(element("h2", { class: "unseen" }, MESSAGE.you));
  for (const file of files) section.append(await attachment(file));
  section.append(element("p", { dir: "auto" }, text));
  return section;
}

/** An image, or the name of a file that is not one or is lost. */
async function attachment({ name, image }: SavedFile): Promise<HTMLElement> {
  const blob = image ? await getImage(image).catch(() => undefined) : undefined;
  return blob ? element("img", { src: await dataUrl(blob), alt: name }) : element("p", { class: "hint", dir: "auto" }, name);
}

async function answer({ text }: SavedTurn): Promise<HTMLElement> {
  const { thinking, answer } = splitThinking(text);
  const section = element("section");
  section.append(element("h2", { class: "unseen" }, MESSAGE.answer));
  if (thinking.trim()) {
    const details = element("details", { class: "thinking" });
    details.append(element("summary", {}, MESSAGE.thoughts), await prose(thinking));
    section.append(details);
  }
  section.append(await prose(asCode(answer)));
  return section;
}

async function prose(text: string): Promise<HTMLElement> {
  const box = element("div", { class: "prose", dir: "auto" });
  box.innerHTML = await settledMarkdown(text);
  // Without scripts nothing copies.
  for (const button of box.querySelectorAll("button")) button.remove();
  return box;
}

function dataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

function element(tag: string, attributes: Record<string, string> = {}, text = ""): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}
