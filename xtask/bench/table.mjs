/**
 * Formats results of the bench page and of the native benchmark as Markdown tables.
 *
 * usage: table.mjs FILE.json...
 */

import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const digits = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(3));
const span = ({ median, min, max }) => (min === max ? digits(median) : `${digits(median)} (${digits(min)}–${digits(max)})`);
const percent = (value) => (100 * value).toFixed(0);
const share = (value) => (value === undefined ? "" : `${percent(value)} %`);
const shares = (of) => (of ? (of.min === of.max ? share(of.median) : `${share(of.median)} (${percent(of.min)}–${percent(of.max)})`) : "");
const megabytes = (bytes) => (bytes ? digits(bytes / 1e6) : "");

function table(head, rows) {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map((_, i) => (i < 2 ? "---" : "--:"))), ...rows.map(line)].join("\n");
}

/** Whether the adapter is software; its times are left out. */
const isSoftware = (result) => Boolean(result.adapter?.software);

function speed(result) {
  const timed = (cell) => (isSoftware(result) ? "–" : cell);
  return result.rows.map(({ prompt, decode_tps, prefill_tps, ttft_ms, share_of_limit, share_of_bandwidth, measured }) => [
    result.model,
    result.info.weights,
    prompt,
    timed(span(decode_tps)),
    timed(span(prefill_tps)),
    timed(span(ttft_ms)),
    timed(shares(share_of_limit)),
    timed(share(share_of_bandwidth)),
    measured?.dispatchesPerToken ?? "",
    megabytes(measured?.bytesPerToken),
    timed(measured?.host ? digits(measured.host.msPerStep) : ""),
  ]);
}

const SPEED = ["model", "weights", "prompt", "decode tok/s", "prefill tok/s", "TTFT ms", "share of limit", "share of bandwidth", "dispatches", "MB/token", "host ms/token"];

/** Decode with JSON schemas next to free text. */
function constrained(result) {
  const timed = (cell) => (isSoftware(result) ? "–" : cell);
  const rows = result.constrained ?? [];
  return rows.map(({ prompt, schema, free_tps, decode_tps, share, tokens_per_readback }) => [result.model, result.info.weights, prompt, schema, timed(span(free_tps)), timed(span(decode_tps)), timed(shares(share)), tokens_per_readback ? span(tokens_per_readback) : "–"]);
}

const CONSTRAINED = ["model", "weights", "prompt", "schema", "free tok/s", "with schema tok/s", "share", "tokens a readback"];

/** Throughput of an embedding model: the median of its runs. */
function vectors(result) {
  if (!result.embed) return [];
  const { texts, tokens, runs } = result.embed;
  const range = (name) => {
    const values = runs.map((run) => run[name]).sort((a, b) => a - b);
    const at = (part) => values[Math.floor(part * (values.length - 1))];
    return isSoftware(result) ? "–" : span({ median: at(0.5), min: at(0), max: at(1) });
  };
  return [[result.model, result.info.weights, texts, tokens, range("texts_per_s"), range("tokens_per_s")]];
}

const VECTORS = ["model", "weights", "documents", "tokens", "documents/s", "tokens/s"];

/** Phases of a load, as shares of its time. */
function load(result) {
  const { load_ms, warm_load_ms, memory, info } = result;
  const times = info.load;
  if (!times) return [];
  const timed = (cell) => (isSoftware(result) ? "–" : cell);
  const parts = [times.readingMs, times.writingMs, times.transcodingMs, times.compilingMs];
  const rest = load_ms - parts.reduce((a, b) => a + b, 0);
  return [
    [
      result.model,
      info.weights,
      megabytes(times.bytes),
      timed(digits(load_ms)),
      warm_load_ms === undefined ? "" : timed(digits(warm_load_ms)),
      ...[...parts, rest].map((ms) => timed(share(ms / load_ms))),
      megabytes(times.peakBytes),
      megabytes(memory.wasmBytes ?? memory.processBytes),
    ],
  ];
}

const LOAD = ["model", "weights", "MB read", "load ms", "warm load ms", "reading", "writing", "transcoding", "compiling", "rest", "GPU peak MB", "CPU peak MB"];

/** Kernels that take at least 1 % of a step. */
function kernels(result) {
  if (isSoftware(result)) return [];
  return result.rows.flatMap(({ prompt, measured }) =>
    (measured?.profiles ?? []).flatMap(({ rows, ms, kernels }) =>
      Object.entries(kernels)
        .sort(([, a], [, b]) => b.ms - a.ms)
        .filter(([, k]) => k.ms >= ms / 100)
        .map(([name, k]) => [result.model, name, rows === 1 ? `decode at ${prompt}` : `${rows} rows`, k.dispatches, k.ms.toFixed(3), share(k.ms / ms)]),
    ),
  );
}

const KERNELS = ["model", "kernel", "step", "dispatches", "ms", "share"];

function device({ adapter, agent, limits }) {
  const { vendor, architecture, description, f16, subgroups, software } = adapter;
  const name = [vendor, architecture, description].filter(Boolean).join(" ");
  const features = `${f16 ? "f16" : "no f16"}, ${subgroups ? "subgroups" : "no subgroups"}`;
  const reach = limits && !software ? ` Plain reads reach ${digits(limits.readGbs)} GB/s, a dependent dispatch takes ${digits(limits.dispatchUs)} µs.` : "";
  const browser = /(Edg|Firefox|Chrome|Version)\/[\d.]+/.exec(agent)?.[0] ?? agent;
  return `${name} (${features}); ${browser}.${reach}`;
}

/** Formats all results. */
export function asText(results) {
  if (results.length === 0) return "Nothing was measured.\n";
  const parts = [...new Set(results.map(device))];
  if (results.some(isSoftware)) parts.push("This adapter is software (WebGPU on the CPU). Its times say nothing about the engine's speed and are left out.");
  for (const [head, rows] of [[SPEED, speed], [CONSTRAINED, constrained], [VECTORS, vectors], [LOAD, load], [KERNELS, kernels]]) {
    const lines = results.flatMap(rows);
    if (lines.length > 0) parts.push(table(head, lines));
  }
  return `${parts.join("\n\n")}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const results = await Promise.all(process.argv.slice(2).map(async (file) => JSON.parse(await readFile(file, "utf8"))));
  process.stdout.write(asText(results));
}
