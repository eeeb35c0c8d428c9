/** The conversation and its running answer. */

import { computed, signal, type Signal } from "@preact/signals";
import type { ChatMessage, ChatStream, FinishReason, GenerationResult, JerboaError, Model, ToolCall, ToolCallDelta } from "jerboa";
import { asError } from "../errors";
import { count } from "../format";
import { recordRate } from "../model/decode-rate";
import { CHAT } from "../strings";
import { announce } from "../ui/announce";
import { answerFields } from "./answer-store";
import { forget, saveConversation, open, saved, type SavedTurn } from "./history";
import { sampling, settings } from "./settings-store";
import { splitThinking, ThinkingJoiner } from "./thinking";
import { runTool, type ToolStep } from "./tools";

/** Rounds of calls in one answer. */
const MAX_TOOL_ROUNDS = 5;

/** Statistics of an answer. */
export interface Stats {
  tokens: number;
  promptTokens: number;
  cachedTokens: number;
  firstTokenMs: number;
  tokensPerSecond: number | undefined;
  /** Tokens of the thought among them. */
  thoughtTokens: number;
  reason: FinishReason | "abort";
}

export interface Turn {
  id: number;
  role: "user" | "assistant";
  text: Signal<string>;
  running: Signal<boolean>;
  /** The calls that the answer made. */
  steps: Signal<ToolStep[]>;
  stats: Signal<Stats | undefined>;
  error: Signal<JerboaError | undefined>;
}

/** Receives the text of an answer and its end. */
type AnswerSink = { piece: (text: string) => void; step: (step: ToolStep) => void; end: (result: Omit<Stats, "firstTokenMs">) => void };

/** Sampling options of a regenerated answer; greedy decoding would repeat the first one. */
const RESAMPLE = { temperature: 0.8, topP: 0.95 };

export class Conversation {
  readonly turns = signal<Turn[]>([]);
  readonly busy = computed(() => this.turns.value.some((turn) => turn.running.value));
  /** Whether the model continues a text instead of chatting. */
  readonly completion = signal(false);
  #id = newId();
  #next = 1;
  #abort: AbortController | undefined;

  constructor() {
    const before = saved.peek().find(({ id }) => id === open.peek());
    if (before) this.open(before.id);
  }

  /** Adds the user's message and answers it. */
  async send(model: Model, text: string): Promise<void> {
    if (this.busy.peek()) return;
    // Story turns and chat turns cannot be mixed.
    if (this.turns.peek().length > 0 && this.completion.peek() === model.info.hasChatTemplate) this.clear();
    this.turns.value = [...this.turns.value, this.#turn("user", text)];
    await this.#answer(model);
  }

  /** Regenerates the last answer with sampling. */
  async again(model: Model): Promise<void> {
    if (this.busy.peek()) return;
    const turns = this.turns.value;
    if (turns.at(-1)?.role === "assistant") this.turns.value = turns.slice(0, -1);
    if (this.turns.value.length > 0) await this.#answer(model, RESAMPLE);
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
    this.branch(turn);
    await this.send(model, text);
  }

  /** Starts a new conversation with the turns before `before`, or with all turns. */
  branch(before?: Turn): void {
    this.stop();
    const turns = this.turns.peek();
    const end = before ? turns.indexOf(before) : turns.length;
    this.#id = newId();
    this.turns.value = turns.slice(0, end).map(({ role, text }) => this.#turn(role, text.peek()));
    if (!before) this.#keep("");
  }

  /** Stops the answer; the text so far is kept. */
  stop(): void {
    this.#abort?.abort();
  }

  /** Starts a new conversation; the current one is saved. */
  clear(): void {
    this.stop();
    this.#id = newId();
    open.value = "";
    this.turns.value = [];
  }

  /** Opens a saved conversation. */
  open(id: string): void {
    const found = saved.peek().find((each) => each.id === id);
    if (!found) return;
    this.stop();
    this.#id = id;
    open.value = id;
    this.completion.value = found.completion;
    this.turns.value = found.turns.map(({ role, text }) => this.#turn(role, text));
  }

  /** Deletes a conversation. */
  remove(id: string): void {
    if (id === this.#id) this.clear();
    forget(id);
  }

  /** The conversation as Markdown. */
  asText(): string {
    const turns = this.turns.value;
    if (this.completion.value) return turns.map(({ role, text }) => (role === "user" ? text.value : `${text.value}\n\n`)).join("").trim();
    return turns.map(({ role, text }) => `**${role === "user" ? "You" : "Model"}**\n\n${text.value}`).join("\n\n");
  }

  #keep(model: string): void {
    const turns: SavedTurn[] = this.turns.peek().map(({ role, text }) => ({ role, text: text.peek() }));
    saveConversation({ id: this.#id, model, completion: this.completion.peek(), turns });
    open.value = this.#id;
  }

  async #answer(model: Model, otherwise?: typeof RESAMPLE): Promise<void> {
    const history = this.turns.value;
    const turn = this.#turn("assistant", "");
    this.turns.value = [...history, turn];
    this.completion.value = !model.info.hasChatTemplate;
    await this.#write(model, history, turn, otherwise);
  }

  /** Generates a turn, from its start or continuing its text. */
  async #write(model: Model, history: Turn[], turn: Turn, otherwise?: typeof RESAMPLE): Promise<void> {
    turn.running.value = true;
    turn.error.value = undefined;
    this.#keep(model.info.model);
    const controller = new AbortController();
    this.#abort = controller;
    const started = performance.now();
    let firstTokenMs = 0;
    const answer: AnswerSink = {
      piece: (text) => {
        firstTokenMs ||= performance.now() - started;
        turn.text.value += text;
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
      const begun = turn.text.peek();
      if (!model.info.hasChatTemplate) await complete(model, (history.at(-1)?.text.peek() ?? "") + begun, params, answer, controller.signal);
      else await chat(model, history, params, answer, controller.signal);
      const stats = turn.stats.value;
      announce(stats?.reason === "abort" ? "Stopped." : `The answer is complete, ${count(stats?.tokens ?? 0, "token")}.`);
    } catch (thrown) {
      turn.error.value = asError(thrown);
    } finally {
      turn.running.value = false;
      if (this.turns.peek().includes(turn)) this.#keep(model.info.model);
    }
  }

  #turn(role: Turn["role"], text: string): Turn {
    return { id: this.#next++, role, text: signal(text), running: signal(false), steps: signal([]), stats: signal(undefined), error: signal(undefined) };
  }
}

function newId(): string {
  return crypto.randomUUID();
}

function messagesOf(history: Turn[]): ChatMessage[] {
  const { system } = settings.peek();
  const messages: ChatMessage[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const { role, text } of history) {
    const { thinking, answer } = splitThinking(text.peek());
    if (role === "assistant" && thinking.trim()) messages.push({ role, content: answer.trim(), reasoning_content: thinking.trim() });
    else messages.push({ role, content: text.peek() });
  }
  return messages;
}

/** Answers; runs the page's functions that the model calls, and answers again with their results. */
async function chat(model: Model, history: Turn[], how: Sampling, sink: AnswerSink, signal: AbortSignal): Promise<void> {
  const messages = messagesOf(history);
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
  const generation = model.generate(prompt, { ...how, overflow: overflow === "truncate" ? "rolling" : overflow, signal });
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
