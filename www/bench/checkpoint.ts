/**
 * A checkpoint of a shape with random weights, made in the page: a few megabytes of random bytes, repeated by reference,
 * so that even 8 billion weights take no time and no memory. The speed of a dense model does not depend on its weights.
 */

import type { Config } from "./shapes";

/** How the weights are stored: 16-bit floats, or MLX's 4-bit codes in groups of 64 with a scale and a bias each. */
export type Stored = "f16" | "mlx4";

/** A number of [0, 2^32) at a time, the same ones for the same seed. */
function randomWords(seed: number): () => number {
  let state = seed | 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

/** The bits of a half-precision float, for normal numbers. */
function half(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0]!;
  const exponent = ((bits >>> 23) & 255) - 112;
  return exponent <= 0 ? 0 : ((bits >>> 16) & 0x8000) | (exponent << 10) | ((bits >>> 13) & 1023);
}

const BLOCK = 16 << 20;
/** A block is made of pieces: the browser shares whole pieces between blobs, and copies the one that a slice cuts. */
const PIECE = 256 << 10;
/** The standard deviation that transformers initialises with: logits stay finite and are not all alike. */
const DEVIATION = 0.02;
const GROUP = 64;

function inPieces(words: Uint32Array | Uint16Array): Blob {
  const step = PIECE / words.BYTES_PER_ELEMENT;
  const count = Math.ceil(words.length / step);
  return new Blob(Array.from({ length: count }, (_, i) => new Blob([words.slice(i * step, (i + 1) * step)])));
}

/** Random bytes of each kind, once. */
class Blocks {
  readonly codes = this.#words(1);
  readonly normal = this.#normal();
  readonly #scale = Array.from({ length: 256 }, (_, i) => (DEVIATION / 4.61) * (0.9 + (0.2 * i) / 256));
  readonly scales = this.#halves(2, this.#scale);
  readonly biases = this.#halves(2, this.#scale.map((s) => -7.5 * s));
  readonly ones = inPieces(new Uint16Array(1 << 19).fill(half(1)));
  readonly zeros = inPieces(new Uint16Array(1 << 19));

  #words(seed: number): Blob {
    const next = randomWords(seed);
    return inPieces(Uint32Array.from({ length: BLOCK / 4 }, next));
  }

  /** Values of a table, at random. */
  #halves(seed: number, table: number[]): Blob {
    const next = randomWords(seed);
    const bits = Uint16Array.from(table, half);
    return inPieces(Uint16Array.from({ length: 1 << 19 }, () => bits[(next() >>> 8) % bits.length]!));
  }

  #normal(): Blob {
    const next = randomWords(3);
    const uniform = (): number => (next() + 1) / 4294967297;
    const table = Uint16Array.from({ length: 4096 }, () => half(DEVIATION * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform())));
    const values = new Uint16Array(BLOCK / 2);
    for (let i = 0; i < values.length; i++) values[i] = table[next() >>> 20]!;
    return inPieces(values);
  }
}

/** `bytes` of a block, from `start` on and round again. */
function repeat(block: Blob, bytes: number, start: number): Blob[] {
  const parts = [];
  for (let at = start % block.size, left = bytes; left > 0; at = 0) {
    const size = Math.min(left, block.size - at);
    parts.push(size === block.size ? block : block.slice(at, at + size));
    left -= size;
  }
  return parts;
}

type Tensor = { name: string; shape: number[]; kind: "matrix" | "norm" | "bias" };

const matrix = (name: string, rows: number, cols: number): Tensor => ({ name: `${name}.weight`, shape: [rows, cols], kind: "matrix" });
const norm = (name: string, size: number): Tensor => ({ name: `${name}.weight`, shape: [size], kind: "norm" });
const bias = (name: string, size: number): Tensor => ({ name: `${name}.bias`, shape: [size], kind: "bias" });

/** The tensors of a BERT. */
function* bert(c: Config): Generator<Tensor> {
  const { hidden_size: h, intermediate_size: i } = c;
  const both = function* (name: string, rows: number, cols: number): Generator<Tensor> {
    yield matrix(name, rows, cols);
    yield bias(name, rows);
  };
  const layerNorm = function* (name: string): Generator<Tensor> {
    yield norm(`${name}.LayerNorm`, h);
    yield bias(`${name}.LayerNorm`, h);
  };
  yield matrix("embeddings.word_embeddings", c.vocab_size, h);
  yield matrix("embeddings.position_embeddings", Number(c.max_position_embeddings), h);
  yield matrix("embeddings.token_type_embeddings", Number(c.type_vocab_size), h);
  yield* layerNorm("embeddings");
  for (let n = 0; n < c.num_hidden_layers; n++) {
    const p = `encoder.layer.${n}.`;
    for (const name of ["query", "key", "value"]) yield* both(`${p}attention.self.${name}`, h, h);
    yield* both(`${p}attention.output.dense`, h, h);
    yield* layerNorm(`${p}attention.output`);
    yield* both(`${p}intermediate.dense`, i, h);
    yield* both(`${p}output.dense`, h, i);
    yield* layerNorm(`${p}output`);
  }
}

/** The tensors of a shape by the names of their repository. */
function* tensors(c: Config): Generator<Tensor> {
  const { hidden_size: h, intermediate_size: i, vocab_size: v, model_type: type } = c;
  if (type === "bert") return yield* bert(c);
  const d = c.head_dim ?? h / c.num_attention_heads;
  const [q, kv] = [c.num_attention_heads * d, (c.num_key_value_heads ?? c.num_attention_heads) * d];
  yield matrix("model.embed_tokens", v, h);
  for (let n = 0; n < c.num_hidden_layers; n++) {
    const p = `model.layers.${n}.`;
    yield norm(`${p}input_layernorm`, h);
    yield norm(`${p}post_attention_layernorm`, h);
    if (type === "phi3") {
      yield matrix(`${p}self_attn.qkv_proj`, q + 2 * kv, h);
      yield matrix(`${p}mlp.gate_up_proj`, 2 * i, h);
    } else {
      for (const [name, rows] of [["q", q], ["k", kv], ["v", kv]] as const) {
        yield matrix(`${p}self_attn.${name}_proj`, rows, h);
        if (type === "qwen2") yield bias(`${p}self_attn.${name}_proj`, rows);
        if (type === "qwen3" && name !== "v") yield norm(`${p}self_attn.${name}_norm`, d);
      }
      yield matrix(`${p}mlp.gate_proj`, i, h);
      yield matrix(`${p}mlp.up_proj`, i, h);
    }
    yield matrix(`${p}self_attn.o_proj`, h, q);
    yield matrix(`${p}mlp.down_proj`, h, i);
  }
  yield norm("model.norm", h);
  if (!c.tie_word_embeddings) yield matrix("lm_head", v, h);
}

/** The files of a checkpoint: config.json and model.safetensors. */
export function checkpoint(config: Config, stored: Stored): File[] {
  const blocks = new Blocks();
  const header: Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }> = {};
  const parts: Blob[] = [];
  let offset = 0;
  let index = 0;
  const add = (name: string, dtype: string, width: number, shape: number[], block: Blob, start = 0): void => {
    const bytes = shape.reduce((a, b) => a * b, width);
    header[name] = { dtype, shape, data_offsets: [offset, offset + bytes] };
    parts.push(...repeat(block, bytes, start));
    offset += bytes;
  };
  for (const { name, shape, kind } of tensors(config)) {
    const start = PIECE * 7 * index++;
    if (kind !== "matrix") {
      add(name, "F16", 2, shape, kind === "norm" ? blocks.ones : blocks.zeros);
    } else if (stored === "f16" || shape[1]! % GROUP !== 0) {
      add(name, "F16", 2, shape, blocks.normal, start);
    } else {
      const [rows, cols] = shape as [number, number];
      const base = name.slice(0, -".weight".length);
      add(name, "U32", 4, [rows, cols / 8], blocks.codes, start);
      add(`${base}.scales`, "F16", 2, [rows, cols / GROUP], blocks.scales);
      add(`${base}.biases`, "F16", 2, [rows, cols / GROUP], blocks.biases);
    }
  }
  const quantization = stored === "mlx4" ? { quantization: { group_size: GROUP, bits: 4 } } : {};
  const full = { hidden_act: "silu", ...config, ...quantization, torch_dtype: "float16" };
  let text = JSON.stringify(header);
  text = text.padEnd(Math.ceil(text.length / 8) * 8, " ");
  const length = new Uint8Array(8);
  new DataView(length.buffer).setUint32(0, text.length, true);
  return [new File([JSON.stringify(full)], "config.json"), new File([length, text, ...parts], "model.safetensors")];
}
