/** Converts conversations from OpenAI's format to the input of chat templates. */

import { describe, MAX_ITEMS } from "./check.js";
import { invalidRequest, type JerboaError } from "./errors.js";
import { plainJson } from "./plain-json.js";
import type { UnresolvedImagePart, ImageSource } from "./images.js";
import type { UnresolvedVideoPart, VideoSource } from "./video.js";

/** A text part of a message. */
export interface TextPart {
  type: "text";
  text: string;
}

/** An image in OpenAI's format: a URL that the page can fetch, or a `data:` URL. */
export interface ImageUrlPart {
  type: "image_url";
  /** `detail` changes nothing: the model's own settings choose the size. */
  image_url: { url: string; detail?: "auto" | "low" | "high" | "original" };
}

/** An image as an object of the page. */
export interface ImagePart {
  type: "image";
  image: ImageSource;
}

/**
 * A video at a URL, analogous to OpenAI's images. `fps` frames per second are sampled, by default as the model's
 * settings say.
 */
export interface VideoUrlPart {
  type: "video_url";
  video_url: { url: string; fps?: number };
}

/** A video object, or its frames: `fps` of them per second (2 by default), or at `timestamps` in seconds. */
export type VideoPart =
  | { type: "video"; video: VideoSource; fps?: number }
  | { type: "video"; frames: ImageSource[]; fps?: number; timestamps?: number[] };

/** A refusal of OpenAI's models; treated as text. */
export interface RefusalPart {
  type: "refusal";
  refusal: string;
}

/** OpenAI's parts for sound and files; refused. */
export type UnsupportedPart = { type: "input_audio"; input_audio: object } | { type: "file"; file: object };

/** A call of a custom tool; refused. */
export interface CustomToolCall {
  id: string;
  type: "custom";
  custom: { name: string; input: string };
}

/** A function call that the model requested. */
export interface ToolCall {
  id: string;
  type: "function";
  /** `arguments` is a JSON string. */
  function: { name: string; arguments: string };
}

/** A function that the model may call. */
export interface Tool {
  type: "function";
  function: { name: string; description?: string; parameters?: Record<string, unknown>; strict?: boolean | null };
}

/** An answer of the model. Its reasoning is given back to the chat template, which keeps or drops it. */
export interface AssistantMessage {
  role: "assistant";
  content?: string | (TextPart | RefusalPart)[] | null;
  refusal?: string | null;
  tool_calls?: (ToolCall | CustomToolCall)[];
  name?: string;
  /** Refused unless null, like `function_call`. */
  audio?: object | null;
  function_call?: object | null;
  reasoning_content?: string | null;
  /** Another name of `reasoning_content`. */
  reasoning?: string | null;
}

/** One message of a conversation. */
export type ChatMessage =
  | { role: "system" | "developer" | "user"; content: string | (TextPart | ImageUrlPart | ImagePart | VideoUrlPart | VideoPart | UnsupportedPart)[]; name?: string }
  | AssistantMessage
  | { role: "tool"; content: string | (TextPart | ImageUrlPart | ImagePart | VideoUrlPart | VideoPart | UnsupportedPart)[]; tool_call_id?: string; name?: string }
  /** OpenAI's predecessor of `tool`; refused. */
  | { role: "function"; content: string | null; name: string };

/** Template variables that the request sets by fields of its own, in both spellings. */
const RESERVED_VARIABLES = ["messages", "tools", "documents", "add_generation_prompt", "addGenerationPrompt", "continue_final_message", "continueFinalMessage"];

/** Refuses template variables that would replace fields of the request. */
export function requireFreeVariables(where: string, field: string, variables: object | undefined): void {
  const taken = RESERVED_VARIABLES.find((name) => variables && Object.hasOwn(variables, name));
  if (taken) throw invalidRequest(`${where}: '${field}' must not contain '${taken}', which the request sets itself. ${taken === "documents" ? "Write the documents into a message." : `Pass it as a field of the request.`}`);
}

const ROLES = ["system", "developer", "user", "assistant", "tool"];

/**
 * Validates a conversation and converts it to what templates expect: text content, or parts when there are images; role
 * `system` for `developer`; tool arguments as objects. `takes` lists the model's input types.
 */
export function engineMessages(where: string, messages: ChatMessage[], takes: readonly string[] = []): unknown[] {
  if (!Array.isArray(messages) || messages.length === 0 || messages.length > MAX_ITEMS) throw invalidRequest(`${where}: 'messages' must be an array of at least one message and at most ${MAX_ITEMS}.`);
  return Array.from(messages, (message, i) => {
    const at = `${where}: messages[${i}]`;
    if (typeof message !== "object" || message === null) throw invalidRequest(`${at} must be an object with role and content, not ${describe(message)}.`);
    if (message.role === "function") throw invalidRequest(`${at}: role 'function' is not supported. Use role 'tool' with 'tool_call_id'.`);
    if (!ROLES.includes(message.role)) throw invalidRequest(`${at}: 'role' must be one of ${ROLES.join(", ")}, not ${describe(message.role)}.`);
    const calls = message.role === "assistant" ? message.tool_calls : undefined;
    if (message.role === "assistant" && (message.audio || message.function_call)) throw invalidRequest(`${at}: '${message.audio ? "audio" : "function_call"}' is not supported. ${message.audio ? "Give the answer's text as 'content'." : "Use 'tool_calls'."}`);
    const declined = message.role === "assistant" ? message.refusal : undefined;
    const content = message.content ?? declined ?? (calls?.length ? "" : undefined);
    if (content === undefined) throw invalidRequest(`${at} has no 'content'. Give it a string, or an array of parts.`);
    const role = message.role === "developer" ? "system" : message.role;
    const { refusal: _, content: __, ...others } = { refusal: undefined, ...message };
    const name = `messages[${i}]`;
    const rest = { ...plainJson(where, name, others), role, content: contentOf(at, content, takes) };
    return calls ? { ...rest, tool_calls: toolCalls(where, `${name}.tool_calls`, calls) } : rest;
  });
}

type MessagePart = TextPart | RefusalPart | ImageUrlPart | ImagePart | VideoUrlPart | VideoPart | UnsupportedPart;
type EngineMessagePart = TextPart | UnresolvedImagePart | UnresolvedVideoPart;

/** The text of a message, or its parts if it contains images. */
function contentOf(at: string, content: string | MessagePart[], takes: readonly string[]): string | EngineMessagePart[] {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw invalidRequest(`${at}: 'content' must be a string or an array of parts, not ${describe(content)}.`);
  if (content.length > MAX_ITEMS) throw invalidRequest(`${at}: 'content' has ${content.length} parts; the limit is ${MAX_ITEMS}.`);
  const parts = Array.from(content, (part, i) => enginePart(`${at}: content[${i}]`, part, takes));
  if (parts.some(({ type }) => type !== "text")) return parts;
  return parts.map((part) => (part as TextPart).text).join("");
}

function enginePart(at: string, part: MessagePart, takes: readonly string[]): EngineMessagePart {
  const lacks = (what: string): JerboaError => invalidRequest(`${at}: a part of type '${part.type}' requires ${what}.`);
  if (part?.type === "text" || part?.type === "refusal") {
    const text: unknown = part.type === "text" ? part.text : part.refusal;
    if (typeof text === "string") return { type: "text", text };
    throw lacks(`'${part.type}': a string, not ${describe(text)}`);
  }
  const acceptsImages = takes.includes("image");
  if (acceptsImages && part?.type === "image") {
    if (part.image) return { type: "image", source: part.image };
    throw lacks("'image'");
  }
  if (acceptsImages && part?.type === "image_url") {
    const { url, detail } = typeof part.image_url === "string" ? { url: part.image_url as string } : { detail: undefined, ...part.image_url };
    if (!["auto", "low", "high", "original", undefined, null].includes(detail)) throw invalidRequest(`${at}: 'detail' must be 'auto', 'low', 'high' or 'original', not ${describe(detail)}.`);
    if (typeof url === "string" && url) return { type: "image", source: url };
    throw lacks("image_url: { url }");
  }
  const acceptsVideos = takes.includes("video");
  if (acceptsVideos && part?.type === "video_url") {
    const { url, ...rest } = part.video_url ?? {};
    if (typeof url === "string" && url) return { type: "video", source: url, ...rest };
    throw lacks("video_url: { url }");
  }
  if (acceptsVideos && part?.type === "video") {
    const { type, ...rest } = part;
    if ("video" in rest && rest.video) return { type, source: rest.video, ...(rest.fps === undefined ? {} : { fps: rest.fps }) };
    if ("frames" in rest && Array.isArray(rest.frames) && rest.frames.length > 0) return { type, ...rest };
    throw lacks("'video' or 'frames'");
  }
  throw invalidRequest(`${at}: this model does not support parts of type ${describe(part?.type)}. Supported: ${acceptsVideos ? "text, images and videos" : acceptsImages ? "text and images" : "text"}.`);
}

/** The calls of a message with parsed arguments. */
function toolCalls(where: string, field: string, given: (ToolCall | CustomToolCall)[]): unknown[] {
  const calls = plainJson(where, field, given);
  if (!Array.isArray(calls)) throw invalidRequest(`${where}: '${field}' must be an array, not ${describe(calls)}.`);
  return calls.map((call: ToolCall | CustomToolCall | null, i) => {
    if (call?.type === "custom") throw invalidRequest(`${where}: '${field}[${i}]' is a call of type 'custom', which is not supported. Use functions.`);
    if (typeof call !== "object" || call === null) throw invalidRequest(`${where}: '${field}[${i}]' must be an object with function: { name, arguments }, not ${describe(call)}.`);
    if (typeof call.function?.name !== "string" || call.function.arguments === undefined) throw invalidRequest(`${where}: '${field}[${i}]' requires function: { name, arguments }, both of them strings.`);
    return { ...call, function: { ...call.function, arguments: plainJson(where, `${field}[${i}].function.arguments`, parsedArguments(call)) } };
  });
}

/** Parses tool arguments: templates format the object themselves. Text that is not JSON passes unchanged. */
function parsedArguments(call: ToolCall): unknown {
  try {
    return typeof call.function?.arguments === "string" ? JSON.parse(call.function.arguments) : call.function?.arguments;
  } catch {
    return call.function.arguments;
  }
}
