/** The page frame: name, navigation, theme, and the notice when WebGPU is missing. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Hero } from "./chat/welcome";
import { LanguageMenu, LanguageNotice } from "./language-menu";
import { ALSO, LINKS, LINK_LABELS, TAB_NAMES, UI } from "./strings";
import { cached, refreshCached } from "./model/cached";
import { resumeDownloads } from "./model/download-queue";
import { fetchRest, TABS } from "./tabs";
import { ThemeButton } from "./theme-button";
import { Announcer } from "./ui/announce";
import { checkWebGpu, webgpu } from "./webgpu";
import { NoWebGpu } from "./no-webgpu";

const current = signal(fromAddress());

function fromAddress(): string {
  const id = location.hash.slice(1);
  return TABS.some((tab) => tab.id === id) ? id : TABS[0]!.id;
}

/** Keeps the browser from opening files that are dropped where the page does not accept them. */
function refuseFiles(event: DragEvent): void {
  if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
}

export function App() {
  useEffect(() => {
    void checkWebGpu();
    // After the first screen: loading the model has priority.
    setTimeout(() => {
      fetchRest();
      if (!cached.value) void refreshCached();
      void resumeDownloads();
    }, 5000);
    const moved = (): void => void (current.value = fromAddress());
    addEventListener("hashchange", moved);
    addEventListener("dragover", refuseFiles);
    addEventListener("drop", refuseFiles);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("dragover", refuseFiles);
      removeEventListener("drop", refuseFiles);
    };
  }, []);
  const tab = TABS.find(({ id }) => id === current.value)!;
  const { View } = tab;
  return (
    <>
      <button type="button" class="skip primary" onClick={() => document.querySelector("main")?.focus()}>
        {UI.skip}
      </button>
      <header class="top">
        <a class="brand" href="#chat" aria-label="Jerboa">
          <img src="./favicon.svg" alt="" width="26" height="26" />
          <span>Jerboa</span>
        </a>
        <nav aria-label={UI.main}>
          {TABS.map(({ id }) => (
            <a key={id} href={`#${id}`} title={ALSO.tabs.find((each) => each.id === id)?.name} aria-current={id === tab.id ? "page" : undefined}>
              {TAB_NAMES[id]}
            </a>
          ))}
        </nav>
        <span class="grow" />
        <ul class="links">
          {LINKS.map(({ label, href }) => (
            <li key={href}>
              <a href={href}>{LINK_LABELS[label]}</a>
            </li>
          ))}
        </ul>
        <LanguageMenu />
        <ThemeButton />
      </header>
      <main tabIndex={-1}>
        {webgpu.value === "ready" ? <View /> : webgpu.value === "checking" ? <Opening /> : <NoWebGpu reason={webgpu.value} />}
      </main>
      <LanguageNotice />
      <Announcer />
    </>
  );
}

/** Shown while the browser looks for a GPU: keeps what www/shell.ts painted. */
function Opening() {
  return (
    <div class="chat">
      <div class="toolbar" />
      <div class="stage">
        <div class="shell">
          <Hero />
        </div>
      </div>
    </div>
  );
}
