/**
 * Renders the header and the claim before the page's script runs, identical to app.tsx and chat/welcome.tsx, so that
 * nothing moves.
 */

import { APP, LINKS, TAB_NAMES } from "./src/strings.ts";

const list = (entries: string[]): string => entries.join("");

/** The inner HTML of #app. */
export function shell(): string {
  const tabs = list(Object.entries(TAB_NAMES).map(([id, label]) => `<a href="#${id}"${id === "chat" ? ' aria-current="page"' : ""}>${label}</a>`));
  const links = list(LINKS.map(({ label, href }) => `<li><a href="${href}">${label}</a></li>`));
  return [
    `<header class="top"><a class="brand" href="#chat" aria-label="Jerboa"><img src="./favicon.svg" alt="" width="26" height="26"><span>Jerboa</span></a>`,
    `<nav aria-label="Main">${tabs}</nav><span class="grow"></span><ul class="links">${links}</ul><button type="button" class="icon-button" aria-label="Theme"></button></header>`,
    `<main><div class="chat"><div class="toolbar"></div><div class="stage"><section class="welcome shell"><header class="hero"><img src="./favicon.svg" alt="" width="48" height="48">`,
    `<h1>${APP.claim}</h1><p class="device-line">${APP.privacy}</p></header></section></div></div></main>`,
  ].join("");
}
