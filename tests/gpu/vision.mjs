/** Benchmarks a vision encoder; vision.html describes how to serve it. */

import { deviceReport, loadModel } from "/dist/jerboa/index.js";

const query = new URLSearchParams(location.search);
const side = Number(query.get("side") ?? 768);
const rounds = Number(query.get("rounds") ?? 12);
const [depth, wide, heads, inner] = (query.get("encoder") ?? "12x768x12x3072").split("x").map(Number);
const layers = Number(query.get("layers") ?? 24);
const rows = Number(query.get("prompt") ?? 512);
const TEXT = {
  hidden_size: 1024, num_hidden_layers: layers, intermediate_size: 3584, num_attention_heads: 8, num_key_value_heads: 2, head_dim: 256, vocab_size: Number(query.get("vocab") ?? 248320),
  linear_num_key_heads: 16, linear_num_value_heads: 16, linear_key_head_dim: 128, linear_value_head_dim: 128, linear_conv_kernel_dim: 4,
};
const isFull = (layer) => layer % 4 === 3;
const PATCH = 16;
/** Tokens with a text: bytes, and the special tokens around images. */
const BYTES = 16;
const SPECIAL = { 0: "<|pad|>", 2: "<|im_end|>", 3: "<|im_start|>", 4: "<|image_pad|>", 5: "<|vision_start|>", 6: "<|vision_end|>" };

function say(line) {
  document.querySelector("#lines").textContent += `${line}\n`;
  fetch("/log", { method: "POST", body: line }).catch(() => {});
}

/** Random f16 numbers of about 0.02; tensors repeat this block. */
const noise = new Blob([Uint16Array.from({ length: 1 << 20 }, (_, i) => (Math.imul(i + 1, 0x9e3779b1) >>> 16 & 0x83ff) | 0x2400)]);

/** Returns a checkpoint as a file without allocating all of its data. */
function safetensors(tensors) {
  const header = {};
  let at = 0;
  const parts = [];
  for (const [name, shape] of tensors) {
    const bytes = 2 * shape.reduce((a, b) => a * b);
    header[name] = { dtype: "F16", shape, data_offsets: [at, at + bytes] };
    at += bytes;
    for (let left = bytes; left > 0; left -= noise.size) parts.push(left < noise.size ? noise.slice(0, left) : noise);
  }
  const text = new TextEncoder().encode(JSON.stringify(header).padEnd(Math.ceil(JSON.stringify(header).length / 8) * 8));
  const size = new Uint8Array(8);
  new DataView(size.buffer).setUint32(0, text.length, true);
  return new File([size, text, ...parts], "model.safetensors");
}

function tensors() {
  const list = [];
  const add = (name, ...shape) => list.push([name, shape]);
  const linear = (name, rows, cols) => (add(`${name}.weight`, rows, cols), add(`${name}.bias`, rows));
  const norm = (name, cols) => (add(`${name}.weight`, cols), add(`${name}.bias`, cols));
  const { hidden_size: hidden, head_dim: head } = TEXT;
  add("model.language_model.embed_tokens.weight", TEXT.vocab_size, hidden);
  add("model.language_model.norm.weight", hidden);
  for (let i = 0; i < TEXT.num_hidden_layers; i++) {
    const path = `model.language_model.layers.${i}`;
    for (const name of ["input_layernorm", "post_attention_layernorm"]) add(`${path}.${name}.weight`, hidden);
    if (isFull(i)) {
      for (const name of ["q_norm", "k_norm"]) add(`${path}.self_attn.${name}.weight`, head);
      // Queries and their gates.
      add(`${path}.self_attn.q_proj.weight`, 2 * TEXT.num_attention_heads * head, hidden);
      for (const name of ["k_proj", "v_proj"]) add(`${path}.self_attn.${name}.weight`, TEXT.num_key_value_heads * head, hidden);
      add(`${path}.self_attn.o_proj.weight`, hidden, TEXT.num_attention_heads * head);
    } else {
      const [keys, values] = [TEXT.linear_num_key_heads * TEXT.linear_key_head_dim, TEXT.linear_num_value_heads * TEXT.linear_value_head_dim];
      add(`${path}.linear_attn.in_proj_qkv.weight`, 2 * keys + values, hidden);
      add(`${path}.linear_attn.in_proj_z.weight`, values, hidden);
      for (const name of ["in_proj_a", "in_proj_b"]) add(`${path}.linear_attn.${name}.weight`, TEXT.linear_num_value_heads, hidden);
      add(`${path}.linear_attn.conv1d.weight`, 2 * keys + values, 1, TEXT.linear_conv_kernel_dim);
      for (const name of ["A_log", "dt_bias"]) add(`${path}.linear_attn.${name}`, TEXT.linear_num_value_heads);
      add(`${path}.linear_attn.norm.weight`, TEXT.linear_value_head_dim);
      add(`${path}.linear_attn.out_proj.weight`, hidden, values);
    }
    for (const name of ["gate_proj", "up_proj"]) add(`${path}.mlp.${name}.weight`, TEXT.intermediate_size, hidden);
    add(`${path}.mlp.down_proj.weight`, hidden, TEXT.intermediate_size);
  }
  const path = "model.visual";
  add(`${path}.patch_embed.proj.weight`, wide, 3, 2, PATCH, PATCH);
  add(`${path}.patch_embed.proj.bias`, wide);
  add(`${path}.pos_embed.weight`, 48 * 48, wide);
  for (let i = 0; i < depth; i++) {
    const block = `${path}.blocks.${i}`;
    norm(`${block}.norm1`, wide);
    norm(`${block}.norm2`, wide);
    linear(`${block}.attn.qkv`, 3 * wide, wide);
    linear(`${block}.attn.proj`, wide, wide);
    linear(`${block}.mlp.linear_fc1`, inner, wide);
    linear(`${block}.mlp.linear_fc2`, wide, inner);
  }
  norm(`${path}.merger.norm`, wide);
  linear(`${path}.merger.linear_fc1`, 4 * wide, 4 * wide);
  linear(`${path}.merger.linear_fc2`, hidden, 4 * wide);
  return list;
}

function files() {
  const json = (name, value) => ({ name, file: new File([JSON.stringify(value)], name) });
  const rope_parameters = { rope_type: "default", rope_theta: 1e7, partial_rotary_factor: 0.25, mrope_interleaved: true, mrope_section: [11, 11, 10] };
  const layer_types = Array.from({ length: layers }, (_, i) => (isFull(i) ? "full_attention" : "linear_attention"));
  const text_config = {
    model_type: "qwen3_5_text", ...TEXT, layer_types, max_position_embeddings: 32768, rms_norm_eps: 1e-6, hidden_act: "silu", attn_output_gate: true, rope_parameters,
    eos_token_id: 2, tie_word_embeddings: true,
  };
  // GPT-2's mapping of bytes to characters.
  const plain = (byte) => (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
  let extra = 256;
  const vocab = Object.fromEntries(Array.from({ length: 256 }, (_, byte) => [String.fromCharCode(plain(byte) ? byte : extra++), BYTES + byte]));
  const level = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false };
  const added_tokens = Object.entries(SPECIAL).map(([id, content]) => ({ id: Number(id), content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }));
  const chat_template = "{%- for m in messages %}<|im_start|>{{ m.role }}\n{%- if m.content is string %}{{ m.content }}{%- else %}{%- for p in m.content %}{%- if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{%- else %}{{ p.text }}{%- endif %}{%- endfor %}{%- endif %}<|im_end|>\n{%- endfor %}<|im_start|>assistant\n";
  const vision_config = {
    model_type: "qwen3_5", depth, hidden_size: wide, num_heads: heads, intermediate_size: inner, patch_size: PATCH, spatial_merge_size: 2, temporal_patch_size: 2,
    in_channels: 3, num_position_embeddings: 48 * 48, out_hidden_size: TEXT.hidden_size, hidden_act: "gelu_pytorch_tanh", deepstack_visual_indexes: [],
  };
  return [
    json("config.json", { architectures: ["Qwen3_5ForConditionalGeneration"], model_type: "qwen3_5", image_token_id: 4, tie_word_embeddings: true, text_config, vision_config }),
    json("tokenizer.json", { version: "1.0", truncation: null, padding: null, added_tokens, normalizer: null, pre_tokenizer: level, post_processor: null, decoder: level, model: { type: "BPE", vocab, merges: [] } }),
    json("tokenizer_config.json", { tokenizer_class: "PreTrainedTokenizerFast", eos_token: "<|im_end|>", pad_token: "<|pad|>", chat_template }),
    json("preprocessor_config.json", { image_processor_type: "Qwen2VLImageProcessor", patch_size: PATCH, merge_size: 2, temporal_patch_size: 2, size: { shortest_edge: 65536, longest_edge: 16777216 }, image_mean: [0.5, 0.5, 0.5], image_std: [0.5, 0.5, 0.5] }),
    { name: "model.safetensors", file: safetensors(tensors()) },
  ];
}

/** Returns a different image for each round. */
function image(round) {
  const canvas = new OffscreenCanvas(side, side);
  const context = canvas.getContext("2d");
  for (let i = 0; i < 200; i++) {
    context.fillStyle = `hsl(${(i * 37 + round * 61) % 360} 60% ${20 + ((i * 13) % 60)}%)`;
    context.fillRect((i * 97 + round * 31) % side, (i * 53) % side, side / 5, side / 9);
  }
  return context.getImageData(0, 0, side, side);
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

async function run() {
  const device = await deviceReport();
  say(`${device.vendor} ${device.architecture} ${device.description}, Jerboa ${device.engine}`);
  if (device.software && !query.has("software")) return { device, error: "This adapter is software (no GPU), so nothing is measured. Add ?software to measure it anyway." };
  const model = await loadModel(files(), { cache: false, maxContext: 4096, features: { matrix: query.get("matrix") !== "0" } });
  const encode = [];
  const whole = [];
  let tokens = 0;
  for (let round = 0; round < rounds + 2; round++) {
    const shot = image(round);
    const start = performance.now();
    const { ms, tokens: count } = await model.encodeImage(shot);
    // The first rounds load the encoder and compile its kernels.
    if (round < 2) continue;
    encode.push(ms);
    whole.push(performance.now() - start);
    tokens = count;
  }
  // Time to first token: with a new image, and with an image in the cached prefix.
  const firsts = { fresh: [], known: [] };
  for (let round = 0; round < 7; round++) {
    const shot = image(1000 + round);
    for (const kind of ["fresh", "known"]) {
      const start = performance.now();
      // `ignoreEos`: random weights may sample a token without text.
      await model.describe(shot, kind === "fresh" ? "What is this?" : "What is this? Say more.", { maxTokens: 1, temperature: 0, ignoreEos: true });
      if (round >= 2) firsts[kind].push(performance.now() - start);
    }
  }
  const patches = tokens * 4;
  const weights = depth * (4 * wide * wide + 2 * wide * inner) + 3 * 2 * PATCH * PATCH * wide;
  const matmulFlops = 2 * patches * weights + 2 * tokens * (16 * wide * wide + 4 * wide * TEXT.hidden_size);
  const attentionFlops = 4 * depth * patches * patches * wide;
  const { profiles } = await model.measure({ profile: [rows], limits: false, steps: 0 });
  const kernels = profiles.find((profile) => profile.rows === rows)?.kernels;
  const gemm = kernels?.gemm_matrix ?? kernels?.gemm;
  // The language model's matrices without the LM head, which multiplies one row only.
  const matrices = tensors().filter(([name, shape]) => name.includes("language_model.layers") && shape.length === 2);
  const prompt = 2 * rows * matrices.reduce((sum, [, [outputs, inputs]]) => sum + outputs * inputs, 0);
  const ms = median(encode);
  const reached = matmulFlops / ms / 1e9;
  const ofPrompt = gemm ? prompt / gemm.ms / 1e9 : undefined;
  const result = { device, side, tokens, patches, rounds, ms, wholeMs: median(whole), all: encode, firstMs: median(firsts.fresh), knownFirstMs: median(firsts.known), firsts, productTflops: reached, tflops: (matmulFlops + attentionFlops) / ms / 1e9, promptTflops: ofPrompt, share: ofPrompt && (matmulFlops + attentionFlops) / ms / 1e9 / ofPrompt };
  say(`${side} x ${side}: ${patches} patches, ${tokens} tokens; encoded in ${ms.toFixed(2)} ms (median of ${rounds}), including resizing and the page ${result.wholeMs.toFixed(2)} ms`);
  say(`${result.tflops.toFixed(2)} TFLOP/s, matmuls alone ${reached.toFixed(2)}; matmuls of a prompt of ${rows} tokens: ${ofPrompt?.toFixed(2) ?? "no timestamps"}; share ${result.share ? `${(100 * result.share).toFixed(0)} %` : "unknown"}`);
  say(`Time to first token: ${result.firstMs.toFixed(1)} ms with a new image (decode, encode, prompt), ${result.knownFirstMs.toFixed(1)} ms with an image in the cached prefix`);
  await model.unload();
  return result;
}

window.result = await run().catch((error) => ({ error: `${error.code ?? ""} ${error.message}` }));
if (window.result.error) say(window.result.error);
await fetch("/result", { method: "POST", body: JSON.stringify(window.result) }).catch(() => {});
say("done");
