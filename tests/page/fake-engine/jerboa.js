/** A fake of the wasm module: a model that echoes words. Replaces the engine in the facade's own tests and is never shipped. */

import { example } from "./grammar.js";

export const seen = { init: 0, loads: [], requests: [], ends: [], groups: [], tests: [], deleted: [], freed: 0, sessions: 0, looks: 0, logits: [], prefills: [], adapters: [] };

export default async function init(input) {
  seen.init++;
  seen.input = input;
  if (String(input?.module_or_path).includes("missing")) throw new TypeError("HTTP status code is not ok");
}

const pause = (ms = 1) => new Promise((resolve) => setTimeout(resolve, ms));
const fail = (code, message, advice) => {
  throw { name: "JerboaError", code, message, advice };
};

/** A killed page: never resolves. Announces itself on the channel of the test that kills pages. */
const killed = () => {
  const channel = new BroadcastChannel("killed");
  channel.postMessage(true);
  channel.close();
  return new Promise(() => {});
};

/** Device losses to simulate: the call, and the number of words before it. A lost device stays lost. */
export const losses = [];
const losing = (call) => losses.findIndex((loss) => loss.call === call);

/** The events of an answer with `<think>…</think>`, cut to a budget of words, and Qwen's tool calls, as the engine splits them. */
function answerEvents(answer, budget) {
  const events = [];
  let calls = 0;
  const words = (text, type, max) => {
    for (const word of (text.match(/\s*\S+(?:\s+$)?/g) ?? []).slice(0, max)) events.push({ text: type === "content" ? word : "", parts: [{ type, text: word }] });
  };
  for (const piece of answer.split(/(<think>.*?<\/think>|<tool_call>\s*\{.*?\}\s*<\/tool_call>)/s)) {
    if (piece.startsWith("<think>")) words(piece.slice("<think>".length, -"</think>".length), "reasoning", budget);
    else if (/^<tool_call>\s*\{/.test(piece)) {
      const { name, arguments: given } = JSON.parse(piece.slice("<tool_call>".length, -"</tool_call>".length));
      const text = JSON.stringify(given);
      const index = calls++;
      events.push({ text: "", parts: [{ type: "toolCall", index, id: `call_${index}`, name }] });
      events.push({ text: "", parts: [{ type: "arguments", index, text: text.slice(0, 5) }] });
      events.push({ text: "", parts: [{ type: "arguments", index, text: text.slice(5) }, { type: "toolCallEnd", index }] });
    } else words(piece, "content");
  }
  return events;
}

export class Engine {
  static async load(options, onProgress) {
    seen.loads.push(options);
    if (options.mustFit && String(options.model).includes("large")) fail("out_of_memory", "It needs 9 GB; about 1 MB is available.");
    if (losing("load") >= 0) fail("device_lost", `the GPU device was lost (${losses.splice(losing("load"), 1)[0].call})`);
    // Loads of this model never end, except with a small context.
    if (options.model === "kills/pages" && options.maxContext !== 1024) await killed();
    if (options.model === "no/network") fail("network", "downloading no/network failed: offline. Load the model again to resume the download.");
    if (options.model === "no/such") fail("not_found", "no/such was not found. Check the name.");
    if (String(options.model).includes("gated")) fail("gated", "it is gated (HTTP 401). Pass a token: loadModel(name, { token }).", { about: "token", text: "loadModel(name, { token })" });
    // Loads of these end on request, or never.
    const late = String(options.model).includes("late");
    const endless = late || String(options.model).includes("endless");
    const channel = new BroadcastChannel("late");
    let told = false;
    channel.onmessage = () => (told = late);
    try {
      for (let i = 1; (endless && !told) || i <= 3; i++) {
        onProgress({ phase: "weights", file: "model.safetensors", loaded: i, total: 3, progress: Math.min(i / 4, 0.9), bytesPerSecond: 1, secondsLeft: 3 - i, fromCache: false });
        await pause(i > 3 ? 100 : 1);
        if (options.signal.aborted) fail("aborted", "loading was aborted");
      }
    } finally {
      channel.close();
    }
    onProgress({ phase: "ready", loaded: 3, total: 3, progress: 1, bytesPerSecond: 1, fromCache: false });
    return new Engine(options);
  }

  /** A session shares its model's device. */
  constructor(options, device = { lost: false }) {
    this.options = options;
    /** Running generations. */
    this.busy = 0;
    this.device = device;
  }

  /** Throws if the device is lost by now. */
  alive(call, words = 0) {
    const at = losses.findIndex((loss) => loss.call === call && (loss.after ?? 0) <= words);
    if (at >= 0) losses.splice(at, 1);
    this.device.lost ||= at >= 0;
    if (this.device.lost) {
      this.busy = 0;
      fail("device_lost", `the GPU device was lost (${call})`);
    }
  }

  persisted() {
    return Promise.resolve([]);
  }

  info() {
    const { model } = this.options;
    const name = typeof model === "string" ? model : "files";
    const task = /embed|encoder|MiniLM|clip/.test(name) ? "embed" : name.includes("rank") ? "rerank" : /whisper|moonshine/.test(name) ? "transcribe" : /kani/.test(name) ? "speak" : "generate";
    const sound = { transcribe: { capabilities: ["transcribe", "timestamps"], asr: { seconds: 30, languages: ["de", "en"] } }, speak: { capabilities: ["speak"], tts: { sampleRate: 22050, framesPerSecond: 12.5, speaker: 3 } } };
    const device = { vendor: "double", architecture: "", description: "", f16: true, subgroups: true, software: false };
    const sizes = { parameters: 26e4, bytes: { weights: 1.1e6, kv: 2e5, activations: 1e5 }, weights: "f32", device, ...(task === "embed" ? { dimensions: 3 } : {}) };
    const capabilities = /seeing|vision|VLM|clip/.test(name) ? ["text", "image", "video"] : ["text"];
    const answers = { samplesByDefault: !name.includes("greedy"), toolCalls: name.includes("unknown") ? null : "hermes", reasoning: /thinking|Qwen3-1\.7B/.test(name), reasoningControls: name.includes("thinking") ? [name.includes("effort") ? "reasoning_effort" : "enable_thinking"] : [] };
    return { model: name, architecture: "Double", task, contextLength: 64, vocabSize: 9, warnings: [], hasChatTemplate: !/base|stories/.test(name), fillInTheMiddle: /coder/i.test(name), capabilities, ...(task === "generate" ? answers : {}), ...sizes, ...sound[task] };
  }

  /** One token per character, and one for `<sep>` when special tokens are parsed. */
  tokenize(text, special, parse) {
    const parts = parse ? text.split(/(<sep>)/) : [text];
    const ids = parts.flatMap((part) => (part === "<sep>" && parse ? [9] : [...part].map((c) => c.codePointAt(0))));
    return Uint32Array.from(special ? [1, ...ids] : ids);
  }

  tokenizeContinuation(text) {
    return this.tokenize(text, false, false);
  }

  /** Roles and tools are special tokens: one each. */
  tokenizeChat(messages, options) {
    const opened = options.addGenerationPrompt ?? !options.continueFinalMessage;
    return Uint32Array.from([...(options.tools ?? []).map(() => 3), ...messages.flatMap((m) => [2, ...this.tokenize(m.content, false, false)]), ...(opened ? [2] : [])]);
  }

  detokenize(ids) {
    return String.fromCodePoint(...ids);
  }

  renderChat(messages, options) {
    const tools = options.tools && !this.options.model.includes("toolless") ? `tools: ${options.tools.length}\n` : "";
    return tools + messages.map((m) => `${m.role}: ${m.content}\n`).join("") + ((options.addGenerationPrompt ?? !options.continueFinalMessage) ? "assistant: " : "");
  }

  /** One token a byte, and one that ends the text. */
  answerSpelling() {
    return JSON.stringify({ spelling: { format: "fake" }, frame: { open: [], close: [] } });
  }

  vocabularyBytes() {
    return { bytes: Uint8Array.from({ length: 128 }, (_, byte) => byte), lengths: Uint32Array.from({ length: 129 }, (_, id) => Number(id < 128)), endIds: Uint32Array.of(128) };
  }

  /** An answer under a grammar is the shortest one. */
  async generate(request, onEvent, seed, nextMask, processLogits) {
    if (this.busy && this instanceof SessionDouble) fail("internal", "two generations at once in a session");
    this.busy++;
    const { signal, ...plain } = request;
    seen.requests.push(plain);
    const last = request.messages?.at(-1);
    const [tool] = request.tools ?? [];
    // A question to a model with tools is answered by a call, where the model's name is one that calls.
    const call = last?.role === "user" && tool && this.options.model.includes("Qwen3") ? `<tool_call>${JSON.stringify({ name: tool.function.name, arguments: { city: "Oslo" } })}</tool_call>` : undefined;
    nextMask?.(undefined);
    const limited = nextMask && !call ? example.text : undefined;
    const text = limited ?? String(call ?? request.prompt ?? last?.content ?? request.ids);
    const parsed = request.messages && (request.tools || text.includes("<think>"));
    const words = parsed ? answerEvents(text, request.reasoningBudget) : (text.match(/\s*\S+/g) ?? []).map((word) => ({ text: word }));
    const done = [];
    let finishReason = "stop";
    for (const word of words) {
      await pause();
      this.alive("generate", done.length);
      if (signal.aborted) {
        finishReason = "abort";
        break;
      }
      if (done.length === request.maxTokens) {
        finishReason = "length";
        break;
      }
      const changed = await processLogits?.(Float32Array.from({ length: 9 }, (_, id) => id), Uint32Array.from(done, (_, i) => i + 1));
      if (changed === false) {
        if (signal.aborted) finishReason = "abort";
        break;
      }
      if (changed) seen.logits.push([...changed]);
      done.push(word);
      // Parts of two characters have the same text.
      const top = word.text === "\uFFFD" ? [{ token: word.text, id: 7, logprob: -0.1, bytes: [0xc3] }, { token: word.text, id: 8, logprob: -0.2, bytes: [0xe2, 0x82] }] : [{ token: word.text, id: 7, logprob: -0.1, bytes: null }];
      onEvent({ ...word, ids: [done.length], ...(request.logprobs ? { logprobs: [{ ...top[0], top }] } : {}) });
    }
    this.busy--;
    const parts = done.flatMap((word) => word.parts ?? []);
    if (finishReason === "stop" && parts.some(({ type }) => type === "toolCall")) finishReason = "tool_calls";
    seen.ends.push(finishReason);
    const ids = done.map((_, i) => i + 1);
    const drafts = request.speculation === "prompt-lookup" ? { draftedTokens: 7, acceptedTokens: 3, batchedTokens: 0, readbacks: 0 } : { draftedTokens: 0, acceptedTokens: 0, batchedTokens: 0, readbacks: 0 };
    const reasoningTokens = done.filter((word) => word.parts?.some(({ type }) => type === "reasoning")).length;
    return { text: done.map(({ text }) => text).join(""), reasoningTokens, ids, finishReason, promptTokens: 5, cachedTokens: 2, completionTokens: ids.length, ...drafts, prefillMs: 3, decodeMs: 4 };
  }

  /** The logits are largest for the next id. */
  async prefill(ids, { signal }) {
    await pause();
    if (signal.aborted) fail("aborted", "prefill was aborted");
    if (ids.length > 64) fail("request", "ids: the sequence has more than 64 tokens.");
    seen.prefills.push([...ids]);
    return Float32Array.from({ length: 9 }, (_, id) => (id === (ids.at(-1) + 1) % 9 ? 1 : 0));
  }

  /** The tokens of the last prefill, 4 bytes each. */
  async saveState(write) {
    const bytes = new Uint8Array(Uint32Array.from(seen.prefills.at(-1) ?? [1]).buffer);
    for (let at = 0; at < bytes.length; at += 8) await write(bytes.slice(at, at + 8));
    return bytes.length;
  }

  async restoreState(size, read) {
    await pause();
    if (size % 4) fail("request", "session.restore: these bytes are no saved session.");
    return new Uint32Array((await read(0, size)).buffer);
  }

  async loadAdapter(name, options, onProgress) {
    await pause();
    onProgress({ phase: "weights" });
    if (options.model === "no/such") fail("not_found", "no/such was not found. Check the name.");
    seen.adapters.push([name, options.model]);
  }

  unloadAdapter(name) {
    seen.adapters.push([name]);
  }

  createSession(adapter) {
    if (adapter !== undefined) seen.adapters.push(["session", adapter]);
    return new SessionDouble(this.options, this.device);
  }

  /** Accepts all images and ignores their content. */
  imageUpload() {
    return { push() {}, free() {} };
  }

  videoUpload() {
    return this.imageUpload();
  }

  frameTimes(seconds) {
    return Float64Array.from([0, seconds]);
  }

  encodeImage() {
    return { id: 1, tokens: 4, grids: [[2, 2]], tiles: [[1, 1]], ms: 1 };
  }

  async imageEmbeddings() {
    return new Float32Array(8);
  }

  hasImage() {
    return true;
  }

  async embed(texts, options, onProgress) {
    this.alive("embed");
    onProgress({ done: texts.length, total: texts.length });
    if (options.truncateDim > 3) fail("request", `truncateDim: ${options.truncateDim} is out of range: embeddings have 3 dimensions. Use 1 to 3.`);
    if (!texts.every((t) => typeof t === "string" || t instanceof Uint32Array)) fail("request", "input: must be an array of strings or token ids");
    return texts.map((t) => Float32Array.from([t.length, 1, 0].slice(0, options.truncateDim ?? 3)));
  }

  async embedImage(imageId, options) {
    this.alive("embed");
    return Float32Array.from([0, imageId, 1].slice(0, options.truncateDim ?? 3));
  }

  async rerank(query, documents) {
    this.alive("rerank");
    return documents.map((d) => d.split(query).length - 1);
  }

  async logits(ids, all) {
    this.alive("logits");
    return new Float32Array(9 * (all ? ids.length : 1));
  }

  /** One numbered word per second of audio; none for silence. */
  async transcribe(samples, request, onHeard) {
    this.alive("transcribe");
    const { signal, ...plain } = request;
    seen.requests.push({ ...plain, samples: samples.length });
    const segments = [];
    for (let at = 0; at < samples.length; at += 16000) {
      await pause();
      this.alive("transcribe", segments.length);
      if (signal.aborted) fail("aborted", "transcribing was aborted");
      const loud = samples.subarray(at, at + 16000).some((s) => Math.abs(s) > 0.01);
      // Token by token; the first word is revised once.
      for (const text of loud && request.partials && this.options.model.includes("tokens") ? ["w", "ward", "wor", `word${segments.length + 1}`] : []) {
        await pause();
        onHeard({ text, stable: text === "ward" ? "w" : text.slice(0, 3), start: at / 16000, end: at / 16000 + 1, done: at / 16000, total: samples.length / 16000 });
      }
      const [start, end] = [at / 16000, Math.min(at + 16000, samples.length) / 16000];
      if (loud) segments.push({ id: segments.length, start, end, text: ` word${segments.length + 1}`, tokens: [1], avg_logprob: null, compression_ratio: 1, no_speech_prob: null });
      onHeard({ text: loud ? segments.at(-1).text : "", start, end, done: end, total: samples.length / 16000 });
    }
    const text = segments.map((s) => s.text.trim()).join(" ");
    return { task: plain.translate ? "translate" : "transcribe", language: plain.language ?? "en", duration: samples.length / 16000, text, segments, srt: "1\n", vtt: "WEBVTT\n" };
  }

  /** Loud samples are speech; half a second of silence ends it. */
  listen(samples, fresh) {
    if (fresh) Object.assign(this, { heard: 0, begun: null, quiet: 0 });
    const level = Math.max(0, ...samples.map(Math.abs));
    const ended = [];
    if (level > 0.05) {
      this.begun ??= this.heard;
      this.quiet = 0;
    } else this.quiet += samples.length;
    this.heard += samples.length;
    if (this.begun !== null && (this.quiet >= 8000 || (samples.length === 0 && !fresh))) {
      ended.push([this.begun, this.heard]);
      this.begun = null;
    }
    return { level, start: this.begun, ended };
  }

  /** A tenth of a second per word, which is a frame. */
  async speak(request, onSound) {
    const { signal, ...plain } = request;
    seen.requests.push(plain);
    this.alive("speak");
    if (request.speaker && request.speaker.length !== 3) fail("request", `speaker: ${request.speaker.length} values given. Use 3 finite values.`);
    const words = request.input.split(" ").slice(0, Math.floor((request.maxTokens ?? Infinity) / 4));
    for (let i = 0; i < words.length; i++) {
      await pause(5);
      this.alive("speak", i);
      if (signal.aborted) fail("aborted", "speaking was aborted");
      onSound(Float32Array.from({ length: 2205 }, (_, t) => 0.5 * Math.sin(t * 0.1 * (i + 1))));
    }
    return { frames: words.length, dropped: 0, seconds: words.length / 10, finishReason: "stop", firstMs: 5, totalMs: 9, ids: [] };
  }

  memory() {
    return { wasmBytes: 1, gpuBytes: 2 };
  }

  async measure() {
    return { dispatchesPerToken: 9, bytesPerToken: 1e6, position: 0, limits: null, host: null, speculation: null, profiles: [], gpuBytes: 2 };
  }

  async verify(options, most) {
    this.alive("verify");
    return [{ name: "weights equal files", ok: options.model === this.options.model && most > 0, ms: 1 }];
  }

  setGroup(group) {
    seen.groups.push(group);
  }

  async deleteFromCache() {}

  free() {
    if (this.busy) throw new Error("attempted to take ownership of a value while it was borrowed");
    seen.freed++;
  }
}

class SessionDouble extends Engine {
  constructor(options, device) {
    super(options, device);
    seen.sessions++;
  }

  fork() {
    return new SessionDouble(this.options, this.device);
  }

  free() {
    super.free();
    seen.freed--;
    seen.sessions--;
  }
}

export const diagnose = async (touchPoints, unasked) => {
  seen.looks += unasked ? 1 : 0;
  return [{ name: "one kernel", ok: true, ms: 1 }, ...(device.faults ?? [])];
};
/** The simulated device, and how its dispatch groups behave from a size on: `right`, `wrong` or `crash`. */
export const device = { implementation: "other", kind: "right", from: Infinity };
export const implementation = () => globalThis.jerboaDevice?.implementation ?? device.implementation;
export const calibrate = async (group) => {
  seen.tests.push(group);
  const { kind, from } = globalThis.jerboaDevice ?? device;
  if ((group === "all" ? Infinity : Number(group)) < from || kind === "right") return true;
  if (kind === "wrong") return false;
  return killed();
};
export const imageSize = () => [4, 4];
export const deviceReport = async () => ({ webgpu: true, memory: 2e9, memoryIsLimit: true });
export const cachedModels = async () =>
  ["https://huggingface.co/a/b@main", "https://huggingface.co/a/b@v2", "https://hub.test/a/b@main", "https://x.test/models/a"].map((source) => ({
    source,
    files: 3,
    bytes: 7,
    complete: true,
  }));
export const deleteModel = async (source) => void seen.deleted.push(source);
export const version = () => "0.0.0";
