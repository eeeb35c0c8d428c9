/** The speech models of the page, for their tabs and for the chat. */

import { CODEC, SILERO } from "../model/catalog";
import { ModelSlot } from "../model/model-store";
import { stored } from "../prefs";

/** The codec's repository, if it is not the default one. */
export const codec = stored("tts.codec", "", (v): v is string => typeof v === "string");

export const sttSlot = new ModelSlot("stt", ({ model }) => model.info.task === "transcribe", { vad: SILERO });
export const ttsSlot = new ModelSlot("tts", ({ model }) => model.info.task === "speak", () => ({ codec: codec.peek().trim() || CODEC.id }));
