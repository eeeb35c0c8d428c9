/**
 * React hooks: models that load once, and calls that end with their component.
 *
 * @module jerboa/react
 */
"use client";

export { preloadModel, useModel } from "./use-model.js";
export type { UseModelOptions, UseModelResult } from "./use-model.js";
export { useChat } from "./use-chat.js";
export type { ChatTool, ConversationMessage, UseChatOptions, UseChatResult } from "./use-chat.js";
export { useCompletion, useEmbedding, useObject, useSpeech, useTranscription } from "./use-calls.js";
export type { PartialObject, UseCompletionResult, UseEmbeddingResult, UseObjectOptions, UseObjectResult, UseSpeechResult, UseTranscriptionResult } from "./use-calls.js";
export type { CallState, CallStatus, ModelOptions } from "./call.js";
export type { LazySource, SharedLoadOptions } from "../integrations/lazy-model.js";
export type { JsonSchema, StandardResult, StandardSchema } from "../integrations/schema.js";
