/** Types of OpenAI's Responses API: requests, items, responses and stream events. */

import type { ReasoningEffort, Timings } from "./chat.js";
import type { Overflow, Speculation } from "./contract.js";
import type { GrammarOption } from "./generate.js";

/** A part of an input message. `input_file` and `file_id` are refused. */
export type ResponseInputPart =
  | { type: "input_text" | "output_text"; text: string }
  | { type: "input_image"; image_url?: string | null; file_id?: string | null; detail?: string | null }
  | { type: "refusal"; refusal: string }
  | { type: "input_file" };

/** A message. */
export interface ResponseInputMessage {
  type?: "message";
  role: "user" | "assistant" | "system" | "developer";
  content: string | ResponseInputPart[];
  id?: string;
  status?: string;
}

/** The result of a function call. */
export interface ResponseFunctionCallOutput {
  type: "function_call_output";
  call_id?: string | null;
  output: string | ResponseInputPart[];
  id?: string | null;
  status?: string | null;
}

/** A reference to an item of a stored response. */
export interface ResponseItemReference {
  type?: "item_reference" | null;
  id: string;
}

/** Items of OpenAI's own tools; refused. */
export interface UnsupportedResponseItem {
  type:
    | "additional_tools" | "apply_patch_call" | "apply_patch_call_output" | "code_interpreter_call" | "compaction" | "compaction_trigger"
    | "computer_call" | "computer_call_output" | "configuration_update" | "custom_tool_call" | "custom_tool_call_output" | "file_search_call"
    | "image_generation_call" | "local_shell_call" | "local_shell_call_output" | "mcp_approval_request" | "mcp_approval_response" | "mcp_call"
    | "mcp_list_tools" | "program" | "program_output" | "shell_call" | "shell_call_output" | "tool_search_call" | "tool_search_output"
    | "web_search_call";
}

/** An item of `input`. */
export type ResponseInputItem =
  | ResponseInputMessage
  | ResponseFunctionCall
  | ResponseFunctionCallOutput
  | ResponseReasoning
  | ResponseItemReference
  | UnsupportedResponseItem;

/** A function that the model may call. */
export interface ResponseFunctionTool {
  type: "function";
  name: string;
  description?: string | null;
  parameters?: Record<string, unknown> | null;
  strict?: boolean | null;
}

/** OpenAI's own tools; refused. */
export interface UnsupportedResponseTool {
  type:
    | "apply_patch" | "code_interpreter" | "computer" | "computer_use_preview" | "custom" | "file_search" | "image_generation" | "local_shell" | "mcp"
    | "namespace" | "programmatic_tool_calling" | "shell" | "tool_search" | "web_search" | "web_search_2025_08_26" | "web_search_preview"
    | "web_search_preview_2025_03_11";
}

/** The format of the answer. */
export type ResponseTextFormat =
  | { type: "text" }
  | { type: "json_object" }
  | { type: "json_schema"; name: string; schema: Record<string, unknown>; description?: string; strict?: boolean | null };

/** Which tools the model may call. */
export type ResponseToolChoice =
  | "auto"
  | "none"
  | "required"
  | { type: "function"; name: string }
  | { type: "allowed_tools"; mode: "auto" | "required"; tools: Record<string, unknown>[] };

/** A request of `responses.create`. */
export interface ResponseCreateParams {
  /** The text or the items to answer. */
  input?: string | ResponseInputItem[];
  /** A system message for this response. It is not carried over by `previous_response_id`. */
  instructions?: string | null;
  /** Continues a stored response. */
  previous_response_id?: string | null;
  /** Keeps the response for `retrieve` and `previous_response_id`, in this page; true by default. */
  store?: boolean | null;
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  stream?: boolean | null;
  stream_options?: { include_obfuscation?: boolean } | null;
  max_output_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  /** Alternatives per token; adds log-probabilities to the text. */
  top_logprobs?: number | null;
  text?: { format?: ResponseTextFormat; verbosity?: "low" | "medium" | "high" | null };
  tools?: (ResponseFunctionTool | UnsupportedResponseTool)[];
  tool_choice?: ResponseToolChoice | { type: UnsupportedResponseTool["type"] | "computer_use" };
  /** `effort` as in `chat.completions`; the other members are ignored. */
  reasoning?: { effort?: ReasoningEffort | null; summary?: string | null } | null;
  /** `auto` drops the oldest turns of a conversation that does not fit. */
  truncation?: "auto" | "disabled" | null;
  /** Only `message.output_text.logprobs` has an effect. */
  include?: string[] | null;
  metadata?: Record<string, string> | null;
  user?: string;
  service_tier?: string | null;
  safety_identifier?: string | null;
  prompt_cache_key?: string | null;
  prompt_cache_retention?: string | null;
  prompt_cache_options?: object;
  parallel_tool_calls?: boolean | null;
  max_tool_calls?: number | null;
  /** Only false. */
  background?: boolean | null;
  /** Refused, like the fields after it. */
  conversation?: string | object | null;
  prompt?: object | null;
  context_management?: object[] | null;
  moderation?: object | null;
  image?: object;
  access_programs?: object;
  /** Options of `chat.completions`; extensions of OpenAI's API. */
  seed?: number | null;
  stop?: string | string[] | null;
  logit_bias?: Record<string, number> | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  repetition_penalty?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  typical_p?: number | null;
  overflow?: Overflow | null;
  speculation?: Speculation | null;
  enable_thinking?: boolean | null;
  reasoning_budget?: number | null;
  chat_template_kwargs?: Record<string, unknown> | null;
  grammar?: GrammarOption | null;
}

/** A request with `stream: true`. */
export interface ResponseCreateParamsStreaming extends ResponseCreateParams {
  stream: true;
}

/** A request without streaming. */
export interface ResponseCreateParamsNonStreaming extends ResponseCreateParams {
  stream?: false | null;
}

/** A token with its log-probability. */
export interface ResponseLogprob {
  token: string;
  bytes: number[];
  logprob: number;
  top_logprobs: { token: string; bytes: number[]; logprob: number }[];
}

/** Text of an answer. */
export interface ResponseOutputText {
  type: "output_text";
  text: string;
  annotations: [];
  logprobs?: ResponseLogprob[];
}

/** How far an item is. */
export type ResponseItemStatus = "in_progress" | "completed" | "incomplete";

/** The text of an answer, as an item. */
export interface ResponseOutputMessage {
  type: "message";
  id: string;
  role: "assistant";
  status: ResponseItemStatus;
  content: ResponseOutputText[];
}

/** A function call that the model requested. `arguments` is a JSON string. */
export interface ResponseFunctionCall {
  type: "function_call";
  id?: string;
  call_id: string;
  name: string;
  arguments: string;
  status?: ResponseItemStatus;
}

/** The model's reasoning. */
export interface ResponseReasoning {
  type: "reasoning";
  id: string;
  summary: { type: "summary_text"; text: string }[];
  content?: { type: "reasoning_text"; text: string }[];
  encrypted_content?: string | null;
  status?: ResponseItemStatus;
}

/** An item of a response. */
export type ResponseOutputItem = ResponseOutputMessage | ResponseFunctionCall | ResponseReasoning;

/** Token counts of a response. */
export interface ResponseUsage {
  input_tokens: number;
  input_tokens_details: { cached_tokens: number; cache_write_tokens: number };
  output_tokens: number;
  output_tokens_details: { reasoning_tokens: number };
  total_tokens: number;
}

/** A response. */
export interface ModelResponse {
  id: string;
  object: "response";
  created_at: number;
  completed_at: number | null;
  status: "in_progress" | "completed" | "incomplete" | "failed" | "cancelled";
  error: { code: "server_error" | "invalid_prompt"; message: string } | null;
  incomplete_details: { reason: "max_output_tokens" } | null;
  instructions: string | null;
  max_output_tokens: number | null;
  metadata: Record<string, string> | null;
  model: string;
  output: ResponseOutputItem[];
  /** The text of all messages in `output`. */
  output_text: string;
  parallel_tool_calls: boolean;
  previous_response_id: string | null;
  reasoning: { effort: ReasoningEffort | null; summary: null };
  store: boolean;
  temperature: number | null;
  text: { format: ResponseTextFormat };
  tool_choice: ResponseToolChoice;
  tools: (ResponseFunctionTool & { parameters: Record<string, unknown> | null; strict: boolean | null })[];
  top_logprobs: number | null;
  top_p: number | null;
  truncation: "auto" | "disabled";
  access_programs: null;
  usage?: ResponseUsage;
  /** An extension of OpenAI's API. */
  timings?: Timings;
}

/** The place of an event's text. */
interface InItem {
  item_id: string;
  output_index: number;
}

/** An event of a streamed response, before it has a number. */
export type UnnumberedResponseEvent =
  | { type: "response.created" | "response.in_progress"; response: ModelResponse }
  | { type: "response.completed"; response: ModelResponse }
  | { type: "response.incomplete"; response: ModelResponse }
  | { type: "response.failed"; response: ModelResponse }
  | { type: "response.output_item.added" | "response.output_item.done"; output_index: number; item: ResponseOutputItem }
  | (InItem & {
      type: "response.content_part.added" | "response.content_part.done";
      content_index: number;
      part: ResponseOutputText | { type: "reasoning_text"; text: string };
    })
  | (InItem & { type: "response.output_text.delta"; content_index: number; delta: string; logprobs: ResponseLogprob[] })
  | (InItem & { type: "response.output_text.done"; content_index: number; text: string; logprobs: ResponseLogprob[] })
  | (InItem & { type: "response.reasoning_text.delta"; content_index: number; delta: string })
  | (InItem & { type: "response.reasoning_text.done"; content_index: number; text: string })
  | (InItem & { type: "response.function_call_arguments.delta"; delta: string })
  | (InItem & { type: "response.function_call_arguments.done"; name: string; arguments: string });

/** An event of a streamed response. */
export type ResponseStreamEvent = UnnumberedResponseEvent & { sequence_number: number };

/** A streamed response: an async iterable. `abort()` or leaving the loop stops it. */
export interface ResponseStream extends AsyncIterable<ResponseStreamEvent> {
  /** Stops the response; `response.incomplete` with the status `cancelled` follows. */
  abort(): void;
}

/** The items that a response answered. */
export interface ResponseItemList {
  object: "list";
  data: (ResponseInputItem & { id: string })[];
  first_id: string | null;
  last_id: string | null;
  has_more: false;
}

/** The tokens of a request's input. */
export interface InputTokenCount {
  object: "response.input_tokens";
  input_tokens: number;
}

/** The confirmation that a response was deleted. */
export interface DeletedResponse {
  id: string;
  object: "response";
  deleted: true;
}
