/** The page's tabs in order. The first is bundled with the page, the others are loaded when opened. */

import { signal } from "@preact/signals";
import { JerboaError } from "jerboa";
import { type ComponentType, h } from "preact";
import { ChatTab } from "./chat/tab";
import { prepare } from "./chat/prose";
import { TAB_NAMES } from "./strings";
import { Notice } from "./ui/notice";

export interface Tab {
  /** The fragment of its URL. */
  id: keyof typeof TAB_NAMES;
  View: ComponentType;
}

const rest: (() => void)[] = [prepare];

/** Preloads everything, so that the page works offline. */
export function fetchRest(): void {
  for (const fetch of rest) fetch();
}

/** A tab that is loaded when it is first shown. */
function later(load: () => Promise<ComponentType>): ComponentType {
  const view = signal<ComponentType | undefined>(undefined);
  const failed = signal<JerboaError | undefined>(undefined);
  let asked: Promise<unknown> | undefined;
  const fetch = (): void => {
    asked ??= load().then(
      (found) => (view.value = found),
      (thrown: unknown) => {
        asked = undefined;
        failed.value = new JerboaError("assets", String(thrown));
      },
    );
  };
  rest.push(fetch);
  return function Later() {
    if (view.value) return h(view.value, null);
    if (failed.value) return h("div", { class: "stage" }, h(Notice, { error: failed.value }));
    fetch();
    return null;
  };
}

const VIEWS: Record<Tab["id"], ComponentType> = {
  chat: ChatTab,
  vision: later(() => import("./vision/tab").then((m) => m.VisionTab)),
  embedding: later(() => import("./embedding/tab").then((m) => m.EmbeddingTab)),
  stt: later(() => import("./speech/stt").then((m) => m.SttTab)),
  tts: later(() => import("./speech/tts").then((m) => m.TtsTab)),
  train: later(() => import("./train/tab").then((m) => m.TrainTab)),
};

export const TABS: readonly Tab[] = (Object.keys(TAB_NAMES) as Tab["id"][]).map((id) => ({ id, View: VIEWS[id] }));
