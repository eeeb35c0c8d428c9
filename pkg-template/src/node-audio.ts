/** WAV files and sample rates in Node, which has no Web Audio. */

import type { DecodedAudio } from "./platform.js";

const PCM = 1;
const FLOAT = 3;
const EXTENSIBLE = 0xfffe;

/** Decodes a WAV file of integers (8 to 32 bits) or floats; undefined for other files. */
export function decodeWav(file: ArrayBuffer): DecodedAudio | undefined {
  const view = new DataView(file);
  const name = (at: number): string => String.fromCharCode(...new Uint8Array(file, at, 4));
  if (file.byteLength < 44 || name(0) !== "RIFF" || name(8) !== "WAVE") return undefined;
  let format: { kind: number; channels: number; sampleRate: number; bits: number } | undefined;
  for (let at = 12; at + 8 <= file.byteLength; ) {
    const size = view.getUint32(at + 4, true);
    const body = at + 8;
    if (name(at) === "fmt " && body + 16 <= file.byteLength) {
      const kind = view.getUint16(body, true);
      // The real format of an extensible file is the start of its GUID.
      format = { kind: kind === EXTENSIBLE && size >= 26 ? view.getUint16(body + 24, true) : kind, channels: view.getUint16(body + 2, true), sampleRate: view.getUint32(body + 4, true), bits: view.getUint16(body + 14, true) };
    }
    // A file that was recorded to a pipe states no length.
    if (name(at) === "data" && format) return samplesOf(view, body, Math.min(size, file.byteLength - body), format);
    at = body + size + (size % 2);
  }
  return undefined;
}

function samplesOf(view: DataView, start: number, bytes: number, { kind, channels, sampleRate, bits }: { kind: number; channels: number; sampleRate: number; bits: number }): DecodedAudio | undefined {
  const read = readerOf(view, kind, bits);
  if (!read || channels === 0 || sampleRate === 0) return undefined;
  const step = bits / 8;
  const length = Math.floor(bytes / (step * channels));
  const decoded = Array.from({ length: channels }, (_, channel) => Float32Array.from({ length }, (_, i) => read(start + (i * channels + channel) * step)));
  return { channels: decoded, sampleRate };
}

/** Reads a sample at an offset, from -1 to 1. */
function readerOf(view: DataView, kind: number, bits: number): ((at: number) => number) | undefined {
  if (kind === FLOAT) return bits === 32 ? (at) => view.getFloat32(at, true) : bits === 64 ? (at) => view.getFloat64(at, true) : undefined;
  if (kind !== PCM) return undefined;
  switch (bits) {
    case 8: return (at) => (view.getUint8(at) - 128) / 128;
    case 16: return (at) => view.getInt16(at, true) / 32_768;
    case 24: return (at) => ((view.getInt8(at + 2) << 16) | view.getUint16(at, true)) / 8_388_608;
    case 32: return (at) => view.getInt32(at, true) / 2_147_483_648;
    default: return undefined;
  }
}

/** Zero crossings of the sinc on each side of its middle. */
const CROSSINGS = 32;
/** Share of the lower Nyquist frequency that passes. */
const ROLLOFF = 0.945;

/** Resamples with a windowed sinc (Hann), which also removes what the lower rate cannot hold. */
export function resample(samples: Float32Array, from: number, to: number): Float32Array {
  if (from === to) return samples.slice();
  const out = new Float32Array(Math.max(1, Math.round((samples.length * to) / from)));
  const cutoff = Math.min(1, to / from) * ROLLOFF;
  const width = CROSSINGS / cutoff;
  // Offsets repeat with the period of the two rates, so their weights are computed once.
  const phases = to / greatestDivisor(from, to);
  const taps = 2 * Math.ceil(width) + 1;
  const weights = new Map<number, Float32Array>();
  for (let i = 0; i < out.length; i++) {
    const center = (i * from) / to;
    const first = Math.ceil(center - width);
    const phase = i % phases;
    let row = weights.get(phase);
    if (!row) {
      row = Float32Array.from({ length: taps }, (_, k) => weightAt(first + k - center, cutoff, width));
      weights.set(phase, row);
    }
    let sum = 0;
    for (let k = Math.max(0, -first); k < taps && first + k < samples.length; k++) sum += row[k]! * samples[first + k]!;
    out[i] = sum;
  }
  return out;
}

function weightAt(distance: number, cutoff: number, width: number): number {
  if (Math.abs(distance) >= width) return 0;
  const x = Math.PI * distance * cutoff;
  const sinc = x === 0 ? 1 : Math.sin(x) / x;
  return cutoff * sinc * 0.5 * (1 + Math.cos((Math.PI * distance) / width));
}

const greatestDivisor = (a: number, b: number): number => (b === 0 ? a : greatestDivisor(b, a % b));
