/** The conversation and the answer that is under way. Knows the model's API; not how anything looks. */

import { computed, signal, type Signal } from "@preact/signals";
import { JerboaError, type ChatMessage, type FinishReason, type GenerationResult, type Model } from "jerboa";
import { announce } from "../ui/announce";
import { count } from "../format";
import { sampling, settings } from "./settings-store";

/** What an answer took. */
export interface Stats {
  tokens: number;
  promptTokens: number;
  cachedTokens: number;
  firstTokenMs: number;
  tokensPerSecond: number | undefined;
  reason: FinishReason;
}

export interface Turn {
  id: number;
  role: "user" | "assistant";
  text: Signal<string>;
  running: Signal<boolean>;
  stats: Signal<Stats | undefined>;
  error: Signal<JerboaError | undefined>;
}

/** Where the text of an answer goes, and where its end is told. */
type Answer = { piece: (text: string) => void; end: (result: Omit<Stats, "firstTokenMs">) => void };

export class Conversation {
  readonly turns = signal<Turn[]>([]);
  readonly busy = computed(() => this.turns.value.some((turn) => turn.running.value));
  #next = 1;
  #abort: AbortController | undefined;

  /** Adds the user's text and answers it. */
  async send(model: Model, text: string): Promise<void> {
    if (this.busy.peek()) return;
    this.turns.value = [...this.turns.value, this.#turn("user", text)];
    await this.#answer(model);
  }

  /** Answers the last question once more. */
  async again(model: Model): Promise<void> {
    if (this.busy.peek()) return;
    const turns = this.turns.value;
    if (turns.at(-1)?.role === "assistant") this.turns.value = turns.slice(0, -1);
    if (this.turns.value.length > 0) await this.#answer(model);
  }

  /** Stops the answer; what is there stays. */
  stop(): void {
    this.#abort?.abort();
  }

  clear(): void {
    this.stop();
    this.turns.value = [];
  }

  /** The conversation as Markdown. */
  asText(completion: boolean): string {
    const turns = this.turns.value;
    if (completion) return turns.map(({ role, text }) => (role === "user" ? text.value : `${text.value}\n\n`)).join("").trim();
    return turns.map(({ role, text }) => `**${role === "user" ? "You" : "Model"}**\n\n${text.value}`).join("\n\n");
  }

  async #answer(model: Model): Promise<void> {
    const history = this.turns.value;
    const turn = this.#turn("assistant", "");
    turn.running.value = true;
    this.turns.value = [...history, turn];
    const controller = new AbortController();
    this.#abort = controller;
    const started = performance.now();
    let firstTokenMs = 0;
    const answer: Answer = {
      piece: (text) => {
        firstTokenMs ||= performance.now() - started;
        turn.text.value += text;
      },
      end: (stats) => {
        turn.stats.value = { ...stats, firstTokenMs };
      },
    };
    try {
      await (model.info.hasChatTemplate ? chat : complete)(model, history, answer, controller.signal);
      const stats = turn.stats.value;
      announce(stats?.reason === "abort" ? "Stopped." : `The answer is complete, ${count(stats?.tokens ?? 0, "token")}.`);
    } catch (thrown) {
      turn.error.value = thrown instanceof JerboaError ? thrown : new JerboaError("internal", String(thrown));
    } finally {
      turn.running.value = false;
    }
  }

  #turn(role: Turn["role"], text: string): Turn {
    return { id: this.#next++, role, text: signal(text), running: signal(false), stats: signal(undefined), error: signal(undefined) };
  }
}

async function chat(model: Model, history: Turn[], { piece, end }: Answer, signal: AbortSignal): Promise<void> {
  const { system, overflow } = settings.peek();
  const { temperature, topP, topK, minP, seed, maxTokens } = sampling();
  const messages: ChatMessage[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of history) messages.push({ role: turn.role, content: turn.text.peek() });
  const stream = await model.chat.completions.create(
    {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature,
      top_p: topP,
      top_k: topK,
      min_p: minP,
      seed,
      max_completion_tokens: maxTokens,
      overflow,
    },
    { signal },
  );
  let reason: FinishReason = "stop";
  let decodeMs = 0;
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    if (choice?.delta.content) piece(choice.delta.content);
    if (choice?.finish_reason) reason = choice.finish_reason;
    decodeMs = chunk.timings?.decode_ms ?? decodeMs;
    if (chunk.usage) {
      const { completion_tokens: tokens, prompt_tokens: promptTokens, prompt_tokens_details: details } = chunk.usage;
      end({ tokens, promptTokens, cachedTokens: details.cached_tokens, tokensPerSecond: speed(tokens, decodeMs), reason });
    }
  }
}

async function complete(model: Model, history: Turn[], { piece, end }: Answer, signal: AbortSignal): Promise<void> {
  const { overflow } = settings.peek();
  const prompt = history.at(-1)?.text.peek() ?? "";
  // Without turns there is nothing to drop: the oldest text slides out instead.
  const generation = model.generate(prompt, { ...sampling(), overflow: overflow === "truncate" ? "rolling" : overflow, signal });
  for await (const text of generation) piece(text);
  const result: GenerationResult = await generation.details;
  const { completionTokens: tokens, promptTokens, cachedTokens, decodeMs, finishReason: reason } = result;
  end({ tokens, promptTokens, cachedTokens, tokensPerSecond: speed(tokens, decodeMs), reason });
}

/** The first token belongs to the prefill. */
function speed(tokens: number, decodeMs: number): number | undefined {
  return tokens > 1 && decodeMs > 0 ? (tokens - 1) / (decodeMs / 1000) : undefined;
}
