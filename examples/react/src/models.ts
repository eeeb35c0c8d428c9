/** The models of the example; `?chat=org/name` and the like choose others. */

const chosen = new URLSearchParams(globalThis.location?.search);
/** A name of the Hub, or a folder of this server. */
const model = (name: string, fallback: string): string => {
  const given = chosen.get(name) ?? fallback;
  return given.startsWith("/") ? new URL(given, location.href).href : given;
};

export const MODELS = {
  chat: model("chat", "mlx-community/Qwen3-0.6B-4bit"),
  completion: model("completion", "mlx-community/Qwen3-0.6B-4bit"),
  embedding: model("embedding", "sentence-transformers/all-MiniLM-L6-v2"),
  transcription: model("transcription", "openai/whisper-tiny.en"),
  speech: model("speech", "nineninesix/kani-tts-2-en"),
  codec: model("codec", "nvidia/nemo-nano-codec-22khz-0.6kbps-12.5fps"),
};
