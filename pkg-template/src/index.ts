/**
 * The public API of the package.
 *
 * @module jerboa
 */

export { cachedModels, deleteModel, deleteSavedSession, deviceReport, diagnose, loadModel, savedSessions } from "./load.js";
export { configure } from "./backend.js";
export type { AssetUrls } from "./backend.js";
export { createFetch } from "./fetch.js";
export type { ServedModel, ServedModels } from "./fetch.js";
export type { LoadOptions } from "./load.js";
export type { ModelSource, NamedFile } from "./model-source.js";
export type { GenerateOptions, GrammarOption } from "./generate.js";
export type { AdapterOptions, EncodedImage, Model, RenderChatOptions, SessionOptions, TokenizeOptions } from "./model.js";
export type { ImageSource } from "./images.js";
export type { VideoSource } from "./video.js";
export type { Session } from "./session.js";
export type { Responses } from "./responses.js";
export type {
  DeletedResponse, InputTokenCount, ModelResponse, ResponseCreateParams, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming, ResponseFunctionCall,
  ResponseFunctionCallOutput, ResponseFunctionTool, ResponseInputItem, ResponseInputMessage, ResponseInputPart, ResponseItemList, ResponseItemReference,
  ResponseItemStatus, ResponseLogprob, ResponseOutputItem, ResponseOutputMessage, ResponseOutputText, ResponseReasoning, ResponseStream,
  ResponseStreamEvent, ResponseTextFormat, ResponseToolChoice, ResponseUsage,
} from "./responses-types.js";
export type { LogitsProcessor, StepOptions, StoppingCriterion } from "./steps.js";
export type { Generation, GenerationGroup, GroupEvent, GroupPiece } from "./generation.js";
export { JerboaError } from "./errors.js";
export type { Advice, JerboaErrorCode } from "./errors.js";
export { deleteForeignStore, persistStorage, storageReport } from "./storage.js";
export type { ForeignStore, StorageReport } from "./storage.js";
export type {
  ChatFields, CompletionFields, DeviceFeatures, EmbedFields, GenerateFields, ListenFields, LoadFields, RerankFields, SpeechFields, TranscribeFields, TranscriptionFields,
} from "./schema.js";
export type { SavedSession } from "./saved-sessions.js";
export { similarity } from "./embeddings.js";
export type {
  CreateEmbeddingResponse, EmbeddingCreateParams, Embeddings, EmbedInput, EmbedOptions, RankedDocument, RerankOptions,
} from "./embeddings.js";
export type { AssistantMessage, ChatMessage, CustomToolCall, ImagePart, ImageUrlPart, RefusalPart, TextPart, Tool, ToolCall, UnsupportedPart, VideoPart, VideoUrlPart } from "./messages.js";
export type {
  Chat, ChatCompletion, ChatCompletionChunk, ChatCompletionCreateParams, ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming, ChatLogprobs, ChatStream, ChatTokenLogprob, Completions, CompletionUsage, FinishReason,
  CustomTool, GenerationRequestOptions, ReasoningEffort, RequestOptions, ResponseFormat, StreamOptions, Timings,
} from "./chat.js";
export type { ToolChoice } from "./tool-choice.js";
export type { ChatDelta, ToolCallDelta } from "./answer.js";
export type { Audio } from "./audio.js";
export type { AsyncQueue } from "./async-queue.js";
export type { LiveTranscript, LiveTranscription, ListenOptions } from "./listen.js";
export type { AudioInput } from "./audio-input.js";
export type { Speech, SpeechChunk, SpeechCreateParams } from "./speech.js";
export type { TranscribeOptions, TranscriptionCreateParams, TranscriptionFormat, TranscriptionResult, Transcriptions, TranscriptionStreamEvent } from "./transcribe.js";
export type { TextCompletion, TextCompletionChunk, TextCompletionCreateParams, TextCompletions, TextCompletionStream, TextLogprobs } from "./completions.js";
export type {
  AnswerPart, CachedModel, CachedSource, DeviceCheck, ChosenLogprob, DeviceReport, EngineInfo, GenerationEvent, GenerationResult, SegmentEvent, KernelProfile, KernelVariant, LoadProgress, LoadTimes, Measurement, MeasureOptions, MemoryUse, Paging,
  ModelInfo, Overflow, PartialEvent, EncodedImageInfo, Speculation, TokenLogprob, Transcript, Tuning,
} from "./contract.js";
