/** Hooks for single calls: completions, objects, embeddings, transcription, speech. */

import { useCallback, useState } from "react";
import type { AudioInput, ChatCompletionCreateParams, EmbedInput, EmbedOptions, FinishReason, GenerateOptions, ListenOptions, SpeechCreateParams, Transcript, TranscribeOptions } from "../index.js";
import { parsePartialJson } from "../integrations/partial-json.js";
import { type JsonSchema, jsonSchemaOf, parseAnswer, type StandardSchema, validated } from "../integrations/schema.js";
import type { LazySource } from "../integrations/lazy-model.js";
import { type Call, type CallState, type ModelOptions, useCall } from "./call.js";

/** The part of a call that a hook returns. */
function stateOf({ run: _, abort: __, ...state }: Call): CallState {
  return state;
}

/** What {@link useCompletion} returns. */
export interface UseCompletionResult extends CallState {
  /** The text so far. */
  completion: string;
  /** Continues a prompt; resolves with the whole text, or undefined if it was stopped or failed. */
  complete: (prompt: string, options?: Omit<GenerateOptions, "signal">) => Promise<string | undefined>;
}

/** Continues text with a model. */
export function useCompletion(model: LazySource, options?: ModelOptions): UseCompletionResult {
  const call = useCall(model, options);
  const { run } = call;
  const [completion, show] = useState("");
  const complete = useCallback<UseCompletionResult["complete"]>(
    (prompt, given) => {
      show("");
      return run(async (model, signal) => {
        let text = "";
        for await (const piece of model.generate(prompt, { ...given, signal })) show((text += piece));
        return text;
      });
    },
    [run],
  );
  return { ...stateOf(call), completion, complete };
}

/** Options of {@link useObject}. */
export interface UseObjectOptions<T> extends ModelOptions {
  /** What the object must match: a JSON Schema, or a schema of Zod 4.2 or another Standard Schema library. */
  schema: JsonSchema | StandardSchema<T>;
  /** A system prompt. */
  system?: string;
  /** Further fields of the request. */
  request?: Omit<Partial<ChatCompletionCreateParams>, "messages" | "stream" | "response_format" | "n">;
}

/** A value of which any part may still be missing. */
export type PartialObject<T> = T extends readonly (infer E)[] ? PartialObject<E>[] : T extends object ? { [K in keyof T]?: PartialObject<T[K]> } : T;

/** What {@link useObject} returns. */
export interface UseObjectResult<T> extends CallState {
  /** The object generated so far; parts may be missing. */
  object: PartialObject<T> | undefined;
  /** Generates an object; resolves with it, or with undefined if the call was stopped or failed. */
  submit: (prompt: string) => Promise<T | undefined>;
}

/** Generates an object that matches a schema; `object` is updated while it is generated. */
export function useObject<T = unknown>(model: LazySource, { schema, system, request, ...load }: UseObjectOptions<T>): UseObjectResult<T> {
  const call = useCall(model, load);
  const { run } = call;
  const [object, show] = useState<PartialObject<T>>();
  const submit = async (prompt: string): Promise<T | undefined> => {
    show(undefined);
    return run(async (model, signal) => {
      const messages = [...(system ? [{ role: "system" as const, content: system }] : []), { role: "user" as const, content: prompt }];
      const format = { type: "json_schema" as const, json_schema: { name: "object", schema: jsonSchemaOf(schema), strict: true } };
      const stream = await model.chat.completions.create({ ...request, messages, stream: true, response_format: format }, { signal });
      let text = "";
      let finish: FinishReason | undefined;
      for await (const { choices: [choice] } of stream) {
        finish = choice?.finish_reason ?? finish;
        if (!choice?.delta.content) continue;
        text += choice.delta.content;
        show(parsePartialJson(text) as PartialObject<T> | undefined);
      }
      if (signal.aborted) return undefined;
      const made = await validated(schema, parseAnswer("useObject", text, finish));
      show(made as PartialObject<T>);
      return made;
    });
  };
  return { ...stateOf(call), object, submit };
}

/** What {@link useEmbedding} returns. */
export interface UseEmbeddingResult extends CallState {
  /** The vectors of the last call. */
  vectors: Float32Array[] | undefined;
  /** Embeds texts, and images if the model takes them; resolves with their vectors. */
  embed: (inputs: readonly EmbedInput[], options?: Omit<EmbedOptions, "signal">) => Promise<Float32Array[] | undefined>;
}

/** Embeds texts and images. */
export function useEmbedding(model: LazySource, options?: ModelOptions): UseEmbeddingResult {
  const call = useCall(model, options);
  const { run } = call;
  const [vectors, show] = useState<Float32Array[]>();
  const embed = useCallback<UseEmbeddingResult["embed"]>(
    (inputs, given) =>
      run(async (model, signal) => {
        const made = await model.embed(inputs, { ...given, signal });
        show(made);
        return made;
      }),
    [run],
  );
  return { ...stateOf(call), vectors, embed };
}

/** What {@link useTranscription} returns. */
export interface UseTranscriptionResult extends CallState {
  /** The text so far; its end may still change while the call runs. */
  text: string;
  /** The complete transcript of the last file. */
  transcript: Transcript | undefined;
  /** Transcribes a file or samples. */
  transcribe: (audio: AudioInput, options?: Omit<TranscribeOptions, "signal" | "onSegment" | "onPartial">) => Promise<Transcript | undefined>;
  /** Transcribes a microphone until `stop`, or until the stream ends; resolves with the text. */
  listen: (stream: MediaStream, options?: Omit<ListenOptions, "signal">) => Promise<string | undefined>;
}

/** Transcribes audio, from files or live. */
export function useTranscription(model: LazySource, options?: ModelOptions): UseTranscriptionResult {
  const call = useCall(model, options);
  const { run } = call;
  const [text, show] = useState("");
  const [transcript, setTranscript] = useState<Transcript>();
  const transcribe = useCallback<UseTranscriptionResult["transcribe"]>(
    (audio, given) => {
      show("");
      setTranscript(undefined);
      return run(async (model, signal) => {
        let settled = "";
        const join = (more: string): string => [settled, more.trim()].filter(Boolean).join(" ");
        const onSegment = ({ text }: { text: string }): void => show((settled = join(text)));
        const made = await model.transcribe(audio, { ...given, signal, onSegment, onPartial: ({ text }) => show(join(text)) });
        show(made.text);
        setTranscript(made);
        return made;
      });
    },
    [run],
  );
  const listen = useCallback<UseTranscriptionResult["listen"]>(
    (stream, given) => {
      show("");
      return run(async (model, signal, onStop) => {
        let settled = "";
        const live = model.listen(stream, { ...given, signal });
        onStop(() => live.stop());
        for await (const { text, final } of live) {
          const all = [settled, text.trim()].filter(Boolean).join(" ");
          if (final) settled = all;
          show(all);
        }
        return settled;
      });
    },
    [run],
  );
  return { ...stateOf(call), text, transcript, transcribe, listen };
}

/** What {@link useSpeech} returns. */
export interface UseSpeechResult extends CallState {
  /** The audio of the last call, a WAV file. */
  audio: Blob | undefined;
  /** Synthesizes speech; resolves with a WAV file. */
  speak: (text: string, params?: Omit<SpeechCreateParams, "input" | "stream" | "response_format">) => Promise<Blob | undefined>;
}

/** Synthesizes speech. */
export function useSpeech(model: LazySource, options?: ModelOptions): UseSpeechResult {
  const call = useCall(model, options);
  const { run } = call;
  const [audio, show] = useState<Blob>();
  const speak = useCallback<UseSpeechResult["speak"]>(
    (input, params) =>
      run(async (model, signal) => {
        const made = await model.audio.speech.create({ ...params, input, stream: false }, { signal });
        const blob = await made.blob();
        show(blob);
        return blob;
      }),
    [run],
  );
  return { ...stateOf(call), audio, speak };
}
