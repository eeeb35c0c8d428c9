/** The conversation and its running answer. */

import { batch, computed, effect, signal, untracked } from "@preact/signals";
import { type ChatMessage, type ChatStream, type GenerationResult, type ImagePart, JerboaError, type Model, type ModelInfo, type TextPart, type ToolCall, type ToolCallDelta } from "jerboa";
import { asError } from "../errors";
import { recordRate } from "../model/decode-rate";
import { CHAT, DEVICE, MESSAGE } from "../strings";
import { announce } from "../ui/announce";
import { adapterOf } from "./adapter-store";
import { answerFields } from "./answer-store";
import { acceptsImages, type Attachment, imageProblem } from "./attachments";
import { documentOf, forget, newId, open, refresh, saveConversation, saved, saveTime, unfinished } from "./history";
import { putImage } from "./image-store";
import { sampling, settings } from "./settings-store";
import { splitThinking, ThinkingJoiner } from "./thinking";
import { savedTurn, type Stats, Thread, type Turn, type TurnFile } from "./thread";
import { runTool, type ToolStep } from "./tools";

/** Rounds of calls in one answer. */
const MAX_TOOL_ROUNDS = 5;

/** Receives the text of an answer and its end. */
type AnswerSink = { piece: (text: string) => void; step: (step: ToolStep) => void; end: (result: Omit<Stats, "firstTokenMs">) => void };

/** Sampling options of a regenerated answer; greedy decoding would repeat the first one. */
const RESAMPLE = { temperature: 0.8, topP: 0.95 };

/** Sampling options for chat models without their own: small ones repeat themselves when they decode greedily. */
const CHAT_SAMPLING = { temperature: 0.7, topP: 0.95 };

type DefaultSampling = typeof RESAMPLE;

/** The sampling options that apply where the user has set none; undefined for the model's own. */
function defaultSampling({ hasChatTemplate, samplesByDefault }: ModelInfo): DefaultSampling | undefined {
  return hasChatTemplate && samplesByDefault === false ? CHAT_SAMPLING : undefined;
}

/** Milliseconds between two saves of an answer that is being generated. */
const UNFINISHED_INTERVAL_MS = 300;

/** Milliseconds after which other tabs have what this one has stored. */
const STORAGE_DELAY_MS = 1000;

export class Conversation {
  readonly #thread = new Thread();
  readonly turns = this.#thread.turns;
  readonly busy = computed(() => this.turns.value.some((turn) => turn.running.value));
  /** Whether the model continues a text instead of chatting. */
  readonly completion = signal(false);
  /** The system prompt of this conversation; the settings' one where it is empty. */
  readonly system = signal("");
  #id = newId();
  /** Time of the version that this tab opened or saved last; undefined before the first. */
  #version: number | undefined;
  #abort: AbortController | undefined;

  constructor() {
    const before = saved.peek().find(({ id }) => id === open.peek());
    if (before) this.open(before.id);
    effect(() => {
      void saved.value;
      untracked(() => this.#follow());
    });
  }

  /** Takes over what another tab has done with this conversation. */
  #follow(): void {
    if (this.#version === undefined) return;
    const found = saved.peek().find(({ id }) => id === this.#id);
    if (!found) this.#discard();
    else if (found.updated !== this.#version && !this.busy.peek()) this.open(this.#id);
  }

  /** Adds the user's message and answers it. */
  async send(model: Model, text: string, attachments: Attachment[] = []): Promise<void> {
    if (!this.busy.peek()) await this.#ask(model, text, attachments.map(turnFile), attachments.filter(({ kind }) => kind === "text"));
  }

  /** Adds another answer to the last question, with sampling. */
  async again(model: Model): Promise<void> {
    if (this.busy.peek()) return;
    const turns = this.turns.peek();
    const question = turns.at(-1)?.role === "assistant" ? turns.at(-2) : turns.at(-1);
    if (question) await this.#answer(model, question, RESAMPLE);
  }

  /** The answers to the same question. */
  answers(turn: Turn): Turn[] {
    return this.#thread.siblings(turn);
  }

  /** Shows another answer to the same question, with the turns after it. */
  show(turn: Turn): void {
    if (this.busy.peek()) return;
    this.#thread.select(turn);
    this.#keep();
  }

  /** Continues an answer that reached its limit: text directly, a chat by asking for more. */
  async goOn(model: Model): Promise<void> {
    const last = this.turns.peek().at(-1);
    if (this.busy.peek() || last?.role !== "assistant") return;
    if (model.info.hasChatTemplate) await this.send(model, CHAT.goOn);
    else await this.#write(model, this.turns.peek().slice(0, -1), last);
  }

  /** Edits a user message in a new conversation; the original conversation is kept. */
  async edit(model: Model, turn: Turn, text: string): Promise<void> {
    this.#branch(turn);
    await this.#ask(model, text, turn.files);
  }

  /** Replaces the text of an answer; its thoughts stay. The next answer follows the new text. */
  rewrite(turn: Turn, text: string): void {
    if (this.busy.peek()) return;
    const { thinking } = splitThinking(turn.text.peek());
    turn.text.value = thinking ? `<think>${thinking}</think>\n\n${text}` : text;
    turn.cut.value = false;
    this.#keep();
  }

  /** Starts a new conversation with the turns before `before`, or with all turns. */
  branch(before?: Turn): void {
    this.#branch(before);
    // Its files stay stored as long as it refers to them.
    this.#keep("");
  }

  #branch(before?: Turn): void {
    this.stop();
    const turns = this.turns.peek();
    const end = before ? turns.indexOf(before) : turns.length;
    this.#fork();
    this.#thread.restore(turns.slice(0, end).map(savedTurn));
  }

  /** Continues under another id. The passages of its text files stay those of the original. */
  #fork(): void {
    for (const file of this.#thread.files()) if (!file.image) file.document = documentOf(this.#id, file);
    this.#id = newId();
    this.#version = undefined;
  }

  /** Stops the answer; the text so far is kept. */
  stop(): void {
    this.#abort?.abort();
  }

  /** Starts a new conversation; the current one is saved. */
  clear(): void {
    this.#renew();
    this.system.value = "";
  }

  /** Changes the conversation's system prompt. */
  setSystem(text: string): void {
    this.system.value = text;
    if (this.turns.peek().length > 0) this.#keep();
  }

  /** Opens a saved conversation. */
  open(id: string): void {
    const found = saved.peek().find((each) => each.id === id);
    if (!found) return;
    this.#leave();
    this.#id = id;
    this.#version = found.updated;
    open.value = id;
    this.completion.value = found.completion;
    this.system.value = found.system ?? "";
    this.#thread.restore(found.turns, found.leaf);
    this.#recover();
  }

  /** Puts the text of an answer that a reload ended into its turn. */
  #recover(): void {
    const begun = unfinished.peek();
    const last = this.turns.peek().at(-1);
    if (begun?.id !== this.#id || last?.role !== "assistant") return;
    last.text.value = begun.text;
    // While another tab generates the answer, it holds the lock.
    void navigator.locks.request(lockOf(begun.id), () => {
      const now = unfinished.peek();
      if (now?.id !== begun.id || !this.#thread.has(last) || this.busy.peek()) return;
      unfinished.value = null;
      last.text.value = now.text;
      last.cut.value = true;
      this.#keep();
    });
  }

  /** Deletes a conversation. */
  remove(id: string): void {
    forget(id);
  }

  /** The conversation as Markdown. */
  asText(): string {
    const turns = this.turns.value;
    if (this.completion.value) return turns.map(({ role, text }) => (role === "user" ? text.value : `${text.value}\n\n`)).join("").trim();
    return turns.map(({ role, text }) => `**${role === "user" ? MESSAGE.you : DEVICE.model}**\n\n${text.value}`).join("\n\n");
  }

  /** The messages of the turns up to `end`, as the model gets them, with or without their images. */
  messages(end = this.turns.peek(), images = false): ChatMessage[] {
    return messagesOf(end, this.system.peek() || settings.peek().system, images);
  }

  /** Leaves the current conversation, and keeps its system prompt. */
  #renew(): void {
    this.#leave();
    this.#id = newId();
    this.#version = undefined;
    open.value = "";
    this.#thread.clear();
  }

  /** Leaves the current conversation, which was deleted. */
  #discard(): void {
    this.stop();
    this.#thread.clear();
    this.clear();
  }

  /** Stops the answer and saves what it has. */
  #leave(): void {
    this.stop();
    if (this.busy.peek()) this.#keep();
  }

  /** Saves the conversation; without a name, under the model that answered last. */
  #keep(name?: string): void {
    batch(() => {
      refresh();
      const before = saved.peek().find(({ id }) => id === this.#id);
      const model = name ?? before?.model ?? "";
      if (this.#version !== undefined && before?.updated !== this.#version) {
        // Another tab has deleted it, or has saved other turns, which must not be lost.
        if (!before) return;
        this.#fork();
      }
      this.#version = saveTime(before?.updated);
      const system = this.system.peek();
      saveConversation({ id: this.#id, model, completion: this.completion.peek(), updated: this.#version, ...this.#thread.save(), ...(system ? { system } : {}) });
      open.value = this.#id;
    });
  }

  /** Adds a question with its files and answers it; the passages of new text files are not stored yet. */
  async #ask(model: Model, text: string, files: TurnFile[], added: Attachment[] = []): Promise<void> {
    // Story turns and chat turns cannot be mixed.
    if (this.turns.peek().length > 0 && this.completion.peek() === model.info.hasChatTemplate) this.#renew();
    await this.#answer(model, this.#thread.add("user", text, undefined, files), undefined, added);
  }

  async #answer(model: Model, question = this.turns.peek().at(-1), otherwise?: DefaultSampling, files: Attachment[] = []): Promise<void> {
    const turn = this.#thread.add("assistant", "", question);
    this.completion.value = !model.info.hasChatTemplate;
    await this.#write(model, this.turns.peek().slice(0, -1), turn, otherwise, files);
  }

  /** Stores new files, and looks up the passages of all files for the last question. */
  async #lookUp(model: Model, history: Turn[], files: Attachment[], signal: AbortSignal): Promise<void> {
    const question = history.at(-1);
    const documents = new Set(history.flatMap((turn) => turn.files.flatMap((file) => (file.image ? [] : documentOf(this.#id, file)))));
    if (!question || question.context.peek() || documents.size === 0) return;
    const { addFiles, passagesFor } = await import("./files");
    if (files.length > 0) await addFiles(this.#id, await Promise.all(files.map(async ({ name, blob }) => ({ name, text: await blob.text() }))), signal);
    question.context.value = await passagesFor(documents, question.text.peek(), model.info.contextLength, signal);
  }

  /** Generates a turn, and tells other tabs by a lock that its answer is not interrupted. */
  async #write(model: Model, history: Turn[], turn: Turn, otherwise?: DefaultSampling, files: Attachment[] = []): Promise<void> {
    const generated = this.#generate(model, history, turn, otherwise, files);
    // Other tabs may get the lock before they get the last text, so it is held a little longer.
    const settled = generated.then(() => new Promise((resolve) => setTimeout(resolve, STORAGE_DELAY_MS)));
    navigator.locks.request(lockOf(this.#id), { mode: "shared" }, () => settled).catch(() => undefined);
    await generated;
  }

  /** Generates a turn, from its start or continuing its text. */
  async #generate(model: Model, history: Turn[], turn: Turn, otherwise = defaultSampling(model.info), files: Attachment[]): Promise<void> {
    turn.running.value = true;
    turn.error.value = undefined;
    turn.cut.value = false;
    this.#keep(model.info.model);
    const id = this.#id;
    let savedAt = 0;
    const controller = new AbortController();
    this.#abort = controller;
    const started = performance.now();
    let firstTokenMs = 0;
    const answer: AnswerSink = {
      piece: (text) => {
        firstTokenMs ||= performance.now() - started;
        turn.text.value += text;
        if (performance.now() - savedAt < UNFINISHED_INTERVAL_MS) return;
        savedAt = performance.now();
        unfinished.value = { id, text: turn.text.peek() };
      },
      step: (step) => {
        turn.steps.value = [...turn.steps.peek(), step];
      },
      end: (stats) => {
        turn.stats.value = { ...stats, firstTokenMs };
      },
    };
    const given = sampling();
    const params = given.temperature === undefined ? { ...otherwise, ...given } : given;
    try {
      await this.#lookUp(model, history, files, controller.signal);
      if (acceptsImages(model)) await checkImages(model, history);
      const begun = turn.text.peek();
      if (!model.info.hasChatTemplate) await complete(model, (history.at(-1)?.text.peek() ?? "") + begun, params, answer, controller.signal);
      else await chat(model, this.messages(history, acceptsImages(model)), params, answer, controller.signal);
      const stats = turn.stats.value;
      announce(stats?.reason === "abort" ? MESSAGE.stoppedSentence : MESSAGE.complete(stats?.tokens ?? 0));
    } catch (thrown) {
      turn.error.value = asError(thrown);
    } finally {
      turn.running.value = false;
      if (unfinished.peek()?.id === id) unfinished.value = null;
      if (this.#thread.has(turn)) this.#keep(model.info.model);
    }
  }
}

/** Name of the lock of a conversation whose answer is being generated. */
const lockOf = (id: string): string => `jerboa-answer-${id}`;


/** A file of a message; images are also stored. */
function turnFile({ name, kind, blob, url }: Attachment): TurnFile {
  if (kind === "text") return { name, blob: signal(undefined), url: signal("") };
  const image = newId();
  void putImage(image, blob).catch(() => undefined);
  return { name, image, blob: signal(blob), url: signal(url) };
}

/** Refuses an image of the last question that the model cannot read, and drops those of earlier ones. */
async function checkImages(model: Model, history: Turn[]): Promise<void> {
  for (const turn of history) {
    for (const { name, blob } of turn.files) {
      const problem = blob.peek() && (await imageProblem(model, name, blob.peek()!));
      if (problem && turn === history.at(-1)) throw new JerboaError("request", problem);
      if (problem) blob.value = undefined;
    }
  }
}

/** A question with the passages and images of its files. */
function contentOf({ text, context, files }: Turn, images: boolean): string | (TextPart | ImagePart)[] {
  const words = context.peek() ? CHAT.fromFiles(context.peek(), text.peek()) : text.peek();
  const shown = images ? files.flatMap(({ blob }) => blob.peek() ?? []) : [];
  return shown.length === 0 ? words : [...shown.map((image) => ({ type: "image" as const, image })), { type: "text" as const, text: words }];
}

function messagesOf(history: Turn[], system: string, images: boolean): ChatMessage[] {
  const messages: ChatMessage[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of history) {
    const { role, text } = turn;
    const { thinking, answer } = splitThinking(text.peek());
    if (role === "user") messages.push({ role, content: contentOf(turn, images) });
    else if (thinking.trim()) messages.push({ role, content: answer.trim(), reasoning_content: thinking.trim() });
    else messages.push({ role, content: text.peek() });
  }
  return messages;
}

/** Answers; runs the page's functions that the model calls, and answers again with their results. */
async function chat(model: Model, messages: ChatMessage[], how: Sampling, sink: AnswerSink, signal: AbortSignal): Promise<void> {
  const joiner = new ThinkingJoiner();
  let total: Omit<Stats, "firstTokenMs"> | undefined;
  for (let round = 0; round < MAX_TOOL_ROUNDS; round++) {
    const { content, calls, stats } = await readAnswer(model, await startAnswer(model, messages, how, signal), (delta) => {
      const text = joiner.push(delta);
      if (text) sink.piece(text);
    });
    total = total ? { ...stats, tokens: total.tokens + stats.tokens, thoughtTokens: total.thoughtTokens + stats.thoughtTokens } : stats;
    sink.end(total);
    if (stats.reason !== "tool_calls") return;
    messages.push({ role: "assistant", content, tool_calls: calls });
    for (const call of calls) {
      const step = runTool(call);
      sink.step(step);
      messages.push({ role: "tool", tool_call_id: step.id, content: step.result });
    }
  }
}

function startAnswer(model: Model, messages: ChatMessage[], how: Sampling, signal: AbortSignal): Promise<ChatStream> {
  const { temperature, topP, topK, minP, seed, maxTokens } = how;
  return model.chat.completions.create(
    {
      ...answerFields(model.info),
      ...adapterOf(model),
      messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature,
      top_p: topP,
      top_k: topK,
      min_p: minP,
      seed,
      max_completion_tokens: maxTokens,
      overflow: settings.peek().overflow,
    },
    { signal },
  );
}

/** What an answer said, and its statistics. */
interface ReadAnswer {
  content: string;
  calls: ToolCall[];
  stats: Omit<Stats, "firstTokenMs">;
}

async function readAnswer(model: Model, stream: ChatStream, onDelta: (delta: { content?: string; reasoning_content?: string }) => void): Promise<ReadAnswer> {
  const calls: ToolCall[] = [];
  let content = "";
  let reason: Stats["reason"] = "stop";
  let decodeMs = 0;
  let stats: Omit<Stats, "firstTokenMs"> = { tokens: 0, thoughtTokens: 0, promptTokens: 0, cachedTokens: 0, tokensPerSecond: undefined, reason };
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    const delta = choice?.delta ?? {};
    onDelta(delta);
    content += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) addCall(calls, call);
    if (choice?.finish_reason) reason = chunk.aborted ? "abort" : choice.finish_reason;
    decodeMs = chunk.timings?.decode_ms ?? decodeMs;
    if (!chunk.usage) continue;
    const { completion_tokens: tokens, prompt_tokens: promptTokens, prompt_tokens_details: details, completion_tokens_details: more } = chunk.usage;
    stats = { tokens, thoughtTokens: more?.reasoning_tokens ?? 0, promptTokens, cachedTokens: details.cached_tokens, tokensPerSecond: speed(model, tokens, decodeMs), reason };
  }
  return { content, calls, stats };
}

/** Adds a delta to the calls: the first one of a call has its name, later ones its arguments. */
function addCall(calls: ToolCall[], { index, id, function: given }: ToolCallDelta): void {
  const call = (calls[index] ??= { id: id ?? "", type: "function", function: { name: "", arguments: "" } });
  call.function.name += given?.name ?? "";
  call.function.arguments += given?.arguments ?? "";
}

type Sampling = ReturnType<typeof sampling>;

async function complete(model: Model, prompt: string, how: Sampling, { piece, end }: AnswerSink, signal: AbortSignal): Promise<void> {
  const { overflow } = settings.peek();
  // Without turns there is nothing to drop, so use the rolling context.
  const generation = model.generate(prompt, { ...how, ...adapterOf(model), overflow: overflow === "truncate" ? "rolling" : overflow, signal });
  for await (const text of generation) piece(text);
  const result: GenerationResult = await generation.details;
  const { completionTokens: tokens, promptTokens, cachedTokens, decodeMs, finishReason: reason } = result;
  end({ tokens, thoughtTokens: 0, promptTokens, cachedTokens, tokensPerSecond: speed(model, tokens, decodeMs), reason });
}

/** Decode throughput; undefined for few tokens, which arrive together. The first token belongs to the prefill. */
function speed(model: Model, tokens: number, decodeMs: number): number | undefined {
  const rate = tokens >= 16 && decodeMs > 0 ? (tokens - 1) / (decodeMs / 1000) : undefined;
  recordRate(model, rate);
  return rate;
}
