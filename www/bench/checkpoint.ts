/**
 * Builds a checkpoint of a shape with random weights: a few megabytes of random bytes, repeated by reference, so that
 * even 8 billion weights take no time and no memory. The speed of a dense model does not depend on its weights; a
 * random router spreads tokens over all experts.
 */

import type { Shape, Tensor } from "./shapes";

/**
 * Format of the weights: f16, or quantized as the configuration says. That is MLX 4-bit codes in groups of 64
 * with scale and bias, except for BitNet's ternary weights and GPT-OSS's MXFP4 experts.
 */
export type WeightFormat = "f16" | "mlx4";

/** Random numbers in [0, 2^32), reproducible by seed. */
function randomWords(seed: number): () => number {
  let state = seed | 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

/** The bits of an f16, for normal numbers. */
function toF16(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0]!;
  const exponent = ((bits >>> 23) & 255) - 112;
  return exponent <= 0 ? 0 : ((bits >>> 16) & 0x8000) | (exponent << 10) | ((bits >>> 13) & 1023);
}

const BLOCK = 16 << 20;
/** Size of a block's pieces: browsers share whole pieces between blobs, and copy a piece that a slice cuts. */
const PIECE = 256 << 10;
/** The standard deviation of transformers' initialization: logits stay finite and differ. */
const DEVIATION = 0.02;
const GROUP = 64;

function inPieces(words: Uint16Array<ArrayBuffer> | Uint8Array<ArrayBuffer>): Blob {
  const step = PIECE / words.BYTES_PER_ELEMENT;
  const count = Math.ceil(words.length / step);
  return new Blob(Array.from({ length: count }, (_, i) => new Blob([words.slice(i * step, (i + 1) * step)])));
}

/** One block of random bytes per kind. */
class Blocks {
  readonly codes = this.#bytes((byte) => byte);
  /** Four ternary weights per byte. */
  readonly ternary = this.#bytes((byte) => [0, 2, 4, 6].reduce((sum, at) => sum | (((byte >> at) & 3) % 3 << at), 0));
  /** Exponents that give MXFP4 codes the same spread as the other weights. */
  readonly exponents = this.#bytes((byte) => 119 + (byte % 3));
  readonly normal = this.#normal();
  readonly #scale = Array.from({ length: 256 }, (_, i) => (DEVIATION / 4.61) * (0.9 + (0.2 * i) / 256));
  readonly scales = this.#halves(2, this.#scale);
  readonly biases = this.#halves(2, this.#scale.map((s) => -7.5 * s));
  readonly ones = inPieces(new Uint16Array(1 << 19).fill(toF16(1)));
  readonly zeros = inPieces(new Uint16Array(1 << 19));

  /** Random bytes, each mapped by `of`. */
  #bytes(of: (byte: number) => number): Blob {
    const next = randomWords(1);
    const table = Uint8Array.from({ length: 256 }, (_, byte) => of(byte));
    const bytes = new Uint8Array(Uint32Array.from({ length: BLOCK / 4 }, next).buffer);
    return inPieces(bytes.map((byte) => table[byte]!));
  }

  /** Random values from a table, as f16. */
  #halves(seed: number, table: number[]): Blob {
    const next = randomWords(seed);
    const bits = Uint16Array.from(table, toF16);
    return inPieces(Uint16Array.from({ length: 1 << 19 }, () => bits[(next() >>> 8) % bits.length]!));
  }

  #normal(): Blob {
    const next = randomWords(3);
    const uniform = (): number => (next() + 1) / 4294967297;
    const table = Uint16Array.from({ length: 4096 }, () => toF16(DEVIATION * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform())));
    const values = new Uint16Array(BLOCK / 2);
    for (let i = 0; i < values.length; i++) values[i] = table[next() >>> 20]!;
    return inPieces(values);
  }
}

/** `bytes` of a block from `start`, wrapping around. */
function repeat(block: Blob, bytes: number, start: number): Blob[] {
  const parts = [];
  for (let at = start % block.size, left = bytes; left > 0; at = 0) {
    const size = Math.min(left, block.size - at);
    parts.push(size === block.size ? block : block.slice(at, at + size));
    left -= size;
  }
  return parts;
}

/** A tensor of the file: name, dtype, shape, and the block it is cut from. */
type StoredTensor = [name: string, dtype: "F16" | "U32" | "U8", shape: number[], block: keyof Blocks];

const BYTES = { F16: 2, U32: 4, U8: 1 };

/** The stored tensors of a matrix; experts are one tensor per layer, as in MLX and GPT-OSS. */
function storedTensors(name: string, { kind, shape }: Tensor, stored: WeightFormat, method: unknown): StoredTensor[] {
  if (kind === "ones" || kind === "zeros") return [[name, "F16", shape, kind]];
  const cols = shape.at(-1)!;
  const by = (part: number): number[] => [...shape.slice(0, -1), cols / part];
  const few = stored !== "f16" && kind !== "plain";
  if (few && method === "mxfp4" && kind === "experts") {
    const base = name.replace(".*", "").replace(".weight", "");
    return [[`${base}_blocks`, "U8", [...by(32), 16], "codes"], [`${base}_scales`, "U8", by(32), "exponents"]];
  }
  name = name.replace(".experts.*.", ".switch_mlp.");
  const base = name.replace(/\.weight$/, "");
  if (few && method === "bitnet" && kind === "matrix") {
    return [[name, "U8", [shape[0]! / 4, cols], "ternary"], [`${base}.weight_scale`, "F16", [1], "scales"]];
  }
  if (!few || method === "bitnet" || cols % GROUP !== 0) return [[name, "F16", shape, "normal"]];
  return [[name, "U32", by(8), "codes"], [`${base}.scales`, "F16", by(GROUP), "scales"], [`${base}.biases`, "F16", by(GROUP), "biases"]];
}

/** The configuration with its quantization settings. */
function configWithQuantization({ config }: Shape, stored: WeightFormat): object {
  const { quantization_config, ...rest } = config;
  const own = stored === "f16" || !quantization_config ? {} : { quantization_config };
  const few = stored === "f16" || quantization_config?.quant_method === "bitnet" ? {} : { quantization: { group_size: GROUP, bits: 4 } };
  return { ...(config.hidden_activation ? {} : { hidden_act: "silu" }), ...rest, ...own, ...few, torch_dtype: "float16" };
}

/** The files of a checkpoint: config.json and model.safetensors. */
export function checkpoint(shape: Shape, stored: WeightFormat): File[] {
  const blocks = new Blocks();
  const header: Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }> = {};
  const parts: Blob[] = [];
  let offset = 0;
  let index = 0;
  for (const tensor of shape.tensors) {
    const { layers = 1 } = tensor;
    for (const layer of typeof layers === "number" ? Array(layers).keys() : layers) {
      const name = tensor.name.replace(/(?<=layers?\.)\*/, String(layer));
      // Each tensor starts elsewhere in its block, so that no two are equal.
      const start = PIECE * 7 * index++;
      for (const [part, dtype, sizes, block] of storedTensors(name, tensor, stored, shape.config.quantization_config?.quant_method)) {
        const bytes = sizes.reduce((a, b) => a * b, BYTES[dtype]);
        header[part] = { dtype, shape: sizes, data_offsets: [offset, offset + bytes] };
        parts.push(...repeat(blocks[block], bytes, dtype === "F16" && block !== "normal" ? 0 : start));
        offset += bytes;
      }
    }
  }
  let text = JSON.stringify(header);
  text = text.padEnd(Math.ceil(text.length / 8) * 8, " ");
  const length = new Uint8Array(8);
  new DataView(length.buffer).setUint32(0, text.length, true);
  return [new File([JSON.stringify(configWithQuantization(shape, stored))], "config.json"), new File([length, text, ...parts], "model.safetensors")];
}
