/** Events with the timings of loads and requests, in the names of OpenTelemetry's GenAI conventions, and log lines. */

import { JerboaError, loadModel, type LoadOptions, type Model, type ModelSource } from "../index.js";

/** The value of an attribute. */
export type AttributeValue = string | number | boolean | string[];

/** A load, a request or a decision of the router that has ended. */
export interface TelemetryEvent {
  /** `gen_ai.client.operation` for a request, `jerboa.model.load`, or `jerboa.route` for a decision of a router. */
  name: "gen_ai.client.operation" | "jerboa.model.load" | "jerboa.route";
  /** When it began, in milliseconds since 1970. */
  timestamp: number;
  /** Seconds that it took. */
  duration: number;
  /**
   * Attributes such as `gen_ai.operation.name`, `gen_ai.request.model`, `gen_ai.usage.input_tokens`,
   * `gen_ai.server.time_to_first_token` (seconds) and `error.type`. Texts of prompts and answers are never among them.
   */
  attributes: Record<string, AttributeValue>;
}

/** How much is logged: each level includes those before it. */
export type LogLevel = "silent" | "error" | "warn" | "info" | "debug";

/** Options of everything that reports events. */
export interface TelemetryOptions {
  /** Receives each event once it has ended. */
  onEvent?: (event: TelemetryEvent) => void;
  /** `warn` by default: failures, and every request that leaves this device. */
  logLevel?: LogLevel;
  /** Where log lines go; the console by default. */
  log?: (level: Exclude<LogLevel, "silent">, message: string) => void;
}

const LEVELS: LogLevel[] = ["silent", "error", "warn", "info", "debug"];

/** Reports events and log lines as the options say. */
export class Reporter {
  readonly #options: TelemetryOptions;

  constructor(options: TelemetryOptions) {
    this.#options = options;
    if (options.logLevel !== undefined && !LEVELS.includes(options.logLevel)) throw new JerboaError("request", `'logLevel' must be one of ${LEVELS.join(", ")}, not '${String(options.logLevel)}'.`);
  }

  log(level: Exclude<LogLevel, "silent">, message: string): void {
    const { logLevel = "warn", log } = this.#options;
    if (LEVELS.indexOf(level) > LEVELS.indexOf(logLevel)) return;
    if (log) log(level, message);
    else console[level](`jerboa: ${message}`);
  }

  /** Reports an event that began at `timestamp`. */
  event(name: TelemetryEvent["name"], timestamp: number, attributes: Record<string, AttributeValue | undefined>): void {
    const known = Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined)) as TelemetryEvent["attributes"];
    const event: TelemetryEvent = { name, timestamp, duration: (Date.now() - timestamp) / 1000, attributes: known };
    const failure = known["error.type"];
    this.log(failure ? "error" : "info", `${name} ${String(known["gen_ai.request.model"] ?? "")} ${event.duration.toFixed(2)} s${failure ? ` failed: ${String(failure)}` : ""}`);
    this.log("debug", JSON.stringify(event));
    try {
      this.#options.onEvent?.(event);
    } catch (thrown) {
      // A listener's failure must not fail the request.
      this.log("error", `onEvent threw: ${String(thrown)}`);
    }
  }
}

/**
 * A `loadModel` that reports each load.
 *
 * ```js
 * const load = observeLoads({ onEvent: (event) => console.log(event) });
 * const model = await load("mlx-community/Qwen3-0.6B-4bit");
 * ```
 */
export function observeLoads(options: TelemetryOptions): (source: ModelSource, load?: LoadOptions) => Promise<Model> {
  const reporter = new Reporter(options);
  return async (source, load) => {
    const start = Date.now();
    const name = typeof source === "string" || source instanceof URL ? String(source) : "files";
    const head = { "gen_ai.provider.name": "jerboa", "gen_ai.request.model": name };
    try {
      const model = await loadModel(source, load);
      const { load: times, bytes, device, precision } = model.info;
      reporter.event("jerboa.model.load", start, {
        ...head,
        "gen_ai.response.model": model.info.model,
        "jerboa.load.bytes": times?.bytes,
        "jerboa.load.reading_seconds": times && times.readingMs / 1000,
        "jerboa.load.compiling_seconds": times && times.compilingMs / 1000,
        "jerboa.load.tuning_seconds": times && times.tuningMs / 1000,
        "jerboa.model.weight_bytes": bytes.weights,
        "jerboa.model.precision": precision,
        "jerboa.device.vendor": device.vendor,
      });
      return model;
    } catch (thrown) {
      reporter.event("jerboa.model.load", start, { ...head, "error.type": JerboaError.from(thrown).code });
      throw thrown;
    }
  };
}

/** Operations by path, in OpenTelemetry's names where it has one. */
const OPERATIONS: [string, string][] = [
  ["/chat/completions", "chat"], ["/completions", "text_completion"], ["/responses", "generate_content"], ["/embeddings", "embeddings"], ["/rerank", "rerank"],
  ["/audio/transcriptions", "transcribe"], ["/audio/translations", "translate"], ["/audio/speech", "speech"],
];

/** Fields of a request, and their attributes. */
const REQUEST_ATTRIBUTES: Record<string, string> = {
  model: "gen_ai.request.model", temperature: "gen_ai.request.temperature", top_p: "gen_ai.request.top_p", top_k: "gen_ai.request.top_k", max_tokens: "gen_ai.request.max_tokens",
  max_completion_tokens: "gen_ai.request.max_tokens", max_output_tokens: "gen_ai.request.max_tokens", seed: "gen_ai.request.seed", n: "gen_ai.request.choice.count",
  frequency_penalty: "gen_ai.request.frequency_penalty", presence_penalty: "gen_ai.request.presence_penalty",
};

/** Runs a request and reports it when its answer has ended. */
export async function observed(reporter: Reporter, request: Request, body: Record<string, unknown>, head: Record<string, AttributeValue>, run: () => Promise<Response>): Promise<Response> {
  const start = Date.now();
  const { pathname } = new URL(request.url);
  const operation = OPERATIONS.find(([path]) => pathname.endsWith(path))?.[1];
  // Lists of models and stored responses are not generations.
  if (!operation || request.method !== "POST") return run();
  const attributes: Record<string, AttributeValue | undefined> = { "gen_ai.operation.name": operation, ...head };
  for (const [field, name] of Object.entries(REQUEST_ATTRIBUTES)) {
    const value = body[field];
    if (typeof value === "string" || typeof value === "number") attributes[name] = value;
  }
  const end = (more: Record<string, AttributeValue | undefined>): void => reporter.event("gen_ai.client.operation", start, { ...attributes, ...more });
  let response: Response;
  try {
    response = await run();
  } catch (thrown) {
    end({ "error.type": request.signal.aborted ? "aborted" : thrown instanceof JerboaError ? thrown.code : "network" });
    throw thrown;
  }
  const type = response.headers.get("content-type") ?? "";
  if (!response.ok) {
    const failed = (await response.clone().json().catch(() => undefined)) as { error?: { code?: string; jerboa_code?: string } } | undefined;
    end({ "error.type": failed?.error?.jerboa_code ?? failed?.error?.code ?? String(response.status), "http.response.status_code": response.status });
  } else if (type.includes("event-stream") && response.body) {
    return new Response(watch(response.body, start, end), { status: response.status, headers: response.headers });
  } else if (type.includes("json")) {
    end(resultAttributes(new Answer().add((await response.clone().json()) as Chunk)));
  } else end({});
  return response;
}

/** The parts of answers and chunks that events report. */
interface Chunk {
  id?: string;
  model?: string;
  usage?: Record<string, unknown> | null;
  choices?: { finish_reason?: string | null; delta?: { content?: unknown; reasoning_content?: unknown; tool_calls?: unknown } }[];
  timings?: { prefill_ms?: number };
  response?: Chunk;
  type?: string;
  error?: { code?: string; jerboa_code?: string };
}

/** What an answer has reported so far. */
class Answer {
  id: string | undefined;
  model: string | undefined;
  usage: Record<string, unknown> | undefined;
  prefillMs: number | undefined;
  error: string | undefined;
  readonly reasons = new Set<string>();

  add(chunk: Chunk): this {
    const { id, model, usage, choices = [], timings, error } = chunk.response ?? chunk;
    this.id = id ?? this.id;
    this.model = model ?? this.model;
    this.usage = usage ?? this.usage;
    this.prefillMs = timings?.prefill_ms ?? this.prefillMs;
    if (error) this.error = error.jerboa_code ?? error.code ?? "server_error";
    for (const { finish_reason: reason } of choices) if (reason) this.reasons.add(reason);
    return this;
  }
}

function resultAttributes(answer: Answer): Record<string, AttributeValue | undefined> {
  const count = (...names: string[]): number | undefined => names.map((name) => answer.usage?.[name]).find((value) => typeof value === "number") as number | undefined;
  return {
    "gen_ai.response.id": answer.id,
    "gen_ai.response.model": answer.model,
    "gen_ai.response.finish_reasons": answer.reasons.size > 0 ? [...answer.reasons] : undefined,
    "gen_ai.usage.input_tokens": count("prompt_tokens", "input_tokens"),
    "gen_ai.usage.output_tokens": count("completion_tokens", "output_tokens"),
    "gen_ai.server.time_to_first_token": answer.prefillMs === undefined ? undefined : answer.prefillMs / 1000,
    "error.type": answer.error,
  };
}

/** Passes a stream of events on and reports it at its end. */
function watch(body: ReadableStream<Uint8Array>, start: number, end: (attributes: Record<string, AttributeValue | undefined>) => void): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const answer = new Answer();
  let rest = "";
  let first: number | undefined;
  let over = false;
  const finish = (more: Record<string, AttributeValue | undefined> = {}): void => {
    if (over) return;
    over = true;
    const result = resultAttributes(answer);
    const seconds = first === undefined ? undefined : (first - start) / 1000;
    end({ ...result, "gen_ai.server.time_to_first_token": result["gen_ai.server.time_to_first_token"] ?? seconds, ...more });
  };
  const read = (bytes: Uint8Array): void => {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      if (!line.startsWith("data:") || line.includes("[DONE]")) continue;
      try {
        const chunk = JSON.parse(line.slice("data:".length)) as Chunk;
        const delta = chunk.choices?.[0]?.delta;
        if (delta?.content || delta?.reasoning_content || delta?.tool_calls || chunk.type?.endsWith(".delta")) first ??= Date.now();
        answer.add(chunk);
      } catch {
        // A server may send lines of its own.
        continue;
      }
    }
  };
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (done) {
          finish();
          return controller.close();
        }
        read(value);
        controller.enqueue(value);
      } catch (thrown) {
        finish({ "error.type": "aborted" });
        controller.error(thrown);
      }
    },
    async cancel(reason) {
      finish({ "error.type": "aborted" });
      await reader.cancel(reason);
    },
  });
}
