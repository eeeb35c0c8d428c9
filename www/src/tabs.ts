/** The tabs of the page: one entry each, in their order. The page shows those that are here. */

import type { ComponentType } from "preact";
import { ChatTab } from "./chat/tab";
import { EmbeddingTab } from "./embedding/tab";
import { SttTab } from "./speech/stt";
import { TtsTab } from "./speech/tts";
import { VisionTab } from "./vision/tab";

export interface Tab {
  /** Its place in the address, after `#`. */
  id: string;
  label: string;
  View: ComponentType;
}

export const TABS: readonly Tab[] = [
  { id: "chat", label: "Chat", View: ChatTab },
  { id: "vision", label: "Vision", View: VisionTab },
  { id: "embedding", label: "Embedding", View: EmbeddingTab },
  { id: "stt", label: "STT", View: SttTab },
  { id: "tts", label: "TTS", View: TtsTab },
];
