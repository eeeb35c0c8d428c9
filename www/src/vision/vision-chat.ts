/** The vision chat: images, videos and the conversation about them. */

import { computed, signal, type Signal } from "@preact/signals";
import { type ChatMessage, type EncodedImage, JerboaError, type Model } from "jerboa";
import { asError } from "../errors";
import { VISION } from "../strings";
import { announce } from "../ui/announce";
import { newTurn, type Turn } from "../chat/thread";
import { ThinkingJoiner } from "../chat/thinking";

/** An image or video of the page, with the encoder's result. */
export interface ImageItem {
  id: number;
  video: boolean;
  name: string;
  blob: Blob;
  /** An object URL of it. */
  url: string;
  seen: Signal<Omit<EncodedImage, "data"> | undefined>;
  error: Signal<JerboaError | undefined>;
}

/** A turn; user turns have their images. */
export interface VisionTurn extends Turn {
  images: readonly ImageItem[];
  /** Milliseconds of encoding that the answer waited for. */
  encodeMs: Signal<number>;
}

/** Maximum tokens of an answer; fewer for the random demo model. */
const maxTokens = ({ info }: Model): number => (info.parameters < 1e6 ? 24 : 256);

/** Whether a model supports videos. */
export const acceptsVideo = ({ info }: Model): boolean => info.capabilities?.includes("video") === true;

export class VisionChat {
  /** Images for the next question. */
  readonly shots = signal<readonly ImageItem[]>([]);
  readonly turns = signal<readonly VisionTurn[]>([]);
  readonly busy = computed(() => this.turns.value.some((turn) => turn.running.value));
  #next = 1;
  #abort: AbortController | undefined;
  /** Images are encoded one after another. */
  #last: Promise<unknown> = Promise.resolve();

  /** Adds images to the next question and starts encoding them. */
  add(model: Model | undefined, files: readonly (Blob & { name?: string })[]): void {
    const shots = files.map((blob) => ({
      id: this.#next++,
      video: blob.type.startsWith("video/"),
      name: blob.name || VISION.unnamed,
      blob,
      url: URL.createObjectURL(blob),
      seen: signal(undefined),
      error: signal(undefined),
    }));
    this.shots.value = [...this.shots.value, ...shots];
    if (model) shots.forEach((item) => this.#encode(model, item));
  }

  remove(item: ImageItem): void {
    this.shots.value = this.shots.value.filter((each) => each !== item);
    URL.revokeObjectURL(item.url);
  }

  /** Switches to another model: pending images are encoded again, the conversation is cleared. */
  setModel(model: Model): void {
    this.clear();
    for (const item of this.shots.peek()) {
      item.seen.value = undefined;
      this.#encode(model, item);
    }
  }

  clear(): void {
    this.stop();
    const kept = new Set(this.shots.peek());
    for (const item of this.turns.peek().flatMap(({ images: shots }) => shots)) if (!kept.has(item)) URL.revokeObjectURL(item.url);
    this.turns.value = [];
  }

  stop(): void {
    this.#abort?.abort();
  }

  /** Asks about the pending images and those of earlier turns. */
  async ask(model: Model, text: string): Promise<void> {
    if (this.busy.peek()) return;
    const shots = this.shots.peek().filter(({ error }) => !error.peek());
    this.shots.value = this.shots.peek().filter(({ error }) => error.peek());
    const question = this.#turn("user", text, shots);
    await this.#answer(model, [...this.turns.peek(), question]);
  }

  /** Regenerates the last answer with sampling. */
  async again(model: Model): Promise<void> {
    const turns = this.turns.peek();
    if (!this.busy.peek() && turns.at(-1)?.role === "assistant") await this.#answer(model, turns.slice(0, -1), 0.8);
  }

  #encode(model: Model, item: ImageItem): void {
    const encodeNow = async (): Promise<void> => {
      if (!this.shots.peek().includes(item)) return;
      // Videos are sampled and encoded with their question.
      if (item.video) return void (item.error.value = acceptsVideo(model) ? undefined : new JerboaError("request", VISION.noVideos(model.info.model)));
      try {
        const { data: _, ...seen } = await model.encodeImage(item.blob);
        item.seen.value = seen;
        item.error.value = undefined;
        announce(VISION.processed(item.name));
      } catch (thrown) {
        item.error.value = asError(thrown);
      }
    };
    this.#last = this.#last.then(encodeNow);
  }

  async #answer(model: Model, turns: readonly VisionTurn[], temperature?: number): Promise<void> {
    const turn = this.#turn("assistant", "", []);
    this.turns.value = [...turns, turn];
    turn.running.value = true;
    const controller = new AbortController();
    this.#abort = controller;
    const started = performance.now();
    let firstTokenMs = 0;
    let decodeMs = 0;
    try {
      await this.#last;
      const given = { messages: turns.map(messageOf), max_completion_tokens: maxTokens(model), overflow: "truncate", ...(temperature === undefined ? {} : { temperature }) } as const;
      const stream = await model.chat.completions.create({ ...given, stream: true, stream_options: { include_usage: true } }, { signal: controller.signal });
      let reason: "stop" | "length" | "tool_calls" | "abort" = "stop";
      const joiner = new ThinkingJoiner();
      for await (const chunk of stream) {
        const choice = chunk.choices[0];
        const text = joiner.push(choice?.delta ?? {});
        if (text) {
          firstTokenMs ||= performance.now() - started;
          turn.text.value += text;
        }
        reason = chunk.aborted ? "abort" : (choice?.finish_reason ?? reason);
        decodeMs = chunk.timings?.decode_ms ?? decodeMs;
        turn.encodeMs.value = chunk.timings?.encode_ms ?? turn.encodeMs.peek();
        if (!chunk.usage) continue;
        const { completion_tokens: tokens, prompt_tokens: promptTokens, prompt_tokens_details: details } = chunk.usage;
        const tokensPerSecond = tokens >= 16 && decodeMs > 0 ? (tokens - 1) / (decodeMs / 1000) : undefined;
        turn.stats.value = { tokens, promptTokens, cachedTokens: details.cached_tokens, firstTokenMs, tokensPerSecond, thoughtTokens: chunk.usage.completion_tokens_details?.reasoning_tokens ?? 0, reason };
      }
      announce(VISION.answered);
    } catch (thrown) {
      turn.error.value = asError(thrown);
    } finally {
      turn.running.value = false;
    }
  }

  #turn(role: Turn["role"], text: string, shots: readonly ImageItem[]): VisionTurn {
    return { ...newTurn(this.#next++, role, text), images: shots, encodeMs: signal(0) };
  }
}

function messageOf({ role, text, images: shots }: VisionTurn): ChatMessage {
  if (role === "assistant" || shots.length === 0) return { role, content: text.peek() };
  return { role, content: [...shots.map(({ video, blob }) => (video ? { type: "video" as const, video: blob } : { type: "image" as const, image: blob })), { type: "text" as const, text: text.peek() }] };
}
