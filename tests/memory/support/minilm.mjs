/** Makes the random BERT of all-MiniLM-L6-v2's shape from tests/golden/embed/weights.json, as a safetensors file. */

/** lowbias32. */
function mix(x) {
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
  return (x ^ (x >>> 16)) >>> 0;
}

/** FNV-1a. */
function seedOf(name) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(name)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** Fills `target` with offset + scale * uniform, every step rounded to f32. */
export function fill(target, name, scale, offset) {
  const seed = seedOf(name);
  const [s, o] = [Math.fround(scale), Math.fround(offset)];
  for (let i = 0; i < target.length; i++) {
    const uniform = (mix(mix(i) ^ seed) >>> 8) * 2 ** -23 - 1;
    target[i] = o + Math.fround(s * uniform);
  }
  return target;
}

/** The bytes of model.safetensors. */
export function checkpoint(weights) {
  const header = { __metadata__: { format: "pt" } };
  let end = 0;
  for (const [name, { shape }] of Object.entries(weights.tensors)) {
    const bytes = shape.reduce((a, b) => a * b, 4);
    header[name] = { dtype: "F32", shape, data_offsets: [end, end + bytes] };
    end += bytes;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const start = 8 + Math.ceil(json.length / 8) * 8;
  const file = new Uint8Array(start + end).fill(32, 8, start);
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(json, 8);
  for (const [name, { scale, offset }] of Object.entries(weights.tensors)) {
    const [from, to] = header[name].data_offsets;
    fill(new Float32Array(file.buffer, start + from, (to - from) / 4), name, scale, offset);
  }
  return file;
}
