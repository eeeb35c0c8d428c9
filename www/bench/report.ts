/** Renders a result as a table, a plot and JSON. */

import type { Measurement } from "jerboa";
import { plot } from "./plot";
import type { Result, Row } from "./run";
import type { Range } from "./runs";

function element<K extends keyof HTMLElementTagNameMap>(name: K, text = "", children: Node[] = []): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  made.textContent = text;
  made.append(...children);
  return made;
}

function table(head: string[], rows: string[][]): HTMLTableElement {
  const line = (cells: string[], kind: "th" | "td"): HTMLElement => element("tr", "", cells.map((cell) => element(kind, cell)));
  return element("table", "", [line(head, "th"), ...rows.map((row) => line(row, "td"))]);
}

const digits = (value: number): string => (value >= 100 ? value.toFixed(0) : value.toPrecision(3));
const span = ({ median, min, max }: Range): string => `${digits(median)} (${digits(min)}–${digits(max)})`;
const percent = (value: number): string => (100 * value).toFixed(0);
const share = (value: number | undefined): string => (value === undefined ? "" : `${percent(value)} %`);
const shares = (of: Range | undefined): string => (of ? `${share(of.median)} (${percent(of.min)}–${percent(of.max)})` : "");

function cells(row: Row): string[] {
  const { measured } = row;
  return [
    String(row.prompt),
    span(row.decode_tps),
    span(row.prefill_tps),
    span(row.ttft_ms),
    measured ? String(measured.dispatchesPerToken) : "",
    measured ? digits(measured.bytesPerToken / 1e6) : "",
    shares(row.share_of_limit),
    share(row.share_of_bandwidth),
    measured?.host ? digits(measured.host.msPerStep) : "",
  ];
}

const HEAD = ["Prompt", "Decode tok/s", "Prefill tok/s", "Time to first token, ms", "Dispatches/token", "MB/token", "Share of limit", "Share of bandwidth", "Host ms/token"];

type Profile = Measurement["profiles"][number];

/** Tables of GPU time by kernel. */
function profiles({ profiles, batches }: Measurement): HTMLElement[] {
  const prompts = profiles.map((one) => profile(one, one.rows === 1 ? "A decode step" : `${one.rows} tokens of prefill`));
  return [...prompts, ...batches.map((one) => profile(one, `A decode step of ${one.rows} sequences`))];
}

function profile({ position, ms, kernels }: Profile, step: string): HTMLElement {
  const sorted = Object.entries(kernels).sort(([, a], [, b]) => b.ms - a.ms);
  const lines = sorted.map(([name, k]) => [name, String(k.dispatches), k.ms.toFixed(3), `${((100 * k.ms) / ms).toFixed(0)} %`]);
  const title = element("h3", `${step} at ${position}: ${ms.toFixed(3)} ms on the GPU`);
  return element("div", "", [title, table(["Kernel", "Dispatches", "ms", "Share"], lines)]);
}

/** Where the load time went. */
function load({ load_ms, info, memory }: Result): HTMLElement[] {
  const times = info.load;
  if (!times) return [];
  const parts: [string, number][] = [
    ["Reading: network, cache or file", times.readingMs],
    ["Writing to the GPU", times.writingMs],
    ["Transcoding and quantizing", times.transcodingMs],
    ["Autotuning", times.tuningMs],
    ["Compiling kernels", times.compilingMs],
  ];
  const rest = parts.reduce((left, [, ms]) => left - ms, load_ms);
  const lines = [...parts, ["Other: startup, headers, tokenizer, planning", rest] as const].map(([name, ms]) => [name, digits(ms), share(ms / load_ms)]);
  const title = `Load: ${digits(times.bytes / 1e6)} MB in ${digits(load_ms)} ms, peak ${digits(times.peakBytes / 1e6)} MB on the GPU and ${digits(memory.wasmBytes / 1e6)} MB of WebAssembly memory`;
  return [element("h3", title), table(["Part", "ms", "Share"], lines)];
}

/** Decode of several sequences at once. */
function batchTable({ batches }: Result): HTMLElement[] {
  if (!batches) return [];
  const lines = batches.map(({ sequences, prompt, decode_tps, late_ttft_ms }) => [String(sequences), String(prompt), span(decode_tps), span(late_ttft_ms)]);
  return [element("h3", "Several sequences at once"), table(["Sequences", "Prompt", "Tok/s together", "First token of another, ms"], lines)];
}

/** Decode with JSON schemas. */
function constrainedTable({ constrained }: Result): HTMLElement[] {
  if (!constrained) return [];
  const lines = constrained.map(({ prompt, schema, free_tps, decode_tps, share, tokens_per_readback }) => [String(prompt), schema, span(free_tps), span(decode_tps), shares(share), span(tokens_per_readback)]);
  return [element("h3", "Decode with a JSON schema"), table(["Prompt", "Schema", "Free tok/s", "With schema tok/s", "Share", "Tokens a readback"], lines)];
}

/** The result of an embedding model. */
function embeddingTable({ embed }: Result): HTMLElement[] {
  if (!embed) return [];
  const lines = embed.runs.map(({ ms, texts_per_s, tokens_per_s }) => [String(embed.texts), digits(ms), digits(texts_per_s), digits(tokens_per_s)]);
  return [table(["Texts", "ms", "Texts/s", "Tokens/s"], lines)];
}

function summary(result: Result): string {
  const { device, bytes } = result.info;
  const features = [device.f16 ? "f16" : "no f16", device.subgroups ? "subgroups" : "no subgroups"].join(", ");
  const warm = result.warm_load_ms === undefined ? "" : `, ${digits(result.warm_load_ms)} ms the second time`;
  const limits = result.limits ? ` A plain read reaches ${digits(result.limits.readGbs)} GB/s, a dependent dispatch takes ${digits(result.limits.dispatchUs)} µs.` : "";
  return (
    `${device.vendor} ${device.architecture} ${device.description} (${features}). ${result.info.architecture}, ${result.info.weights}; KV cache ${result.info.kv}. ` +
    `Loaded in ${digits(result.load_ms)} ms${warm}; ${digits(bytes.weights / 1e6)} MB of weights, ${digits(result.memory.gpuBytes / 1e6)} MB on the GPU, ` +
    `${digits(result.memory.wasmBytes / 1e6)} MB of WebAssembly memory.${limits}`
  );
}

/** The report of a result; its last element links to the JSON. */
export function report(result: Result): HTMLElement {
  const points = result.rows.map(({ prompt, decode_tps: { median, min, max } }) => ({ x: prompt, y: median, min, max }));
  const link = element("a", "Save as JSON");
  const json = JSON.stringify(result, null, 1);
  link.href = URL.createObjectURL(new Blob([json], { type: "application/json" }));
  link.download = `jerboa-${result.info.architecture}.json`;
  return element("div", "", [
    element("p", summary(result)),
    ...(points.length > 0 ? [table(HEAD, result.rows.map(cells)), plot(points, "tokens of context", "decode tokens/s")] : []),
    ...batchTable(result),
    ...constrainedTable(result),
    ...embeddingTable(result),
    ...load(result),
    ...result.rows.flatMap((row) => (row.measured ? profiles(row.measured) : [])),
    element("p", "", [link]),
  ]);
}
