/** All text of the page, in English. Other languages: languages/, applied by {@link translate}. */

/** A count with its noun. */
const count = (n: number, noun: string): string => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

export const APP = {
  claim: "Chat with language models running in your browser, on your own GPU.",
  privacy: "What you type never leaves your device.",
  runsOn: (gpu: string, software: boolean) => `Runs on ${gpu}${software ? ", without a GPU: everything is slow" : ""}.`,
  software: "No GPU found: running on the CPU, so everything is slow.",
  noScript: "This page runs language models in the browser and needs JavaScript.",
};

/** Tab names by URL fragment, in order. */
export const TAB_NAMES = { chat: "Chat", vision: "Vision", embedding: "Embedding", stt: "STT", tts: "TTS", train: "Train" } as const;

/** Links to the other tabs on the first screen. */
export const ALSO = {
  label: "Also in this demo",
  tabs: [
    { id: "vision", name: "Images", does: "Ask questions about an image." },
    { id: "embedding", name: "Search", does: "Search your notes by meaning." },
    { id: "stt", name: "Speech to text", does: "From the microphone or a file." },
    { id: "tts", name: "Text to speech", does: "Plays while it is generated." },
    { id: "train", name: "Training", does: "Teach a model your own text." },
  ],
} as const;

export const LINKS = [
  { label: "Docs", href: "./docs/" },
  { label: "Bench", href: "./bench/" },
  { label: "Device report", href: "./report/" },
  { label: "Source", href: "https://github.com/jerboa-ai/jerboa" },
  { label: "npm", href: "https://www.npmjs.com/package/jerboa" },
] as const;

/** Labels of the links. */
export const LINK_LABELS = { Docs: "Docs", Bench: "Bench", "Device report": "Device report", Source: "Source", npm: "npm" };

/** Words that several parts of the page use. */
export const UI = {
  main: "Main",
  skip: "Skip to the content",
  close: "Close",
  stop: "Stop",
  reset: "Reset",
  details: "Details",
  copy: "Copy",
  copiedSentence: "Copied.",
  copyBlocked: "Copying was blocked by the browser.",
  checkAgain: "Check again",
  theme: (name: string) => `Theme: ${name}`,
  themes: { system: "system", light: "light", dark: "dark" },
  language: "Language",
};

/** Shown without WebGPU, by reason. */
export const NO_WEBGPU = {
  insecure: {
    title: "WebGPU requires a secure connection.",
    why: "Browsers enable WebGPU only for pages from https or localhost. This page was loaded over http from another machine.",
    steps: ["Open the page as http://localhost on the machine that serves it, or serve it over https."],
  },
  without: {
    title: "This browser does not support WebGPU.",
    why: "Jerboa runs models on the GPU through WebGPU. These browsers support it:",
    steps: ["Chrome and Edge from version 113, on Android from 121; on Linux, where it is not on by default, with chrome://flags/#enable-unsafe-webgpu", "Safari from version 26, on the Mac, the iPhone and the iPad", "Firefox from version 141 on Windows, from 145 on the Mac"],
  },
  "no-adapter": {
    title: "WebGPU found no GPU here.",
    why: "The browser supports WebGPU but provides no GPU adapter. Common reasons:",
    steps: [
      "Hardware acceleration is switched off in the browser's settings: switch it on and restart the browser.",
      "The graphics driver is old or on the browser's blocklist: update it. In Chrome, chrome://gpu names the reason.",
      "On Linux, Chrome may need chrome://flags/#enable-unsafe-webgpu and a Vulkan driver.",
    ],
  },
};

/** Notes of suggested models; without an entry, a note is shown as it is. */
export const NOTES: Record<string, string> = {};

export const TOOLBAR = {
  label: "Model and conversation",
  copy: "Copy the conversation",
  share: "Share the conversation",
  answers: "Answers: format, tools, thinking",
  device: "This device",
  turns: "Turns",
  toEnd: "To the end of the conversation",
  context: (tokens: string) => `context ${tokens}`,
};

export const PICKER = {
  /** After the name of the current model, by a style. */
  inUse: "in use",
  title: "Choose a model",
  badUrl: "Not a valid URL.",
  badName: "Enter organization/model, or the URL of a folder or .gguf file.",
  noName: "Enter a model name.",
  hub: "From Hugging Face",
  load: "Load",
  suggestions: "Suggestions",
  placeholder: "organization/model or URL",
  ownFiles: "Files on this device",
  openFiles: "Open a model's files",
  openFolder: "Open a model's folder",
  filesHint: "config.json, tokenizer.json, tokenizer_config.json and the .safetensors files, all at once; or one .gguf file.",
  bits: (bits: number) => `${bits} bits`,
  speed: (tokens: string) => `about ${tokens} tokens/s here`,
};

export const ADVANCED = {
  title: "Advanced",
  token: "Access token",
  tokenHint: "For gated and private models. Not stored.",
  revision: "Revision",
  endpoint: "Endpoint",
  context: "Context length",
  contextDefault: "model default, up to 4,096",
  weights: "Weights",
  embeddings: "Embeddings",
  kv: "KV cache",
};

export const DEVICE = {
  model: "Model",
  querying: "Querying the device…",
  copy: "Copy the report",
};

export const LOAD = {
  begins: (name: string) => `Loading ${name}.`,
  done: (name: string) => `${name} is ready.`,
  cancelled: "Loading cancelled.",
  loading: "Loading",
  of: (done: string, all: string) => `${done} of ${all}`,
  left: (time: string) => `${time} left`,
  fromDevice: "from this device",
  starting: "Starting the engine (1.4 MB, once)",
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
  gated: "you must accept its terms first",
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

/** Models chosen for download. */
export const DOWNLOADS = {
  title: "Downloads",
  count: (count: number) => (count === 1 ? "1 download" : `${count} downloads`),
  add: (name: string) => `Download ${name} for later`,
  added: (name: string) => `${name} was added to the downloads.`,
  waiting: "Waiting",
  cancel: (name: string) => `Cancel the download of ${name}`,
  cancelled: (name: string) => `The download of ${name} was cancelled.`,
  done: (name: string) => `${name} was downloaded.`,
  failed: (name: string) => `${name} could not be downloaded.`,
  hint: "One at a time. Each model is loaded once to check it, then unloaded.",
};

/** The models stored on this device. */
export const STORAGE = {
  title: "On this device",
  total: (size: string, free: string) => (free ? `${size}, ${free} free` : size),
  removeAll: "Remove all models",
  removed: (name: string) => `${name} was removed.`,
  remove: (name: string) => `Remove ${name} from this device`,
  incomplete: "Incomplete; the download will resume.",
  confirm: (count: number) => `Remove ${count} models from this device? They can be downloaded again.`,
};

export const CHAT = {
  bundledNote: "Built into this page, works offline. Continues short children's stories.",
  examples: "Examples",
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

/** Turns of a conversation. */
export const MESSAGE = {
  continued: "Continued text",
  answer: "Answer",
  waiting: "Processing the prompt",
  copy: "Copy this answer",
  again: "Regenerate",
  branch: "Branch",
  own: "Your message",
  sendAgain: "Send again",
  you: "You",
  edit: "Edit this message",
  editAnswer: "Edit this answer",
  save: "Save",
  thinking: "Thinking…",
  thoughts: "Thoughts",
  called: "Called",
  arguments: "Arguments",
  result: "Result",
  stopped: "stopped",
  limit: "reached the limit",
  tokens: (n: number) => count(n, "token"),
  rate: (perSecond: string) => `${perSecond} tokens/s`,
  ofThinking: (tokens: string) => `${tokens} of them thinking`,
  firstAfter: (time: string) => `first token after ${time}`,
  prompt: (tokens: string, cached: string) => `prompt ${tokens}${cached ? `, ${cached} cached` : ""}`,
  stoppedSentence: "Stopped.",
  complete: (tokens: number) => `The answer is complete, ${count(tokens, "token")}.`,
};

export const ANSWER = {
  format: "Format",
  formatText: "Text",
  formatJson: "Any JSON object",
  formatSchema: "JSON of a schema",
  schema: "JSON schema",
  notObject: "The schema must be a JSON object.",
  notJson: (why: string) => `Not JSON: ${why}`,
  thinkingLabel: "Thinking",
  thinkingDefault: "Model's default",
  thinkingOn: "Think first",
  thinkingOff: "Answer directly",
  title: "Answers",
  hint: "Applies from the next answer.",
  base: "This model only continues text: it gives no answers to format.",
  text: "The model answers freely.",
  json: "Tokens that would break the format are masked, so a complete answer is always valid.",
  tools: "Let the model call functions of this page",
  toolsText: "Requires the format Text.",
  toolsUnknown: (name: string) => `${name} does not support functions, or calls them in an unknown format.`,
  thinking: "Thoughts are collapsed above the answer; their tokens are counted separately.",
  thinkingUnknown: (name: string) => `Thinking cannot be turned on or off for ${name}.`,
  budget: "Thinking limit in tokens",
  budgetNone: "no limit",
  budgetHint: "After this many tokens, thinking ends and the answer follows.",
};

/** Attachments and dictation of the composer. */
export const COMPOSER = {
  send: "Send",
  continue: "Continue",
  message: "Message",
  text: "Text to continue",
  write: "Write a message…",
  startWriting: "Start writing…",
  stopHint: "Stop (Esc)",
  attachText: "Attach text files",
  attachBoth: "Attach images or text files",
  attachments: "Attachments",
  attached: (count: number) => (count === 1 ? "1 file attached." : `${count} files attached.`),
  remove: (name: string) => `Remove ${name}`,
  noImages: (model: string) => `${model || "This model"} does not support images. Choose a vision model.`,
  tooLarge: (name: string) => `${name} is larger than 4 MB.`,
  notText: (name: string) => `${name} is not a text file.`,
  unreadable: (name: string) => `${name} cannot be read. Choose files, not a folder.`,
  badSchema: (why: string) => `The JSON schema cannot be used. Correct it under “Answers”, or choose another format there. ${why}`,
  passages: "Passages used",
  dictate: "Dictate",
  stopDictation: "Stop dictating",
  dictationFailed: "Dictation could not be loaded. Check the connection.",
  needsSpeechModel: "Dictation needs a speech-to-text model. It is downloaded once; your audio stays on this device.",
  loadSpeechModel: (name: string, size: string) => `Load ${name} (${size})`,
  otherSpeechModel: "Choose another",
};

export const SETTINGS = {
  title: "Settings",
  temperature: "Temperature",
  temperatureHint: "0 always selects the most likely token",
  maxTokens: "Max tokens",
  maxTokensHint: "per answer",
  topPHint: "sample from the top tokens up to this probability",
  topKHint: "sample from the k most likely tokens",
  minPHint: "drop tokens below this fraction of the highest probability",
  seed: "Seed",
  seedHint: "same seed, same answer",
  random: "random",
  default: "default",
  overflow: "When the context is full",
  dropTurns: "drop the oldest turns",
  dropText: "drop the oldest text",
  stopWithMessage: "stop with a message",
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
  turns: (n: number) => `${n} turns`,
  title: "Conversations",
  none: "Up to 50 conversations are saved on this device. After that, the oldest are deleted.",
  evicted: (names: string) => `Storage for conversations was full, so the oldest were deleted: ${names}. To back up the others, use “Export all as JSON”.`,
  confirm: (name: string) => `Delete “${name}”? This cannot be undone.`,
  fresh: "New conversation",
  open: "Open",
  share: (name: string) => `Share ${name}`,
  shareHint: "Share or save as a page, without a server",
  shared: "Conversation saved as an HTML file.",
  notShared: "The conversation cannot be shared. Check the connection.",
  answeredBy: (model: string) => `Answered by ${model}, in the browser`,
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
  question: "Question",
  ask: "Ask",
  pixels: (width: number, height: number) => `${width} × ${height} pixels`,
  tiles: (n: number) => count(n, "tile"),
  encodedIn: (time: string) => `encoded in ${time}`,
  alreadyEncoded: "already encoded",
  grid: (rows: number, columns: number) => `Read as ${rows} rows of ${columns} tokens`,
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
  randomWeights: "This tiny demo model has random weights, so its answers are meaningless. Choose a real model.",
  load: (name: string, size: string) => `Load ${name} (${size})`,
  bundledNote: "Built into this page, works offline. Random weights: its answers are meaningless.",
  noImages: (name: string) => `${name} does not support images.`,
  chooseVision: "Choose a vision model.",
};

export const EMBEDDING = {
  bundledNote: "Built into this page, works offline. Matches shared words, not meaning.",
  plain: "The small built-in encoder finds texts that share words. all-MiniLM-L6-v2 searches by meaning:",
  download: "download it (91 MB)",
  opening: "Reading the documents",
  reading: "Reading",
  removing: "Removing",
  searching: "Searching",
  progress: (done: number, total: number) => `${done} of ${total} passages`,
  added: (n: number) => `${count(n, "passage")} added.`,
  found: (n: number) => `${count(n, "passage")} found.`,
  passages: (n: number) => count(n, "passage"),
  dimensions: (n: number) => `${n} dimensions`,
  upTo: (tokens: number) => `texts up to ${tokens} tokens`,
  map: "Map",
  points: (n: number) => `${n} passages as points; nearby points are similar.`,
  mapHint: (question: boolean) => `Each point is a passage, placed by the first two principal components of its vector${question ? "; the cross marks your question" : ""}.`,
  placeholder: "Ask your notes…",
  nearest: (shown: number, all: number, time: string) => `${shown < all ? `The nearest ${count(shown, "passage")} of ${all.toLocaleString("en")}` : "All passages, nearest first"}, in ${time}`,
  toChat: "Ask about these in Chat",
  passagesFor: (query: string) => `Passages for: ${query}`,
  cosine: "Cosine similarity",
  more: (n: number) => `Show ${n} more`,
  /** A question with passages of the notes, as the start of a chat. */
  fromNotes: (notes: string, question: string) => `Answer from these notes:\n\n${notes}\n\nQuestion: ${question}`,
  confirm: (n: number) => `Remove ${count(n, "document")}? This cannot be undone.`,
  documents: "Documents",
  removeAll: "Remove all",
  openFiles: "Drop or open text files",
  addExamples: (n: number) => `Add ${n} example notes`,
  textLabel: "Text of a document",
  paste: "Paste text…",
  addText: "Add this text",
  wrongTask: (name: string) => `${name} is not an embedding model.`,
  generates: "It generates text. Choose a model for sentence embeddings.",
  ranks: "It ranks documents for a query. Choose a model for sentence embeddings.",
  failed: "The notes could not be processed.",
  ask: "Ask in your own words.",
  none: "Add some documents first.",
  examples: "Example questions",
};

/** Messages for microphone errors, by exception name. */
export const MICROPHONE = {
  NotAllowedError: "Microphone access was denied. Allow it for this page in the address bar or the browser's settings, then try again.",
  NotFoundError: "No microphone found. Connect one, or open a file.",
  NotReadableError: "The microphone is not responding. Close other programs that use it, then try again.",
  unavailable: "The microphone is not available: this browser does not support it, or the page was not loaded over https.",
};

export const STT = {
  title: "Speech to text",
  microphone: "Microphone",
  listen: "Listen",
  stop: "Stop listening",
  listening: "Listening.",
  loudness: "Loudness",
  language: "Language",
  languages: (n: number) => `${n} languages`,
  detect: "Detect it",
  file: "File",
  open: "Drop or open an audio file",
  transcribing: "Transcribing",
  transcript: "Transcript",
  copy: "Copy the transcript",
  clear: "Clear",
  segments: "Segments",
  transcribed: (name: string) => `${name} was transcribed.`,
  nothing: (name: string) => `No speech was recognized in ${name}.`,
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
  title: "Text to speech",
  codecLabel: "Codec",
  text: "Text",
  textLabel: "Text to speak",
  voice: "Voice (optional)",
  voiceHint: "Name or language",
  speak: "Speak",
  audio: "Audio",
  waveform: (seconds: string) => `Waveform of ${seconds} seconds`,
  again: "Play again",
  made: (seconds: string, first: string, all: string) => `${seconds} s of audio, first after ${first}${all ? `, all in ${all}` : "…"}`,
  finished: "Speech finished.",
  nothing: "No audio was generated.",
  empty: "Choose a text-to-speech model such as Kani-TTS-2. The NanoCodec decoder that turns its codes into audio is loaded with it.",
  wrongTask: (name: string) => `${name} is not a text-to-speech model.`,
  codec: (licence: string) => `NVIDIA's NanoCodec by default (${licence}). Accepts a NeMo archive or safetensors.`,
  failed: "Speech synthesis failed.",
  placeholder: "Type something to say",
  begins: "Generating…",
};

export const TRAIN = {
  title: "Train a LoRA adapter",
  intro: "Trains a small adapter on this text, on your GPU. The model's own weights stay unchanged, and the text never leaves your device.",
  data: "Training data",
  text: "Text to learn",
  open: "Open a .txt or .jsonl file",
  settings: "Settings",
  epochs: "Passes over the text",
  rank: "Rank",
  learningRate: "Learning rate",
  maxLength: "Tokens per sequence",
  start: "Start training",
  begin: "Start the training to see the loss fall. The example text takes some seconds on a GPU.",
  opening: "Opening the training module",
  loading: "Loading the model's weights",
  preparing: "Preparing the GPU",
  losses: "Loss",
  progress: (step: number, steps: number) => `Step ${step} of ${steps}`,
  steps: (steps: number) => count(steps, "step"),
  trainLoss: (loss: string) => `Training loss ${loss}`,
  evaluationLoss: (loss: string) => `Loss on held-out text ${loss}`,
  curve: (first: string, last: string, step: number) => `Loss from ${first} to ${last} at step ${step}`,
  takes: (size: string, sequences: number) => `${size} of GPU memory, ${count(sequences, "sequence")}`,
  samples: "Before and after",
  before: "Before",
  after: "After",
  adapter: "Adapter",
  adapterHint: (size: string) => `${size}, in the format of peft, which other tools can load.`,
  useInChat: "Use in Chat",
  download: (file: string) => `Save ${file}`,
  end: "Answer without the adapter",
  done: (steps: number) => `The training is complete after ${count(steps, "step")}.`,
  failed: "The training failed.",
  wrongTask: (name: string) => `${name} does not generate text.`,
  chooseText: "Choose a language model to train.",
  badLine: (line: number) => `Line ${line} of the file is neither {"text": …} nor {"messages": […]}.`,
  noAnswer: (line: number) => `Line ${line} of the file has nothing to learn: a conversation needs a user message, then an assistant message.`,
  badWhole: (field: string, min: number) => `“${field}” must be a whole number of at least ${min}.`,
  badPositive: (field: string) => `“${field}” must be a number above 0.`,
};

/** Messages for visitors by error code; codes without an entry show the error's own message. */
export const ERRORS: Readonly<Record<string, string>> = {
  gated: "This model requires you to accept its terms: accept them on its page at Hugging Face, then enter an access token that can read it.",
  network: "The server could not be reached, or the connection was lost. Check the connection, then try again.",
  context_full: "The conversation is longer than the model's context. Start a new one, drop the oldest messages (Settings), or load the model with a longer context (Advanced).",
  message_too_long: "The text is longer than the model's context. Shorten it, or load the model with a longer context (Advanced).",
  out_of_memory: "Not enough GPU memory. Choose a smaller or 4-bit model, or a shorter context under Advanced.",
  training_memory: "Not enough GPU memory for this training. Use fewer tokens per sequence or a smaller rank, or choose a smaller or 4-bit model.",
  device_lost: "The GPU was reset, or the browser took it away. Load the model again.",
  chat_template: "This model's chat template does not support this conversation. Remove the system prompt, turn off functions, or choose another model.",
  training_template: "This model's chat template does not support a conversation of the training data. Remove its system messages, or choose another model.",
  worker: "The model's worker stopped. Load the model again.",
  assets: "Part of this page could not be downloaded. Check the connection and reload.",
  internal: "Something went wrong. Load the model again; if it happens again, include the details below in a bug report.",
  unloaded: "The model was unloaded. Choose it again.",
};

const TABLES = { APP, TAB_NAMES, ALSO, LINK_LABELS, UI, NO_WEBGPU, NOTES, TOOLBAR, PICKER, ADVANCED, DEVICE, LOAD, HUB, IN_USE, DOWNLOADS, STORAGE, CHAT, MESSAGE, ANSWER, COMPOSER, SETTINGS, ANSWERS, HISTORY, VISION, EMBEDDING, MICROPHONE, STT, TTS, TRAIN, ERRORS };

/** The type of a table in any language. */
type Translated<T> = T extends string ? string : T extends (...given: infer A) => string ? (...given: A) => string : { readonly [K in keyof T]: Translated<T[K]> };

/** All strings in one language. */
export type Strings = Translated<typeof TABLES>;

/** The English strings, to return to them. */
export const ENGLISH: Strings = Object.fromEntries(Object.entries(TABLES).map(([name, table]) => [name, { ...table }])) as unknown as Strings;

/** Replaces all strings. Whatever is rendered afterwards has the new ones. */
export function translate(strings: Strings): void {
  for (const [name, table] of Object.entries(TABLES) as [keyof Strings, Record<string, unknown>][]) {
    // Notes need no entry.
    for (const key of Object.keys(table)) if (!Object.hasOwn(strings[name], key)) delete table[key];
    Object.assign(table, strings[name]);
  }
}
