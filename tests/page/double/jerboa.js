/** A test double of the wasm module: a model that counts words. Stands in for the engine in the facade's own tests and is never shipped. */

export const seen = { init: 0, loads: [], requests: [], deleted: [], freed: 0 };

export default async function init() {
  seen.init++;
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 1));
const fail = (code, message) => {
  throw { name: "JerboaError", code, message };
};

export class Engine {
  static async load(options, onProgress) {
    seen.loads.push(options);
    if (options.model === "no/such") fail("not_found", "no/such was not found. Check the name.");
    for (let i = 1; i <= 3; i++) {
      onProgress({ phase: "weights", file: "model.safetensors", loaded: i, total: 3, bytesPerSecond: 1, secondsLeft: 3 - i, fromCache: false });
      await pause();
      if (options.signal.aborted) fail("aborted", "loading was aborted");
    }
    onProgress({ phase: "ready", loaded: 3, total: 3, bytesPerSecond: 1, fromCache: false });
    return new Engine(options);
  }

  constructor(options) {
    this.options = options;
    this.busy = false;
  }

  info() {
    const { model } = this.options;
    const name = typeof model === "string" ? model : "files";
    const task = name.includes("embed") ? "embed" : name.includes("rank") ? "rerank" : "generate";
    return { model: name, architecture: "Double", task, contextLength: 64, vocabSize: 9, warnings: [], hasChatTemplate: !name.includes("base") };
  }

  tokenize(text, special) {
    const ids = [...text].map((c) => c.codePointAt(0));
    return Uint32Array.from(special ? [1, ...ids] : ids);
  }

  detokenize(ids) {
    return String.fromCodePoint(...ids);
  }

  renderChat(messages, options) {
    return messages.map((m) => `${m.role}: ${m.content}\n`).join("") + (options.addGenerationPrompt ? "assistant: " : "");
  }

  async generate(request, onEvent) {
    if (this.busy) fail("internal", "two generations at once");
    this.busy = true;
    const { signal, ...plain } = request;
    seen.requests.push(plain);
    const words = String(request.prompt ?? request.messages?.at(-1).content ?? request.ids).match(/\s*\S+/g) ?? [];
    const done = [];
    let finishReason = "stop";
    for (const word of words) {
      await pause();
      if (signal.aborted) {
        finishReason = "abort";
        break;
      }
      if (done.length === request.maxTokens) {
        finishReason = "length";
        break;
      }
      done.push(word);
      const top = [{ token: word, id: 7, logprob: -0.1, bytes: null }];
      onEvent({ text: word, ids: [done.length], ...(request.logprobs ? { logprobs: [{ ...top[0], top }] } : {}) });
    }
    this.busy = false;
    const ids = done.map((_, i) => i + 1);
    const guesses = request.speculation === "prompt-lookup" ? { draftedTokens: 7, acceptedTokens: 3 } : { draftedTokens: 0, acceptedTokens: 0 };
    return { text: done.join(""), ids, finishReason, promptTokens: 5, cachedTokens: 2, completionTokens: ids.length, ...guesses, prefillMs: 3, decodeMs: 4 };
  }

  async embed(texts, options, onProgress) {
    onProgress({ done: texts.length, total: texts.length });
    return texts.map((t) => Float32Array.from([t.length, 1, 0].slice(0, options.truncateDim ?? 3)));
  }

  async rerank(query, documents) {
    return documents.map((d) => d.split(query).length - 1);
  }

  async logits(ids, all) {
    return new Float32Array(9 * (all ? ids.length : 1));
  }

  memory() {
    return { wasmBytes: 1, gpuBytes: 2 };
  }

  async deleteFromCache() {}

  free() {
    seen.freed++;
  }
}

export const deviceReport = async () => ({ webgpu: true });
export const cachedModels = async () =>
  ["https://huggingface.co/a/b@main", "https://huggingface.co/a/b@v2", "https://hub.test/a/b@main", "https://x.test/models/a"].map((source) => ({
    source,
    files: 3,
    bytes: 7,
    complete: true,
  }));
export const deleteModel = async (source) => void seen.deleted.push(source);
export const version = () => "0.0.0";
