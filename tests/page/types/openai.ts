/** Values of OpenAI's types go into the package's calls, and what comes out is of OpenAI's types. Compiled by openai-types.test.mjs. */

import type OpenAI from "openai";
import {
  createFetch, similarity, type ChatMessage, type CreateEmbeddingResponse, type EmbeddingCreateParams, type EmbedInput, type Model, type RankedDocument, type SpeechCreateParams, type Tool,
  type TranscriptionCreateParams,
} from "jerboa";
import type { Memory } from "jerboa/memory";

declare const model: Model;

type Chat = OpenAI.Chat.Completions.ChatCompletion;

export async function chat(
  params: OpenAI.Chat.Completions.ChatCompletionCreateParamsNonStreaming,
  streaming: OpenAI.Chat.Completions.ChatCompletionCreateParamsStreaming,
  either: OpenAI.Chat.Completions.ChatCompletionCreateParams,
  messages: OpenAI.Chat.Completions.ChatCompletionMessageParam[],
  tools: OpenAI.Chat.Completions.ChatCompletionTool[],
): Promise<void> {
  const answer: Chat = await model.chat.completions.create(params);
  const stream: AsyncIterable<OpenAI.Chat.Completions.ChatCompletionChunk> = await model.chat.completions.create(streaming);
  void (await model.chat.completions.create(either));
  const again: Chat = await model.chat.completions.create({ messages, tools });
  const history: ChatMessage[] = [...messages, answer.choices[0]!.message];
  const own: Tool[] = [{ type: "function", function: { name: "f" } }];
  const theirs: OpenAI.Chat.Completions.ChatCompletionTool[] = own;
  void [stream, again, history, theirs];
}

export async function completions(
  params: OpenAI.Completions.CompletionCreateParamsNonStreaming,
  streaming: OpenAI.Completions.CompletionCreateParamsStreaming,
): Promise<void> {
  const answer: OpenAI.Completions.Completion = await model.completions.create(params);
  for await (const chunk of await model.completions.create(streaming)) console.log(chunk.choices[0]?.text, answer.id);
}

export async function responses(
  params: OpenAI.Responses.ResponseCreateParamsNonStreaming,
  streaming: OpenAI.Responses.ResponseCreateParamsStreaming,
  either: OpenAI.Responses.ResponseCreateParams,
  input: OpenAI.Responses.ResponseInputItem[],
  tools: OpenAI.Responses.Tool[],
): Promise<void> {
  const response: OpenAI.Responses.Response = await model.responses.create(params);
  const stream: AsyncIterable<OpenAI.Responses.ResponseStreamEvent> = await model.responses.create(streaming);
  void (await model.responses.create(either));
  const next: OpenAI.Responses.Response = await model.responses.create({ input: [...input, ...response.output], tools });
  const stored: OpenAI.Responses.Response = await model.responses.retrieve(next.id);
  void [stream, stored];
}

/** The package's own request types are taken by their methods, and lists may be read-only. */
export async function own(
  embedding: EmbeddingCreateParams,
  transcription: TranscriptionCreateParams,
  speech: SpeechCreateParams,
  input: EmbedInput | EmbedInput[],
  texts: readonly string[],
  memory: Memory,
): Promise<void> {
  const { data } = await model.embeddings.create(embedding);
  const heard = await model.audio.transcriptions.create(transcription);
  const translated = await model.audio.translations.create(transcription);
  const spoken = await model.audio.speech.create(speech);
  const embedded: Float32Array | Float32Array[] = await model.embed(input);
  const vectors: Float32Array[] = await model.embed(texts);
  const scores: number[] = similarity(vectors[0]!, vectors);
  const ranked: RankedDocument[] = await model.rerank("query", texts);
  const stored = await memory.add(texts);
  const ids: CreateEmbeddingResponse = await model.embeddings.create({ input: texts, encoding_format: "float" });
  const text: string = await model.audio.transcriptions.create({ ...transcription, response_format: "srt", stream: false });
  const response: Response = await model.audio.speech.create({ ...speech, stream: false });
  const messages: ChatMessage[] = [{ role: "tool", tool_call_id: "1", content: [{ type: "image_url", image_url: { url: "data:," } }] }];
  void [data[0]?.embedding, heard, translated, spoken, embedded, scores, ranked, stored, ids, text, response, messages];
}

export async function others(
  embeddings: OpenAI.Embeddings.EmbeddingCreateParams,
  Client: typeof OpenAI,
): Promise<void> {
  const vectors: OpenAI.Embeddings.CreateEmbeddingResponse = await model.embeddings.create({ ...embeddings, encoding_format: "float" });
  void (await model.embeddings.create(embeddings));
  const client = new Client({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: createFetch({ chat: model, embed: async () => model }) });
  void [vectors, client, createFetch(model), createFetch((name) => (name === "chat" ? model : undefined))];
}
