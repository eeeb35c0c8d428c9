/** Embedding, reranking, transcription and speech models of the AI SDK. */

import type {
  EmbeddingModelV4, EmbeddingModelV4CallOptions, EmbeddingModelV4Result, RerankingModelV4, RerankingModelV4CallOptions, RerankingModelV4Result, SharedV4Warning, SpeechModelV4,
  SpeechModelV4CallOptions, SpeechModelV4Result, TranscriptionModelV4, TranscriptionModelV4CallOptions, TranscriptionModelV4Result,
} from "@ai-sdk/provider";
import { type EmbedOptions, JerboaError, type RerankOptions, type SpeechCreateParams, type TranscribeOptions } from "../index.js";
import { LazyEntry } from "./entry.js";
import { bytesOf } from "./prompt.js";

/** An embedding model for `embed` and `embedMany`. */
export class JerboaEmbeddingModel extends LazyEntry implements EmbeddingModelV4 {
  readonly maxEmbeddingsPerCall = 2048;
  /** One GPU computes them all. */
  readonly supportsParallelCalls = false;

  async doEmbed({ values, dimensions, abortSignal: signal, providerOptions }: EmbeddingModelV4CallOptions): Promise<EmbeddingModelV4Result> {
    const model = await this.load({ signal });
    const options: EmbedOptions = { ...(dimensions !== undefined ? { truncateDim: dimensions } : {}), ...this.optionsOf(providerOptions), ...(signal ? { signal } : {}) };
    const vectors = await model.embed(values, options).catch((thrown: JerboaError) => {
      throw dimensions === undefined ? thrown : new JerboaError(thrown.code, thrown.message.replace(/^truncateDim:/, "dimensions:"), { cause: thrown });
    });
    // The model reads no more than fit.
    const counts = await Promise.all(values.map(async (value) => Math.min(await model.countTokens(value), model.info.contextLength)));
    return { embeddings: vectors.map((vector) => Array.from(vector)), usage: { tokens: counts.reduce((sum, count) => sum + count, 0) }, warnings: [] };
  }
}

/** A reranking model for `rerank`. */
export class JerboaRerankingModel extends LazyEntry implements RerankingModelV4 {
  async doRerank({ documents, query, topN, abortSignal: signal, providerOptions }: RerankingModelV4CallOptions): Promise<RerankingModelV4Result> {
    const model = await this.load({ signal });
    const texts = documents.type === "text" ? documents.values : documents.values.map((value) => JSON.stringify(value));
    const options: RerankOptions = { ...(topN !== undefined ? { topN } : {}), ...this.optionsOf(providerOptions), ...(signal ? { signal } : {}) };
    const ranked = await model.rerank(query, texts, options);
    return { ranking: ranked.map(({ index, score }) => ({ index, relevanceScore: score })), response: { timestamp: new Date(), modelId: model.info.model } };
  }
}

/** A speech-to-text model for `transcribe`. */
export class JerboaTranscriptionModel extends LazyEntry implements TranscriptionModelV4 {
  async doGenerate({ audio, mediaType, timestampGranularities, abortSignal: signal, providerOptions }: TranscriptionModelV4CallOptions): Promise<TranscriptionModelV4Result> {
    const model = await this.load({ signal });
    const can = (capability: string): boolean => model.info.capabilities?.includes(capability) === true;
    const warnings: SharedV4Warning[] = [];
    let timestamps: TranscribeOptions["timestamps"] = can("timestamps") ? "segment" : "none";
    if (timestampGranularities?.includes("word")) {
      if (can("words")) timestamps = "word";
      else warnings.push({ type: "unsupported", feature: "timestampGranularities 'word'", details: `${model.info.model} has no word timestamps.` });
    }
    const options: TranscribeOptions = { timestamps, ...this.optionsOf(providerOptions), ...(signal ? { signal } : {}) };
    const { text, segments, words, language, duration } = await model.transcribe(new Blob([bytesOf(audio)], { type: mediaType }), options);
    return {
      text,
      segments: segments.map(({ text, start, end }) => ({ text: text.trim(), startSecond: start, endSecond: end })),
      ...(words ? { words: words.map(({ word, start, end }) => ({ text: word, startSecond: start, endSecond: end })) } : {}),
      language: language ?? undefined,
      durationInSeconds: duration,
      warnings,
      response: { timestamp: new Date(), modelId: model.info.model },
    };
  }
}

/** A text-to-speech model for `generateSpeech`. */
export class JerboaSpeechModel extends LazyEntry implements SpeechModelV4 {
  async doGenerate({ text, voice, outputFormat, instructions, speed, language, abortSignal: signal, providerOptions }: SpeechModelV4CallOptions): Promise<SpeechModelV4Result> {
    const model = await this.load({ signal });
    const warnings: SharedV4Warning[] = [];
    const unsupported = (feature: string, details: string): void => void warnings.push({ type: "unsupported", feature, details });
    const format = outputFormat === undefined || outputFormat === "wav" || outputFormat === "pcm" ? (outputFormat ?? "wav") : "wav";
    if (outputFormat !== undefined && outputFormat !== format) unsupported("outputFormat", `Browsers cannot encode '${outputFormat}'; the audio is a WAV file.`);
    if (instructions) unsupported("instructions", "The model takes no instructions for its voice.");
    if (speed !== undefined && speed !== 1) unsupported("speed", "The model has one speed only.");
    if (language !== undefined && language !== "auto") unsupported("language", "The text decides the language. Some models name languages as voices.");
    const request: SpeechCreateParams = { input: text, response_format: format, ...(voice !== undefined ? { voice } : {}), ...this.optionsOf(providerOptions) };
    const made = await model.audio.speech.create({ ...request, stream: false }, { ...(signal ? { signal } : {}) });
    return { audio: new Uint8Array(await made.arrayBuffer()), warnings, response: { timestamp: new Date(), modelId: model.info.model } };
  }
}
