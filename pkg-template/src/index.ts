/** The public face of the package. Holds nothing of its own. */

export { cachedModels, deleteModel, deviceReport, loadModel } from "./load.js";
export type { LoadOptions, ModelSource, NamedFile } from "./load.js";
export type { GenerateOptions, Model, RenderChatOptions } from "./model.js";
export type { Generation } from "./generation.js";
export { JerboaError } from "./errors.js";
export type { JerboaErrorCode } from "./errors.js";
export { similarity } from "./embeddings.js";
export type {
  CreateEmbeddingResponse, EmbeddingCreateParams, Embeddings, EmbedOptions, Ranked, RerankOptions,
} from "./embeddings.js";
export type { ChatMessage, TextPart, Tool, ToolCall } from "./messages.js";
export type {
  Chat, ChatCompletion, ChatCompletionChunk, ChatCompletionCreateParams, ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming, ChatDelta, ChatLogprobs, ChatStream, ChatTokenLogprob, Completions, CompletionUsage, FinishReason,
  RequestOptions, Timings,
} from "./chat.js";
export type {
  CachedModel, CachedSource, ChosenLogprob, DeviceReport, EngineInfo, GenerationEvent, GenerationResult, LoadProgress, Measurement, MeasureOptions, MemoryUse, ModelInfo, Overflow, Speculation, TokenLogprob,
} from "./contract.js";
