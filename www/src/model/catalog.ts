/** Models that the page offers by name. Any other repository can be typed. */

import type { Wanted } from "./slot";

/** The model that lies beside the page. */
export const BUNDLED: Wanted = {
  source: new URL("models/stories260K/", document.baseURI).href,
  label: "stories260K",
  options: {},
};

export interface Suggestion {
  id: string;
  /** Of the weights. */
  bytes: number;
  note: string;
}

/** Chat models that are small enough for a page, by the size of their download. */
export const CHAT_SUGGESTIONS: readonly Suggestion[] = [
  { id: "HuggingFaceTB/SmolLM2-135M-Instruct", bytes: 269e6, note: "Quick, simple answers" },
  { id: "HuggingFaceTB/SmolLM2-360M-Instruct", bytes: 724e6, note: "Short English answers" },
  { id: "Qwen/Qwen2.5-0.5B-Instruct", bytes: 988e6, note: "Many languages" },
  { id: "Qwen/Qwen3-0.6B", bytes: 1503e6, note: "Thinks before it answers" },
];
