/** The commands of the command line, with their options. */

import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { basename } from "node:path";
import { env, stdin, stdout } from "node:process";
import { createInterface } from "node:readline/promises";
import { bytesText, note, print, printJson, printPart, ProgressBar, table } from "./cli-output.js";
import { originOf, startServer } from "./cli-serve.js";
import type { Validator } from "./check.js";
import { useMediaFetch } from "./download.js";
import { invalidRequest, JerboaError } from "./errors.js";
import type { ChatMessage, LoadOptions, Model } from "./index.js";
import { cachedModels, createFetch, deleteModel, deviceReport, diagnose, loadModel } from "./node.js";
import { createPublicFetch } from "./node-public-fetch.js";
import { CHAT_SPEC, LOAD_SPEC } from "./schema.js";
import { wrongTask } from "./tasks.js";

/** A flag of a command. */
export interface CommandOption {
  name: string;
  short?: string;
  kind: "boolean" | "number" | "text" | "file";
  multiple?: boolean;
  about: string;
  /** What its number must be, checked before a model loads. */
  valid?: Validator;
}

/** A command line after parsing. */
export interface Invocation {
  args: string[];
  values: Record<string, unknown>;
  json: boolean;
  signal: AbortSignal;
}

/** A command. */
export interface Command {
  name: string;
  /** Its arguments, for the help. */
  args: string;
  /** Number of arguments. */
  min: number;
  max: number;
  about: string;
  /** Whether it takes the options of a load. */
  loads?: true;
  /** Whether it runs until it is interrupted, which is then no failure. */
  endless?: true;
  options: CommandOption[];
  /** Runs it; returns an exit code other than 0 if it failed without an error. */
  run(call: Invocation): Promise<number | void>;
}

/** Flags of commands that load a model. */
export const LOAD_FLAGS: CommandOption[] = [
  { name: "weights", kind: "text", about: "weight format on the GPU: auto, f32, f16, q8 or q4" },
  { name: "kv", kind: "text", about: "format of the KV cache: auto, f32, f16, packed or int8" },
  { name: "max-context", kind: "number", valid: LOAD_SPEC.maxContext, about: "context length: maximum tokens of prompt and answer together" },
  { name: "max-memory", kind: "number", valid: LOAD_SPEC.maxMemory, about: "GPU memory limit in bytes" },
  { name: "revision", kind: "text", about: "branch, tag or commit of the repository" },
  { name: "endpoint", kind: "text", about: "URL of a Hub mirror; HF_ENDPOINT or https://huggingface.co by default" },
  { name: "token", kind: "text", about: "access token for gated and private models; HF_TOKEN by default" },
  { name: "tune", kind: "text", about: "autotuning of GPU kernels: auto or off" },
];

const SAMPLING: CommandOption[] = [
  { name: "max-tokens", short: "n", kind: "number", valid: CHAT_SPEC.max_tokens, about: "maximum tokens of the answer" },
  { name: "temperature", short: "t", kind: "number", valid: CHAT_SPEC.temperature, about: "sampling temperature; 0 selects the most likely token" },
  { name: "top-p", kind: "number", valid: CHAT_SPEC.top_p, about: "nucleus sampling: cumulative probability, up to 1" },
  { name: "top-k", kind: "number", valid: CHAT_SPEC.top_k, about: "sample from the k most likely tokens" },
  { name: "seed", kind: "number", valid: CHAT_SPEC.seed, about: "seed of the sampling: the same seed gives the same answer" },
];

/** The highest port of TCP. */
const MAX_PORT = 65_535;

/** The package's name of a flag's option. */
export const optionName = (flag: string): string => flag.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase());

/** The values of flags under the names of the package's options. */
function fields(values: Record<string, unknown>, flags: CommandOption[]): Record<string, unknown> {
  return Object.fromEntries(flags.filter(({ name }) => values[name] !== undefined).map(({ name }) => [optionName(name), values[name]]));
}

/** The same for requests in OpenAI's form. */
function openAiFields(values: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(SAMPLING.filter(({ name }) => values[name] !== undefined).map(({ name }) => [name.replaceAll("-", "_"), values[name]]));
}

/** Loads the model of a command line. */
async function load(source: string, { values, signal }: Invocation): Promise<Model> {
  const bar = new ProgressBar();
  try {
    const model = await loadModel(source, { ...(fields(values, LOAD_FLAGS) as LoadOptions), signal, onProgress: bar.show });
    bar.clear();
    for (const warning of model.info.warnings) note(warning);
    return model;
  } finally {
    bar.clear();
  }
}

/** Runs `work` with the model of the first argument. */
async function withModel<T>(call: Invocation, work: (model: Model) => Promise<T>): Promise<T> {
  const model = await load(call.args[0]!, call);
  try {
    return await work(model);
  } finally {
    await model.persisted;
    await model.unload();
  }
}

/** All of standard input. */
async function readStdin(): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of stdin) text += decoder.decode(chunk, { stream: true });
  return text + decoder.decode();
}

/** Arguments as one text; `-`, or none at a pipe, stands for standard input. */
async function textOf(args: string[]): Promise<string> {
  const given = args.length === 0 || (args.length === 1 && args[0] === "-") ? (await readStdin()).replace(/\n$/, "") : args.join(" ");
  if (!given) throw invalidRequest("The prompt is empty. Pass it as an argument, or on standard input.");
  return given;
}

/** Streams an answer to messages; returns its text. */
async function answer(model: Model, messages: ChatMessage[], call: Invocation, emit: (part: string) => void): Promise<string> {
  const stream = await model.chat.completions.create({ messages, stream: true, ...openAiFields(call.values) }, { signal: call.signal });
  let text = "";
  for await (const { choices } of stream) {
    const part = choices[0]?.delta.content ?? "";
    text += part;
    emit(part);
  }
  return text;
}

const systemMessages = ({ values }: Invocation): ChatMessage[] => (typeof values.system === "string" ? [{ role: "system", content: values.system }] : []);
const SYSTEM: CommandOption = { name: "system", short: "s", kind: "text", about: "system prompt" };

async function chat(call: Invocation): Promise<void> {
  await withModel(call, async (model) => {
    if (model.info.task !== "generate") throw wrongTask(model.info, "cannot chat");
    if (model.info.hasChatTemplate === false) throw new JerboaError("chat_template", `${model.info.model} has no chat template: it is a base model that continues text. Use 'jerboa run' instead.`);
    const messages = systemMessages(call);
    if (stdin.isTTY) note(`${model.info.model}. An empty line or Ctrl+D ends the conversation.`);
    const lines = createInterface({ input: stdin, output: stdin.isTTY ? stdout : undefined, terminal: stdin.isTTY === true, prompt: "> " });
    // A terminal in raw mode sends no signal of its own.
    lines.on("SIGINT", () => lines.close());
    call.signal.addEventListener("abort", () => lines.close());
    if (stdin.isTTY) lines.prompt();
    for await (const line of lines) {
      if (!line.trim()) break;
      messages.push({ role: "user", content: line });
      const content = await answer(model, messages, call, call.json ? () => {} : printPart);
      messages.push({ role: "assistant", content });
      if (call.json) printJson({ role: "assistant", content });
      else print("");
      if (stdin.isTTY) lines.prompt();
    }
    lines.close();
  });
}

async function run(call: Invocation): Promise<void> {
  const prompt = await textOf(call.args.slice(1));
  await withModel(call, async (model) => {
    const emit = call.json ? (): void => {} : printPart;
    let text = "";
    if (call.values.raw === true || !model.info.hasChatTemplate) {
      const generation = model.generate(prompt, { ...fields(call.values, SAMPLING), signal: call.signal });
      for await (const part of generation) {
        text += part;
        emit(part);
      }
    } else text = await answer(model, [...systemMessages(call), { role: "user", content: prompt }], call, emit);
    if (call.json) printJson({ model: model.info.model, text });
    else print("");
  });
}

async function embed(call: Invocation): Promise<void> {
  const given = call.args.slice(1);
  const texts = given.length > 0 && given[0] !== "-" ? given : (await readStdin()).split("\n").filter(Boolean);
  await withModel(call, async (model) => {
    const vectors = await model.embed(texts);
    if (call.json) printJson({ model: model.info.model, data: vectors.map((embedding, index) => ({ index, embedding })) });
    else for (const vector of vectors) printJson(vector);
  });
}

/** The bytes of a file named on the command line. */
async function audioFile(path: string): Promise<Uint8Array> {
  return readFile(path).catch((thrown: Error) => {
    throw invalidRequest(`transcribe: '${path}' cannot be read: ${thrown.message}. Check the path.`);
  });
}

async function transcribe(call: Invocation): Promise<void> {
  const files = call.args.slice(1);
  await withModel(call, async (model) => {
    for (const file of files) {
      const { language, format } = call.values as { language?: string; format?: string };
      const bytes = new File([new Uint8Array(await audioFile(file))], basename(file));
      if (format !== undefined && format !== "text" && format !== "json") {
        const transcription = await model.audio.transcriptions.create({ file: bytes, response_format: format as "srt", ...(language ? { language } : {}) }, { signal: call.signal });
        print(typeof transcription === "string" ? transcription.trimEnd() : JSON.stringify(transcription));
        continue;
      }
      const { text, segments } = await model.transcribe(bytes, { ...(language ? { language } : {}), signal: call.signal });
      if (call.json || format === "json") printJson({ file, text, segments });
      else print(text.trim());
    }
  });
}

async function speak(call: Invocation): Promise<void> {
  const input = await textOf(call.args.slice(1));
  const { output = "speech.wav", codec } = call.values as { output?: string; codec?: string };
  const model = await loadModel(call.args[0]!, { ...(fields(call.values, LOAD_FLAGS) as LoadOptions), ...(codec ? { codec } : {}), signal: call.signal, onProgress: new ProgressBar().show });
  try {
    const response = await model.audio.speech.create({ input }, { signal: call.signal });
    const bytes = new Uint8Array(await response.arrayBuffer());
    await writeFile(output, bytes);
    if (call.json) printJson({ file: output, bytes: bytes.length });
    else print(output);
  } finally {
    await model.unload();
  }
}

async function serve(call: Invocation): Promise<void> {
  const { host = "127.0.0.1", port = 8080, "api-key": key, origin = [], "allow-private-urls": allowsPrivate } = call.values as { host?: string; port?: number; "api-key"?: string; origin?: string[]; "allow-private-urls"?: boolean };
  if (!Number.isInteger(port) || port < 0 || port > MAX_PORT) throw invalidRequest(`serve: '--port' must be a whole number from 0 to ${MAX_PORT}, not ${port}.`);
  if (key === "") throw invalidRequest("serve: '--api-key' must be a key, not an empty string.");
  const models: Record<string, Model> = {};
  // Before the models load, which takes long: the port may be in use.
  const server = await startServer({ host, port, apiKey: key ?? (env.JERBOA_API_KEY || undefined), origins: origin.map(originOf) });
  try {
    for (const source of call.args) models[source] = await load(source, call);
    if (!allowsPrivate) useMediaFetch(createPublicFetch());
    server.serve(createFetch(models));
    if (call.json) printJson({ url: `${server.url}/v1`, models: Object.keys(models) });
    else print(`OpenAI's API at ${server.url}/v1 with ${Object.keys(models).join(", ")}`);
    await new Promise<void>((resolve) => call.signal.addEventListener("abort", () => resolve(), { once: true }));
  } finally {
    await server.close();
    await Promise.all(Object.values(models).map((model) => model.unload()));
  }
}

async function pull({ args, values, json, signal }: Invocation): Promise<void> {
  const bar = new ProgressBar();
  const { pullModel } = await import("./node-pull.js");
  try {
    const pulled = await pullModel(args[0]!, { ...(fields(values, LOAD_FLAGS) as Pick<LoadOptions, "revision" | "endpoint" | "token">), signal, onProgress: bar.show });
    bar.clear();
    if (json) printJson(pulled);
    else print(`${pulled.model} is in the cache.`);
  } finally {
    bar.clear();
  }
}

async function mcp(call: Invocation): Promise<void> {
  const { chat: chatModel, embed: embedModel, memory } = call.values as { chat?: string; embed?: string; memory?: string };
  if (!chatModel && !embedModel) throw invalidRequest("mcp: '--chat' or '--embed' must be set. Pass --chat MODEL, --embed MODEL or both.");
  if (memory && !embedModel) throw invalidRequest("mcp: '--embed' must be set for '--memory'. Pass --embed MODEL with the model that created the memory.");
  if (memory && !existsSync(memory)) throw invalidRequest(`mcp: there is no file '${memory}' for '--memory'. Check the path, or create the memory with fileStore of 'jerboa/memory/file'.`);
  const { serveMcp } = await import("./cli-mcp.js");
  const loaded: Model[] = [];
  const later = (source: string | undefined) => source && (async () => {
    const model = await load(source, call);
    loaded.push(model);
    return model;
  });
  try {
    await serveMcp({ generate: later(chatModel) || undefined, embed: later(embedModel) || undefined, memory, version: await version(), signal: call.signal });
  } finally {
    await Promise.all(loaded.map((model) => model.unload()));
  }
}

async function list({ json }: Invocation): Promise<void> {
  const models = await cachedModels();
  if (json) return printJson(models);
  if (models.length === 0) return note("The cache has no models.");
  print(table(["MODEL", "REVISION", "SIZE", "FILES", "STATE"], models.map(({ model, revision = "", bytes, files, complete }) => [model, revision, bytesText(bytes), String(files), complete ? "complete" : "incomplete"])));
}

async function remove({ args, values, json }: Invocation): Promise<number | void> {
  const [name] = args as [string];
  const revision = values.revision as string | undefined;
  const found = (await cachedModels()).filter((entry) => entry.model === name && (revision === undefined || entry.revision === revision));
  if (found.length === 0) {
    if (json) printJson({ removed: [] });
    note(`The cache has no model '${name}'. 'jerboa list' lists its models.`);
    return 1;
  }
  for (const entry of found) await deleteModel(name, { ...(entry.revision ? { revision: entry.revision } : {}), ...(entry.endpoint ? { endpoint: entry.endpoint } : {}) });
  if (json) printJson({ removed: found });
  else print(`Removed ${name}: ${bytesText(found.reduce((sum, { bytes }) => sum + bytes, 0))}.`);
}

async function info(call: Invocation): Promise<void> {
  await withModel(call, async ({ info }) => {
    if (call.json) return printJson(info);
    const { bytes, device } = info;
    const rows = Object.entries({
      model: info.model, revision: info.revision, architecture: info.architecture, task: info.task, capabilities: info.capabilities?.join(", "),
      parameters: info.parameters.toLocaleString("en"), weights: `${info.weights}, ${bytesText(bytes.weights)}`, context: `${info.contextLength} tokens`,
      "KV cache": info.kv && `${info.kv}, at most ${bytesText(bytes.kvMax ?? bytes.kv)}`, vocabulary: info.vocabSize, layers: info.layers,
      tools: info.toolCalls, reasoning: info.reasoning, device: `${device.description || device.vendor}${device.software ? " (software)" : ""}`,
    }).filter(([, value]) => value !== undefined && value !== null);
    const width = Math.max(...rows.map(([name]) => name.length));
    for (const [name, value] of rows) print(`${name.padEnd(width)}  ${String(value)}`);
  });
}

async function doctor({ json }: Invocation): Promise<number> {
  const report = await deviceReport();
  const checks = await diagnose();
  const ok = checks.every((check) => check.ok);
  if (json) printJson({ ok, device: report, checks });
  else {
    print(`${report.description || report.vendor}${report.software ? " (software: models run on the CPU, slowly)" : ""}`);
    print(`f16: ${report.f16}, subgroups: ${report.subgroups}, engine ${report.engine}`);
    for (const { name, ok, ms, problem } of checks) print(`${ok ? "ok    " : "FAILED"}  ${name} (${ms.toFixed(1)} ms)${problem ? `: ${problem}` : ""}`);
  }
  return ok ? 0 : 1;
}

/** The version of the package. */
export async function version(): Promise<string> {
  const text = new TextDecoder().decode(await readFile(new URL("../package.json", import.meta.url)));
  return (JSON.parse(text) as { version: string }).version;
}

/** All commands. */
export const COMMANDS: Command[] = [
  { name: "chat", args: "MODEL", min: 1, max: 1, about: "chat with a model", loads: true, options: [SYSTEM, ...SAMPLING], run: chat },
  { name: "run", args: "MODEL [PROMPT]", min: 1, max: Infinity, about: "answer one prompt", loads: true, options: [SYSTEM, { name: "raw", kind: "boolean", about: "continue the text without a chat template" }, ...SAMPLING], run },
  { name: "embed", args: "MODEL [TEXT..]", min: 1, max: Infinity, about: "print the embedding of each TEXT, or of each line of standard input", loads: true, options: [], run: embed },
  { name: "transcribe", args: "MODEL FILE..", min: 2, max: Infinity, about: "transcribe audio files", loads: true, options: [{ name: "language", kind: "text", about: "language code; detected by default" }, { name: "format", kind: "text", about: "text, json, srt, vtt or verbose_json" }], run: transcribe },
  { name: "speak", args: "MODEL [TEXT]", min: 1, max: Infinity, about: "write speech to a WAV file", loads: true, options: [{ name: "output", short: "o", kind: "file", about: "output file; speech.wav by default" }, { name: "codec", kind: "text", about: "codec model, if it is in a separate repository" }], run: speak },
  {
    name: "serve", args: "MODEL..", min: 1, max: Infinity, about: "serve OpenAI's API on 127.0.0.1", loads: true, endless: true, run: serve,
    options: [
      { name: "host", kind: "text", about: "address to listen on; 127.0.0.1 by default" },
      { name: "port", short: "p", kind: "number", about: "8080 by default; 0 selects a free port" },
      { name: "api-key", kind: "text", about: "API key that clients must send; JERBOA_API_KEY by default" },
      { name: "origin", kind: "text", multiple: true, about: "CORS origin to allow besides localhost; may be repeated; '*' allows all" },
      { name: "allow-private-urls", kind: "boolean", about: "fetch images of requests from private and local addresses too" },
    ],
  },
  {
    name: "mcp", args: "", min: 0, max: 0, about: "serve the Model Context Protocol on standard input and output", loads: true, endless: true, run: mcp,
    options: [
      { name: "chat", kind: "text", about: "text-generation model of the tool 'generate'" },
      { name: "embed", kind: "text", about: "embedding model of the tools 'embed' and 'search_memory'" },
      { name: "memory", kind: "file", about: "memory file that 'search_memory' searches" },
    ],
  },
  { name: "pull", args: "MODEL", min: 1, max: 1, about: "download a model; needs no GPU", loads: true, options: [], run: pull },
  { name: "list", args: "", min: 0, max: 0, about: "list the models in the cache", options: [], run: list },
  { name: "rm", args: "MODEL", min: 1, max: 1, about: "remove a model from the cache", options: [{ name: "revision", kind: "text", about: "only this revision" }], run: remove },
  { name: "info", args: "MODEL", min: 1, max: 1, about: "load a model and print its properties", loads: true, options: [], run: info },
  { name: "doctor", args: "", min: 0, max: 0, about: "check the GPU", options: [], run: doctor },
];
