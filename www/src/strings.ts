/** All text of the page. */

export const APP = {
  claim: "Chat with language models running in your browser, on your own GPU.",
  privacy: "What you type never leaves your device.",
  runsOn: (gpu: string, software: boolean) => `Runs on ${gpu}${software ? ", without a GPU: everything is slow" : ""}.`,
  software: "No GPU found: running on the CPU, so everything is slow.",
  noScript: "This page runs language models in the browser and needs JavaScript.",
};

/** Tab names by URL fragment, in order. */
export const TAB_NAMES = { chat: "Chat", vision: "Vision", embedding: "Embedding", stt: "STT", tts: "TTS" } as const;

/** Links to the other tabs on the first screen. */
export const ALSO = {
  label: "Also in this demo",
  tabs: [
    { id: "vision", name: "Images", does: "Ask questions about an image." },
    { id: "embedding", name: "Search", does: "Search your notes by meaning." },
    { id: "stt", name: "Speech to text", does: "From the microphone or a file." },
    { id: "tts", name: "Text to speech", does: "Plays while it is generated." },
  ],
} as const;

export const LINKS = [
  { label: "Docs", href: "./docs/" },
  { label: "Bench", href: "./bench/" },
  { label: "Device report", href: "./report/" },
  { label: "Source", href: "https://github.com/jerboa-ai/jerboa" },
  { label: "npm", href: "https://www.npmjs.com/package/jerboa" },
] as const;

export const LOAD = {
  starting: "Starting the engine (1.3 MB, once)",
  waiting: "Waiting: another tab is loading the same model",
  config: "Reading the configuration",
  tokenizer: "Reading the tokenizer",
  download: "Downloading",
  cache: "Reading from this device",
  compile: "Preparing the GPU",
  ready: "Ready",
  cancel: "Cancel",
  failed: (name: string) => `${name} could not be loaded.`,
  staysLoaded: (name: string) => `${name} stays loaded.`,
  again: "Try again",
  token: "Enter a token",
  other: "Choose another model",
  dismiss: "Dismiss",
  tooLarge: (room: string) => `Probably too large: about ${room} available for models.`,
  kernels: (done: number, all: number) => `${done} of ${all} kernels`,
};

/** Search of the Hugging Face Hub. */
export const HUB = {
  search: "Search",
  empty: "Enter a name to search for.",
  back: "Back to the suggestions",
  searching: (query: string) => `Searching the Hub for “${query}”…`,
  results: (query: string) => `Models for “${query}”`,
  found: (count: number, query: string) => (count === 0 ? `No model for “${query}” with files that run here.` : `${count} models found.`),
  failed: (why: string) => `The Hub did not answer: ${why}. Check the connection, or enter the model's full name.`,
  filesOf: (id: string) => `Files of ${id}`,
  quantized: "quantized",
  parameters: (count: string) => `${count} parameters`,
  noLicence: "no licence given",
  gated: "asks you to accept its terms",
  downloads: (count: string) => `${count} downloads a month`,
  fits: "Fits this device",
};

/** The loaded model in the picker. */
export const IN_USE = {
  label: "Model in use",
  memory: (size: string) => `${size} of GPU memory`,
  code: "Use in your code",
  copy: "Copy the code",
  eject: "Unload",
  ejected: "The model was unloaded.",
};

/** The models stored on this device. */
export const STORAGE = {
  title: "On this device",
  total: (size: string, free: string) => (free ? `${size}, ${free} free` : size),
  removeAll: "Remove all models",
  confirm: (count: number) => `Remove ${count} models from this device? They can be downloaded again.`,
};

export const CHAT = {
  waits: "Will be sent when the model is ready",
  begin: "Start a story.",
  ask: "Ask something.",
  none: "No model is loaded.",
  continues: "This model has no chat template: it continues your text, it does not answer questions.",
  tiny: "Or try the tiny storyteller built into this page. It continues your text; it does not answer questions.",
  chooseChat: "Choose another",
  firstModel: (name: string) => `Chat with ${name}`,
  first: (size: string, memory: string, licence: string) => `A download of ${size}, once · ${memory} of GPU memory · ${licence}`,
  stories: ["Once upon a time", "One day, a little girl named Lily", "The dog was sad because"],
  questions: ["Explain what a GPU does, in three sentences.", "Write a haiku about the desert at night.", "What should I cook with eggs and spinach?"],
  notForText: (name: string) => `${name} cannot generate text.`,
  vectors: "It is an embedding model: it finds similar texts.",
  ranks: "It is a reranker: it ranks texts by relevance.",
  noTokenizer: "It has no tokenizer, so it cannot process text.",
  toEmbedding: "Open the Embedding tab",
  /** A question with passages of files, as the model gets it. */
  fromFiles: (passages: string, question: string) => `Passages from the attached files:\n\n${passages}\n\nQuestion: ${question}`,
  /** Sent to continue an answer that reached its token limit. */
  goOn: "Continue.",
  contextHint: "Applies from the next answer. Empty fields use the model's defaults.",
};

export const ANSWER = {
  title: "Answers",
  hint: "Applies from the next answer.",
  base: "This model continues text: it has no answers to shape.",
  text: "The model answers freely.",
  json: "Tokens that would break the format are masked, so a complete answer is always valid.",
  tools: "Let the model call functions of this page",
  toolsText: "Needs the format Text.",
  toolsUnknown: (name: string) => `${name} calls no functions, or in an unknown format.`,
  thinking: "The thought is folded above the answer; its tokens are counted apart.",
  thinkingUnknown: (name: string) => `The thinking of ${name} cannot be switched.`,
};

/** Attachments and dictation of the composer. */
export const COMPOSER = {
  attachText: "Attach text files",
  attachBoth: "Attach images or text files",
  attachments: "Attachments",
  attached: (count: number) => (count === 1 ? "1 file attached." : `${count} files attached.`),
  remove: (name: string) => `Remove ${name}`,
  noImages: (model: string) => `${model || "This model"} does not support images. Choose a vision model.`,
  tooLarge: (name: string) => `${name} is larger than 4 MB.`,
  notText: (name: string) => `${name} is not a text file.`,
  passages: "Passages used",
  dictate: "Dictate",
  stopDictation: "Stop dictating",
  dictationFailed: "Dictation could not be loaded. Check the connection.",
  needsSpeechModel: "Dictation needs a speech-to-text model. It is downloaded once; your audio stays on this device.",
  loadSpeechModel: (name: string, size: string) => `Load ${name} (${size})`,
  otherSpeechModel: "Choose another",
};

export const SETTINGS = {
  system: "System prompt",
  ownSystem: "System prompt of this conversation",
  ownSystemHint: "Replaces the one above. Leave it empty to use that one.",
};

/** Several answers to one question, and the context they use. */
export const ANSWERS = {
  several: "Answers to this question",
  previous: "Previous answer",
  next: "Next answer",
  position: (at: number, of: number) => `Answer ${at} of ${of}`,
  cut: "interrupted",
  read: "Read aloud",
  stopReading: "Stop reading",
  copyCode: "Copy code",
  copied: "Copied",
  context: "Context used",
  contextUsed: (tokens: string, all: string) => `${tokens} of ${all} tokens of context used`,
};

export const HISTORY = {
  title: "Conversations",
  none: "Your conversations are saved on this device.",
  fresh: "New conversation",
  open: "Open",
  remove: (name: string) => `Delete ${name}`,
  name: "Name of the conversation",
  exportAll: "Export all as JSON",
  exported: "Conversations exported.",
  import: "Import",
  imported: (count: number) => (count === 0 ? "All of these conversations are here already." : count === 1 ? "1 conversation imported." : `${count} conversations imported.`),
  notImported: "This file has no conversations of this page. Choose a file from “Export all as JSON”.",
  search: "Search conversations",
  noneFound: (query: string) => `No conversation contains “${query}”.`,
};

export const VISION = {
  images: "Images",
  open: "Add images",
  openBoth: "Add images or videos",
  frames: "Only the frames are processed, not the audio.",
  noVideos: (name: string) => `${name} accepts images, not videos.`,
  camera: "Camera",
  take: "Take a photo",
  photo: "Photo",
  noCamera: (why: string) => `The camera is not available: ${why}`,
  example: "Add an example image",
  exampleName: "House and tree",
  unnamed: "Image",
  processing: "Processing the image…",
  processed: (name: string) => `${name} processed.`,
  answered: "The answer is complete.",
  begin: "Drop, paste or open an image or a video and ask about it. You can refer to it later; it is processed only once.",
  defaultQuestion: "What does this image show?",
  defaultVideoQuestion: "What happens in this video?",
  conversation: "Conversation",
  fresh: "New conversation",
  encoded: (time: string) => `Images processed in ${time}.`,
  randomWeights: "This tiny demo model has random weights, so its answers are meaningless. Choose a real model above.",
  load: (name: string, size: string) => `Load ${name} (${size})`,
  bundledNote: "Built into this page, works offline. Random weights: its answers are meaningless.",
  noImages: (name: string) => `${name} does not support images.`,
  chooseVision: "Choose a vision model.",
};

export const EMBEDDING = {
  wrongTask: (name: string) => `${name} is not an embedding model.`,
  generates: "It generates text. Choose a model for sentence embeddings.",
  ranks: "It ranks documents for a query. Choose a model for sentence embeddings.",
  failed: "That did not work.",
  ask: "Ask in your own words.",
  none: "Add some documents first.",
  examples: "Example questions",
};

export const STT = {
  empty: "Choose a speech-to-text model: Moonshine for English, Whisper for 99 languages. It is downloaded once; your audio stays on this device.",
  wrongTask: (name: string) => `${name} is not a speech-to-text model.`,
  failed: "Transcription failed.",
  privacy: "Microphone audio never leaves this page.",
  begin: "Start the microphone, or open an audio file.",
  load: (name: string, size: string) => `Load ${name} (${size})`,
  sample: "Transcribe a sample recording",
  sampleHint: "John F. Kennedy's inaugural address, 1961: 11 seconds, public domain.",
  sampleFailed: "The sample recording could not be downloaded. Check the connection.",
  speak: "Speak now. A pause ends a sentence.",
};

export const TTS = {
  empty: "Choose a text-to-speech model such as Kani-TTS-2. The NanoCodec decoder that turns its codes into audio is loaded with it.",
  wrongTask: (name: string) => `${name} is not a text-to-speech model.`,
  codec: (licence: string) => `NVIDIA's NanoCodec by default (${licence}). Accepts a NeMo archive or safetensors.`,
  failed: "Speech synthesis failed.",
  placeholder: "Type something to say",
  begins: "Generating…",
};

/** Messages for visitors by error code; codes without an entry show the error's own message. */
export const ERRORS: Readonly<Record<string, string>> = {
  gated: "This model requires you to accept its terms: accept them on its page at Hugging Face, then enter an access token that can read it.",
  context_full: "The conversation is longer than the model's context. Start a new one, drop the oldest messages (Settings), or load the model with a longer context (Advanced).",
  message_too_long: "The text is longer than the model's context. Shorten it, or load the model with a longer context (Advanced).",
  out_of_memory: "Not enough GPU memory. Choose a smaller or 4-bit model, or a shorter context under Advanced.",
  device_lost: "The GPU was reset, or the browser took it away. Load the model again.",
  chat_template: "This model's chat template does not support this conversation.",
  worker: "The model's worker stopped. Load the model again.",
  assets: "Part of this page could not be downloaded. Check the connection and reload.",
  internal: "Something went wrong. Load the model again; if it happens again, include the details below in a bug report.",
  unloaded: "The model was unloaded. Choose it again.",
};
