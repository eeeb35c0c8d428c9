/** Benchmarks speech recognition and speech synthesis; audio.html describes how to serve it. */

import { deviceReport, loadModel } from "/dist/jerboa/index.js";

const query = new URLSearchParams(location.search);
const number = (name, fallback) => Number(query.get(name) ?? fallback);
const names = (query.get("models") ?? "moonshine-base,whisper-large-v3-turbo,kani-tts-2").split(",");
const [seconds, tokens, rounds] = [number("seconds", 13), number("tokens", 128), number("rounds", 3)];
/** Tokens per second of fast speech. */
const SPEECH_TOKENS_PER_S = 4;
const RATE = 16_000;
const samples = Float32Array.from({ length: seconds * RATE }, (_, i) => 0.3 * Math.sin(i * 0.05) * Math.sin(i * 0.0007) + 0.01 * Math.sin(i * i));

function say(line) {
  document.querySelector("#lines").textContent += `${line}\n`;
  return fetch("/log", { method: "POST", body: line }).catch(() => {});
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const folder = (name) => new URL(`/models/${name}/`, location.href);

/** Jerboa: the encoder from samples to states, and decode steps. */
async function jerboa(name) {
  const start = performance.now();
  const model = await loadModel(folder(name), { task: "transcribe", cache: false });
  const loadMs = performance.now() - start;
  const run = async () => {
    const { encodeMs, tokenMs } = await model.measureAsr(samples, tokens);
    return { encodeMs, tokenMs };
  };
  return { name: "jerboa", loadMs, run, close: () => model.unload() };
}

/** transformers.js: features on the CPU, the encoder alone, and the time between generated tokens. */
async function transformersJs(name) {
  const T = await import(query.get("peer"));
  Object.assign(T.env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/models/", useBrowserCache: false });
  const ort = (kind) => `${location.origin}/npm/ort/ort-wasm-simd-threaded.asyncify.${kind}`;
  T.env.backends.onnx.wasm.wasmPaths = { mjs: ort("mjs"), wasm: ort("wasm") };
  const start = performance.now();
  const model = await T.AutoModelForSpeechSeq2Seq.from_pretrained(name, { device: "webgpu", dtype: query.get("dtype") ?? "fp16" });
  const loadMs = performance.now() - start;
  const config = await (await fetch(`${folder(name)}config.json`)).json();
  const whisper = config.model_type === "whisper";
  const extractor = whisper
    ? new T.WhisperFeatureExtractor({ chunk_length: 30, feature_size: config.num_mel_bins, hop_length: 160, n_fft: 400, n_samples: 480_000, nb_max_frames: 3000, sampling_rate: RATE, padding_value: 0 })
    : new T.MoonshineFeatureExtractor({ sampling_rate: RATE, feature_size: 1, padding_value: 0 });
  const run = async () => {
    const began = performance.now();
    const features = await extractor(samples);
    const featureMs = performance.now() - began;
    const input = features[model.main_input_name] ?? Object.values(features)[0];
    const session = model.sessions.model;
    const before = performance.now();
    await session.run({ [session.inputNames[0]]: input.ort_tensor });
    const encodeMs = featureMs + performance.now() - before;
    const times = [];
    const streamer = { put: () => times.push(performance.now()), end: () => {} };
    await model.generate({ ...(whisper ? { inputs: input } : features), max_new_tokens: tokens, do_sample: false, eos_token_id: null, streamer });
    // The first ones belong to the prompt.
    const gaps = times.slice(2).map((time, i) => time - times[i + 1]);
    return { featureMs, encodeMs, tokenMs: gaps.reduce((a, b) => a + b, 0) / gaps.length, count: gaps.length };
  };
  return { name: "transformers.js", loadMs, run, close: () => model.dispose() };
}

async function benchmarkRecognition(name) {
  const engines = [];
  if (!query.has("alone")) engines.push(await jerboa(name));
  if (query.has("peer")) engines.push(await transformersJs(name));
  const results = [];
  for (const { name: engine, loadMs, run } of engines) {
    await run();
    await say(`${name}, ${engine}: loaded in ${loadMs.toFixed(0)} ms, ran once`);
  }
  const runs = engines.map(() => []);
  for (let round = 0; round < rounds; round++) for (const [i, { run }] of engines.entries()) runs[i].push(await run());
  for (const [i, { name: engine, loadMs, close }] of engines.entries()) {
    const of = (key) => (runs[i][0][key] === undefined ? undefined : median(runs[i].map((run) => run[key])));
    const [encodeMs, tokenMs] = [of("encodeMs"), of("tokenMs")];
    const factor = (seconds * 1e3) / (encodeMs + seconds * SPEECH_TOKENS_PER_S * tokenMs);
    results.push({ engine, loadMs, featureMs: of("featureMs"), encodeMs, tokenMs, factor, runs: runs[i] });
    await say(`${name}, ${engine}: encoded in ${encodeMs.toFixed(1)} ms, ${tokenMs.toFixed(2)} ms a token, ${factor.toFixed(1)} times real time`);
    await close();
  }
  const times = results[1] && results[0].factor / results[1].factor;
  if (times) await say(`${name}: ${times.toFixed(2)} times as fast as transformers.js`);
  return { name, seconds, results, times };
}

async function benchmarkSynthesis(name) {
  const model = await loadModel(folder(name), { task: "speak", codec: `${folder(name)}codec/`, cache: false });
  const runs = [];
  for (let round = 0; round <= rounds; round++) {
    const { seconds: made, firstMs, totalMs, ids } = await model.measureTts(Math.max(tokens, 64));
    if (round > 0) runs.push({ seconds: made, firstMs, totalMs, tokenMs: totalMs / ids.length, factor: (made * 1e3) / totalMs });
  }
  await model.unload();
  const of = (key) => median(runs.map((run) => run[key]));
  await say(`${name}: ${of("seconds").toFixed(1)} s of audio, ${of("factor").toFixed(1)} times real time, first audio after ${of("firstMs").toFixed(0)} ms, ${of("tokenMs").toFixed(2)} ms a token`);
  return { name, firstMs: of("firstMs"), tokenMs: of("tokenMs"), factor: of("factor"), runs };
}

async function run() {
  const device = await deviceReport();
  await say(`${device.vendor} ${device.architecture} ${device.description}, Jerboa ${device.engine}`);
  if (device.software && !query.has("software")) return { device, error: "This adapter is software (no GPU), so nothing is measured. Add ?software to measure it anyway." };
  const models = [];
  for (const name of names) {
    // An error of one model does not stop the others.
    const made = await (/kani/.test(name) ? benchmarkSynthesis(name) : benchmarkRecognition(name)).catch((error) => ({ name, error: `${error.code ?? ""} ${error.message}` }));
    if (made.error) await say(`${name}: ${made.error}`);
    models.push(made);
  }
  return { device, seconds, tokens, rounds, models };
}

window.result = await run().catch((error) => ({ error: `${error.code ?? ""} ${error.message}` }));
if (window.result.error) await say(window.result.error);
await fetch("/result", { method: "POST", body: JSON.stringify(window.result) }).catch(() => {});
