/** Reads answers aloud: with the loaded text-to-speech model, else with a voice of this device. */

import { computed, signal } from "@preact/signals";
import { SynthesisState } from "./synthesis";
import { ttsSlot } from "./slots";

const synthesis = new SynthesisState();
/** Voices that run on this device; the others send the text to a server. */
const voices = signal<SpeechSynthesisVoice[]>([]);
/** The turn that is read; undefined if none is. */
export const reading = signal<number | undefined>(undefined);

const speech = (globalThis as { speechSynthesis?: SpeechSynthesis }).speechSynthesis;
const listVoices = (): void => void (voices.value = speech?.getVoices().filter(({ localService }) => localService) ?? []);
speech?.addEventListener?.("voiceschanged", listVoices);
listVoices();

const model = computed(() => (ttsSlot.model.value?.info.task === "speak" ? ttsSlot.model.value : undefined));

/** Whether answers can be read aloud. */
export const canRead = computed(() => model.value !== undefined || voices.value.length > 0);

/** Reads a text; stops what was read before. */
export async function readAloud(turn: number, text: string): Promise<void> {
  stopReading();
  reading.value = turn;
  const words = plain(text);
  if (model.value) await synthesis.speak(model.value, words, "");
  else await spoken(words);
  if (reading.peek() === turn) reading.value = undefined;
}

export function stopReading(): void {
  synthesis.stop();
  speech?.cancel();
  reading.value = undefined;
}

function spoken(words: string): Promise<void> {
  return new Promise((resolve) => {
    const utterance = new SpeechSynthesisUtterance(words);
    const language = document.documentElement.lang;
    utterance.voice = voices.peek().find(({ lang }) => lang.startsWith(language)) ?? voices.peek()[0]!;
    utterance.onend = utterance.onerror = () => resolve();
    speech!.speak(utterance);
  });
}

/** Markdown without its marks: code blocks are left out. */
function plain(text: string): string {
  return text.replace(/```[\s\S]*?(```|$)/g, " ").replace(/[*_`#>|]+/g, "").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").trim();
}
