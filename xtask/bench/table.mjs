/**
 * Results of the bench page and of its native twin as tables in Markdown. Knows the results' fields; measures nothing.
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

/** The speed of an adapter that computes on the processor is that of no GPU: it is not told. */
const isSoftware = (result) => Boolean(result.adapter?.software);

function speed(result) {
  const told = (text) => (isSoftware(result) ? "–" : text);
  return result.rows.map(({ prompt, decode_tps, prefill_tps, ttft_ms, share_of_limit, share_of_bandwidth, measured }) => [
    result.model,
    result.info.weights,
    prompt,
    told(span(decode_tps)),
    told(span(prefill_tps)),
    told(span(ttft_ms)),
    told(shares(share_of_limit)),
    told(share(share_of_bandwidth)),
    measured?.dispatchesPerToken ?? "",
    megabytes(measured?.bytesPerToken),
    told(measured?.host ? digits(measured.host.msPerStep) : ""),
  ]);
}

const SPEED = ["model", "weights", "prompt", "decode tok/s", "prefill tok/s", "first token ms", "of the limit", "of the bandwidth", "dispatches", "MB a token", "host ms a token"];

/** Texts per second of a model that makes vectors: the middle of its runs. */
function vectors(result) {
  if (!result.embed) return [];
  const { texts, tokens, runs } = result.embed;
  const told = (name) => {
    const values = runs.map((run) => run[name]).sort((a, b) => a - b);
    const at = (part) => values[Math.floor(part * (values.length - 1))];
    return isSoftware(result) ? "–" : span({ median: at(0.5), min: at(0), max: at(1) });
  };
  return [[result.model, result.info.weights, texts, tokens, told("texts_per_s"), told("tokens_per_s")]];
}

const VECTORS = ["model", "weights", "texts", "tokens", "texts/s", "tokens/s"];

/** Where a load's time went, as shares of all of it. */
function load(result) {
  const { load_ms, warm_load_ms, memory, info } = result;
  const times = info.load;
  if (!times) return [];
  const told = (text) => (isSoftware(result) ? "–" : text);
  const parts = [times.readingMs, times.writingMs, times.transcodingMs, times.compilingMs];
  const rest = load_ms - parts.reduce((a, b) => a + b, 0);
  return [
    [
      result.model,
      info.weights,
      megabytes(times.bytes),
      told(digits(load_ms)),
      warm_load_ms === undefined ? "" : told(digits(warm_load_ms)),
      ...[...parts, rest].map((ms) => told(share(ms / load_ms))),
      megabytes(times.peakBytes),
      megabytes(memory.wasmBytes ?? memory.processBytes),
    ],
  ];
}

const LOAD = ["model", "weights", "MB read", "load ms", "again ms", "reading", "writing", "transcoding", "compiling", "rest", "peak MB on the GPU", "peak MB beside"];

/** Kernels of a step that take a hundredth of it or more. */
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
  const reach = limits && !software ? ` A plain read reaches ${digits(limits.readGbs)} GB/s, a dependent dispatch takes ${digits(limits.dispatchUs)} µs.` : "";
  const browser = /(Edg|Firefox|Chrome|Version)\/[\d.]+/.exec(agent)?.[0] ?? agent;
  return `${name} (${features}); ${browser}.${reach}`;
}

/** Everything as one text. */
export function asText(results) {
  if (results.length === 0) return "Nothing was measured.\n";
  const parts = [...new Set(results.map(device))];
  if (results.some(isSoftware)) parts.push("This adapter computes on the processor: its times say nothing about the engine's speed, and are left out.");
  for (const [head, rows] of [[SPEED, speed], [VECTORS, vectors], [LOAD, load], [KERNELS, kernels]]) {
    const lines = results.flatMap(rows);
    if (lines.length > 0) parts.push(table(head, lines));
  }
  return `${parts.join("\n\n")}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const results = await Promise.all(process.argv.slice(2).map(async (file) => JSON.parse(await readFile(file, "utf8"))));
  process.stdout.write(asText(results));
}
