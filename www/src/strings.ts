/** What the page says, in one place. Knows no component. */

export const APP = {
  claim: "Chat with language models that run in this page, on your own GPU.",
  privacy: "Nothing that you write leaves this device.",
  runsOn: (gpu: string, software: boolean) => `Runs on ${gpu}${software ? ", a software renderer: everything works, slowly" : ""}.`,
  software: "This browser computes on the processor (a software renderer): everything works, slowly.",
  noScript: "This page runs language models in the browser and needs JavaScript.",
};

/** The tabs, in their order, by their places in the address. */
export const TAB_NAMES = { chat: "Chat", vision: "Vision", embedding: "Embedding", stt: "STT", tts: "TTS" } as const;

/** What the other tabs are for, on the first screen. */
export const ALSO = {
  label: "More that runs here",
  tabs: [
    { id: "vision", name: "Pictures", does: "Ask about what is in them." },
    { id: "embedding", name: "Search", does: "Your notes, by meaning." },
    { id: "stt", name: "Speech to text", does: "A microphone or any file." },
    { id: "tts", name: "Text to speech", does: "Heard while it is made." },
  ],
} as const;

export const LINKS = [
  { label: "Docs", href: "https://github.com/jerboa-ai/jerboa/blob/main/pkg-template/README.md" },
  { label: "Bench", href: "./bench/" },
  { label: "Device report", href: "./report/" },
  { label: "Source", href: "https://github.com/jerboa-ai/jerboa" },
  { label: "npm", href: "https://www.npmjs.com/package/jerboa" },
] as const;

export const LOAD = {
  starting: "Starting the engine (1.3 MB, once)",
  waiting: "Waiting for another tab that loads the same model",
  config: "Reading the configuration",
  tokenizer: "Reading the tokenizer",
  download: "Downloading",
  cache: "Reading from this device",
  compile: "Preparing the GPU",
  ready: "Ready",
  cancel: "Cancel",
  failed: (name: string) => `${name} could not be loaded.`,
  kept: (name: string) => `${name} is still here.`,
  again: "Try again",
  token: "Enter a token",
  other: "Choose another model",
  dismiss: "Dismiss",
  tooLarge: (room: string) => `Likely too large: models have about ${room} here.`,
  kernels: (done: number, all: number) => `${done} of ${all} kernels`,
};

export const CHAT = {
  waits: "Sent as soon as the model is ready",
  begin: "Begin a text.",
  ask: "Ask something.",
  none: "No model is loaded.",
  continues: "This model has no chat template: it does not answer, it continues the text that you begin.",
  tiny: "Or try the tiny story teller of this page. It has no chat template: it does not answer, it continues what you begin.",
  chooseChat: "Choose another",
  firstModel: (name: string) => `Chat with ${name}`,
  first: (size: string, memory: string, licence: string) => `A download of ${size}, once · ${memory} of GPU memory · ${licence}`,
  stories: ["Once upon a time", "One day, a little girl named Lily", "The dog was sad because"],
  questions: ["Explain what a GPU does, in three sentences.", "Write a haiku about the desert at night.", "What should I cook with eggs and spinach?"],
  notForText: (name: string) => `${name} does not write.`,
  vectors: "It is an embedding model: it finds texts that are alike.",
  ranks: "It is a reranker: it orders texts by how well they answer a question.",
  noTokenizer: "Its files hold no tokenizer, so it cannot read text.",
  toEmbedding: "Open the Embedding tab",
  /** What a chat model is told to go on with an answer that was cut. */
  goOn: "Continue.",
  contextHint: "Changes count from the next answer on. What is empty follows the model's own configuration.",
};

export const HISTORY = {
  title: "Conversations",
  none: "Conversations are kept on this device, under their first words.",
  fresh: "New conversation",
  open: "Open",
  remove: (name: string) => `Delete ${name}`,
  name: "Name of the conversation",
  exportAll: "Export all as JSON",
};

export const VISION = {
  pictures: "Pictures",
  open: "Add pictures",
  openBoth: "Add pictures or videos",
  frames: "Its frames are read with the question, its sound is not.",
  noVideos: (name: string) => `${name} takes pictures, no videos.`,
  camera: "Camera",
  take: "Take the picture",
  photo: "Photo",
  noCamera: (why: string) => `No camera can be used here: ${why}`,
  example: "Add an example picture",
  exampleName: "House and tree",
  unnamed: "Picture",
  looking: "The model looks at it…",
  looked: (name: string) => `${name} is read.`,
  answered: "The answer is complete.",
  begin: "Drop, paste or open a picture or a video and ask about it. Later questions can name it too: it is not read again.",
  usual: "What does this picture show?",
  usualVideo: "What happens in this video?",
  conversation: "Conversation",
  fresh: "New conversation",
  encoded: (time: string) => `Pictures were encoded in ${time} before.`,
  noise: "This small model of random numbers comes with the page and shows how pictures run. Its answers are noise. Choose a real one above.",
  bundledNote: "Comes with this page and works offline. Random numbers: its answers are noise.",
  blind: (name: string) => `${name} takes no pictures.`,
  blindWhy: "It reads text alone. Choose a model that sees.",
};

export const EMBEDDING = {
  wrongTask: (name: string) => `${name} is not an embedding model.`,
  generates: "It generates text. Choose a model for sentence embeddings.",
  ranks: "It ranks texts for a question. Choose a model for sentence embeddings.",
  failed: "That did not work.",
};

export const STT = {
  empty: "Choose a model that hears: Moonshine for English, Whisper for a hundred languages. It is downloaded once; what you say and what you open stay on this device.",
  wrongTask: (name: string) => `${name} does not hear.`,
  failed: "That did not work.",
  privacy: "What the microphone hears does not leave this page.",
  begin: "Listen to the microphone, or open a sound file.",
  speak: "Speak; a pause ends a sentence.",
};

export const TTS = {
  empty: "Choose a model that speaks, such as Kani-TTS-2, and beside it the decoder of NanoCodec, which makes sound of its codes.",
  wrongTask: (name: string) => `${name} does not speak.`,
  codec: "The decoder of NanoCodec as safetensors with its config.json. It is needed before the model is loaded.",
  failed: "That did not work.",
  placeholder: "What shall be said?",
  begins: "The first sound is on its way…",
};

/** What an error means to somebody who did not write the page. Errors without an entry speak for themselves. */
export const ERRORS: Readonly<Record<string, string>> = {
  gated: "This model asks for consent: accept its terms on its page at Hugging Face, then enter an access token that can read it.",
  context_full: "The conversation is longer than what the model can hold. Start a new one, let the oldest turns be forgotten (Settings), or load the model with a longer context (Advanced).",
  out_of_memory: "The GPU has too little memory for this. Choose a smaller model or one of 4 bits, or a shorter context under Advanced.",
  device_lost: "The GPU was reset, or the browser took it away. Load the model again.",
  chat_template: "This model was not made for conversations in this form.",
  worker: "The part of the page that runs the model ended. Load the model again.",
  assets: "A part of this page could not be fetched. Check the connection and reload.",
  internal: "Something went wrong inside the page. Load the model again; if it stays, the details below help whoever mends it.",
  unloaded: "The model is gone. Choose it again.",
};
