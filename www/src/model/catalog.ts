/** The suggested models with their sizes. Any other repository can be entered by name. */

import type { LoadRequest } from "./model-store";

/** As in `info.model`, without a slash at the end. */
const bundledUrl = (folder: string): string => new URL(`models/${folder}`, document.baseURI).href;

/** The chat model bundled with the page. */
export const BUNDLED_CHAT: LoadRequest = { source: bundledUrl("stories260K"), label: "stories260K", options: {} };

/** The vision model bundled with the page. */
export const BUNDLED_VISION: LoadRequest = { source: bundledUrl("tiny-vision"), label: "tiny-vision", options: {} };

/** The embedding model bundled with the page. */
export const BUNDLED_ENCODER: LoadRequest = { source: bundledUrl("words-encoder"), label: "words-encoder", options: {} };

/** The recommended embedding model. */
export const MINILM: LoadRequest = { source: "sentence-transformers/all-MiniLM-L6-v2", label: "sentence-transformers/all-MiniLM-L6-v2", options: {} };

export interface Suggestion {
  id: string;
  /** Display name. */
  name: string;
  /** Parameter count as commonly written: 0.6B. */
  parameters: string;
  /** Download size. */
  bytes: number;
  /** Approximate GPU memory with a context of 4,096 tokens. */
  memory: number;
  bits: 4 | 16;
  licence: string;
  note: string;
}

/** Chat models that are small enough for a page; 4-bit ones first, by size. */
export const CHAT_SUGGESTIONS: readonly Suggestion[] = [
  { id: "mlx-community/Qwen2.5-0.5B-Instruct-4bit", name: "Qwen2.5 0.5B", parameters: "0.5B", bytes: 278e6, memory: 0.5e9, bits: 4, licence: "Apache 2.0", note: "Quick, many languages" },
  { id: "mlx-community/Qwen3-0.6B-4bit", name: "Qwen3 0.6B", parameters: "0.6B", bytes: 335e6, memory: 0.9e9, bits: 4, licence: "Apache 2.0", note: "Thinks before it answers" },
  { id: "mlx-community/Llama-3.2-1B-Instruct-4bit", name: "Llama 3.2 1B", parameters: "1.2B", bytes: 695e6, memory: 1.0e9, bits: 4, licence: "Llama 3.2", note: "Fluent English" },
  { id: "mlx-community/Qwen2.5-1.5B-Instruct-4bit", name: "Qwen2.5 1.5B", parameters: "1.5B", bytes: 869e6, memory: 1.1e9, bits: 4, licence: "Apache 2.0", note: "Good answers for its size" },
  { id: "mlx-community/Qwen3-1.7B-4bit", name: "Qwen3 1.7B", parameters: "1.7B", bytes: 968e6, memory: 1.6e9, bits: 4, licence: "Apache 2.0", note: "Thinks before it answers" },
  { id: "mlx-community/Phi-3-mini-4k-instruct-4bit", name: "Phi-3 mini", parameters: "3.8B", bytes: 2150e6, memory: 3.9e9, bits: 4, licence: "MIT", note: "For GPUs with 6 GB or more" },
  { id: "HuggingFaceTB/SmolLM2-135M-Instruct", name: "SmolLM2 135M", parameters: "135M", bytes: 269e6, memory: 0.4e9, bits: 16, licence: "Apache 2.0", note: "Simple answers on the weakest devices" },
];

/** The chat model offered on the first screen. */
export const FIRST_CHAT = CHAT_SUGGESTIONS[0]!;

/** Embedding models that are small enough for a page. */
export const EMBEDDING_SUGGESTIONS: readonly Suggestion[] = [
  { id: "sentence-transformers/all-MiniLM-L6-v2", name: "all-MiniLM-L6-v2", parameters: "23M", bytes: 90.9e6, memory: 0.1e9, bits: 16, licence: "Apache 2.0", note: "Quick, English" },
  { id: "BAAI/bge-small-en-v1.5", name: "bge-small-en", parameters: "33M", bytes: 133e6, memory: 0.2e9, bits: 16, licence: "MIT", note: "Better at questions, English" },
  { id: "intfloat/multilingual-e5-small", name: "multilingual-e5-small", parameters: "118M", bytes: 471e6, memory: 0.5e9, bits: 16, licence: "MIT", note: "100 languages" },
  { id: "Qwen/Qwen3-Embedding-0.6B", name: "Qwen3-Embedding 0.6B", parameters: "0.6B", bytes: 1192e6, memory: 1.4e9, bits: 16, licence: "Apache 2.0", note: "Long texts, many languages" },
];

/** Vision models that are small enough for a page. */
export const VISION_SUGGESTIONS: readonly Suggestion[] = [
  { id: "HuggingFaceTB/SmolVLM-256M-Instruct", name: "SmolVLM 256M", parameters: "256M", bytes: 513e6, memory: 0.8e9, bits: 16, licence: "Apache 2.0", note: "The smallest, short answers" },
  { id: "LiquidAI/LFM2-VL-450M", name: "LFM2-VL 450M", parameters: "450M", bytes: 902e6, memory: 1.2e9, bits: 16, licence: "LFM 1.0", note: "Quick, good at scenes" },
  { id: "Qwen/Qwen3.5-0.8B", name: "Qwen3.5 0.8B", parameters: "0.8B", bytes: 1750e6, memory: 2.2e9, bits: 16, licence: "Apache 2.0", note: "Reads text in images, many languages" },
];

/** Silero VAD, bundled with the page: distinguishes speech from noise. */
export const SILERO = `${bundledUrl("silero-vad")}/model.safetensors`;

/** A recording to transcribe: John F. Kennedy's inaugural address, 1961 (US government, public domain). */
export const SAMPLE_RECORDING = new URL("audio/inaugural-address.mp3", document.baseURI).href;

/** Speech-to-text models that are small enough for a page. */
export const ASR_SUGGESTIONS: readonly Suggestion[] = [
  { id: "UsefulSensors/moonshine-tiny", name: "Moonshine tiny", parameters: "27M", bytes: 108e6, memory: 0.2e9, bits: 16, licence: "MIT", note: "The quickest, English" },
  { id: "UsefulSensors/moonshine-base", name: "Moonshine base", parameters: "62M", bytes: 247e6, memory: 0.4e9, bits: 16, licence: "MIT", note: "Quick and good, English" },
  { id: "openai/whisper-base", name: "Whisper base", parameters: "73M", bytes: 290e6, memory: 0.5e9, bits: 16, licence: "Apache 2.0", note: "99 languages, with timestamps" },
  { id: "openai/whisper-small", name: "Whisper small", parameters: "242M", bytes: 967e6, memory: 1.2e9, bits: 16, licence: "Apache 2.0", note: "99 languages, more accurate" },
  { id: "openai/whisper-large-v3-turbo", name: "Whisper large v3 turbo", parameters: "809M", bytes: 1618e6, memory: 1.9e9, bits: 16, licence: "MIT", note: "Best quality, for GPUs with 4 GB or more" },
];

/** The codec that the suggested voices were trained with: an NVIDIA NeMo archive, of which the decoder is used. */
export const CODEC = { id: "nvidia/nemo-nano-codec-22khz-0.6kbps-12.5fps", licence: "NVIDIA Open Model License" };

/** Text-to-speech models that are small enough for a page. */
export const TTS_SUGGESTIONS: readonly Suggestion[] = [
  { id: "nineninesix/kani-tts-2-en", name: "Kani-TTS-2 English", parameters: "0.4B", bytes: 740e6, memory: 1.2e9, bits: 16, licence: "LFM 1.0", note: "English; NanoCodec comes with it" },
  { id: "nineninesix/kani-tts-2-pt", name: "Kani-TTS-2", parameters: "0.4B", bytes: 740e6, memory: 1.2e9, bits: 16, licence: "LFM 1.0", note: "English and Spanish; NanoCodec comes with it" },
];

/** The load request of a suggestion. */
export function requestOf({ id }: Suggestion): LoadRequest {
  return { source: id, label: id, options: {} };
}
