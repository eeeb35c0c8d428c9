/** Decodes long audio files window by window, so that memory holds the result and one window. Loaded on first use. */

import { audioFrames } from "./audio-frames.js";
import { MAX_AUDIO_SECONDS } from "./check.js";
import { JerboaError, invalidRequest } from "./errors.js";

/** Samples per second of the result. */
const SAMPLE_RATE = 16_000;
/** Longest audio in seconds that the browser decodes in one piece: it holds all channels at their own rate meanwhile. */
const MAX_WHOLE_AUDIO_SECONDS = 2 * 3600;
/** Seconds of one window. */
const WINDOW_SECONDS = 300;
/** Milliseconds until a media element must have read a file's header. */
const HEADER_TIMEOUT_MS = 5000;

/** A piece of a file that is a file itself, with its length in samples of the file's own rate. */
interface AudioWindow {
  file: ArrayBuffer;
  samples: number;
  /** Samples before them that only prepare the decoder. */
  lead?: number;
}

/** A file that can be cut: its rate, the length that it declares in samples, if any, and its pieces in order. */
interface Pieces {
  rate: number;
  declared?: number;
  windows: Iterable<AudioWindow>;
}

/**
 * Mono samples of a long file at 16 kHz; undefined if the file is short enough for one piece. `decode` decodes a small
 * file, and rejects when the call is aborted.
 */
export async function decodeInWindows(where: string, bytes: ArrayBuffer, decode: (file: ArrayBuffer) => Promise<Float32Array>): Promise<Float32Array | undefined> {
  const pieces = flacPieces(bytes) ?? wavPieces(bytes) ?? framePieces(new Uint8Array(bytes));
  if (!pieces) {
    const seconds = await declaredSeconds(bytes);
    if (seconds > MAX_WHOLE_AUDIO_SECONDS) throw tooLong(where, seconds, MAX_WHOLE_AUDIO_SECONDS, "Convert it to WAV, FLAC or MP3, which are decoded in chunks, or split it");
    return undefined;
  }
  const { rate, declared, windows } = pieces;
  const scaled = (samples: number): number => Math.round((samples * SAMPLE_RATE) / rate);
  const most = MAX_AUDIO_SECONDS * rate;
  if (declared !== undefined && declared > most) throw tooLong(where, declared / rate, MAX_AUDIO_SECONDS, "Split it");
  if (declared !== undefined && declared <= WINDOW_SECONDS * rate) return undefined;
  let out = allocated(where, scaled(declared ?? WINDOW_SECONDS * rate));
  let done = 0;
  for (const { file, samples, lead = 0 } of windows) {
    if (done + samples > most) throw tooLong(where, (done + samples) / rate, MAX_AUDIO_SECONDS, "Split it");
    const decoded = await decode(file);
    const end = scaled(done + samples);
    if (end > out.length) {
      const longer = allocated(where, Math.min(scaled(most), Math.max(end, 2 * out.length)));
      longer.set(out);
      out = longer;
    }
    out.set(decoded.subarray(scaled(lead), scaled(lead) + end - scaled(done)), scaled(done));
    done += samples;
  }
  return out.subarray(0, scaled(done));
}

function tooLong(where: string, seconds: number, limit: number, advice: string): JerboaError {
  return invalidRequest(`${where}: the audio is ${(seconds / 3600).toFixed(1)} hours long; the limit for this format is ${limit / 3600} hours. ${advice}, and transcribe the parts one after another.`);
}

function allocated(where: string, length: number): Float32Array<ArrayBuffer> {
  try {
    return new Float32Array(length);
  } catch (thrown) {
    throw new JerboaError("request", `${where}: this browser has too little memory for ${Math.round(length / SAMPLE_RATE / 60)} minutes of audio. Split it, and transcribe the parts one after another.`, { cause: thrown });
  }
}

/** The length that a media file declares, read by a media element; 0 if it declares none, or none can be read. */
async function declaredSeconds(bytes: ArrayBuffer): Promise<number> {
  if (typeof document === "undefined") return 0;
  const address = URL.createObjectURL(new Blob([bytes]));
  const media = document.createElement("audio");
  try {
    return await new Promise((resolve) => {
      setTimeout(resolve, HEADER_TIMEOUT_MS, 0);
      media.onloadedmetadata = () => resolve(Number.isFinite(media.duration) ? media.duration : 0);
      media.onerror = () => resolve(0);
      media.preload = "metadata";
      media.src = address;
    });
  } finally {
    media.removeAttribute("src");
    media.load();
    URL.revokeObjectURL(address);
  }
}

const text = (bytes: Uint8Array, at: number): string => String.fromCharCode(...bytes.subarray(at, at + 4));

/** Cuts a WAV file; undefined for other files, and for layouts that are not known. */
function wavPieces(file: ArrayBuffer): Pieces | undefined {
  const bytes = new Uint8Array(file);
  const view = new DataView(file);
  if (bytes.length < 44 || text(bytes, 0) !== "RIFF" || text(bytes, 8) !== "WAVE") return undefined;
  let format = 0;
  for (let at = 12; at + 8 <= bytes.length; ) {
    const [name, size] = [text(bytes, at), view.getUint32(at + 4, true)];
    if (name === "fmt ") format = at + 8;
    if (name === "data" && format) {
      const [rate, block] = [view.getUint32(format + 4, true), view.getUint16(format + 12, true)];
      const bits = view.getUint16(format + 14, true);
      const channels = view.getUint16(format + 2, true);
      // Blocks of one sample of each channel: not those of ADPCM.
      if (rate === 0 || block === 0 || block * 8 !== bits * channels) return undefined;
      const first = at + 8;
      const length = Math.min(size, bytes.length - first);
      const step = WINDOW_SECONDS * rate * block;
      const windows = function* (): Generator<AudioWindow> {
        for (let start = 0; start + block <= length; start += step) {
          const count = Math.floor(Math.min(step, length - start) / block) * block;
          const piece = new Uint8Array(first + count);
          piece.set(bytes.subarray(0, first));
          piece.set(bytes.subarray(first + start, first + start + count), first);
          const head = new DataView(piece.buffer);
          head.setUint32(4, piece.length - 8, true);
          head.setUint32(at + 4, count, true);
          yield { file: piece.buffer, samples: count / block };
        }
      };
      return { rate, declared: Math.floor(length / block), windows: windows() };
    }
    at += 8 + size + (size % 2);
  }
  return undefined;
}

/** Cuts an MP3 or ADTS file; undefined for other files. */
function framePieces(bytes: Uint8Array): Pieces | undefined {
  const found = audioFrames(bytes);
  if (!found) return undefined;
  const { rate, samplesPerFrame, starts, lead } = found;
  const frames = starts.length - 1;
  const step = Math.ceil((WINDOW_SECONDS * rate) / samplesPerFrame);
  const windows = function* (): Generator<AudioWindow> {
    for (let start = 0; start < frames; start += step) {
      const [from, to] = [Math.max(0, start - lead), Math.min(frames, start + step)];
      const file = bytes.slice(starts[from], starts[to]).buffer;
      yield { file, samples: (to - start) * samplesPerFrame, lead: (start - from) * samplesPerFrame };
    }
  };
  return { rate, declared: frames * samplesPerFrame, windows: windows() };
}

/** Bytes of a FLAC file before its metadata blocks, of a block's header, and of STREAMINFO. */
const [FLAC_MAGIC_BYTES, BLOCK_HEADER_BYTES, STREAMINFO_BYTES] = [4, 4, 34];

/** A FLAC file's rate, and the samples that it declares. */
function flacInfo(file: ArrayBuffer): { rate: number; declared?: number } | undefined {
  const bytes = new Uint8Array(file);
  const at = FLAC_MAGIC_BYTES + BLOCK_HEADER_BYTES;
  if (bytes.length < at + STREAMINFO_BYTES || text(bytes, 0) !== "fLaC" || (bytes[FLAC_MAGIC_BYTES]! & 0x7f) !== 0) return undefined;
  const view = new DataView(file);
  const rate = view.getUint32(at + 10) >>> 12;
  const declared = (bytes[at + 13]! & 15) * 2 ** 32 + view.getUint32(at + 14);
  return rate === 0 ? undefined : { rate, ...(declared > 0 ? { declared } : {}) };
}

/** Cuts a FLAC file between its frames, which do not depend on each other; undefined for other files. */
function flacPieces(file: ArrayBuffer): Pieces | undefined {
  const info = flacInfo(file);
  return info && { ...info, windows: flacWindows(new Uint8Array(file), info.rate) };
}

function* flacWindows(bytes: Uint8Array, rate: number): Generator<AudioWindow> {
  let at = FLAC_MAGIC_BYTES;
  for (let last = false; !last && at + BLOCK_HEADER_BYTES <= bytes.length; ) {
    last = (bytes[at]! & 0x80) !== 0;
    at += BLOCK_HEADER_BYTES + ((bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!);
  }
  const header = bytes.slice(0, FLAC_MAGIC_BYTES + BLOCK_HEADER_BYTES + STREAMINFO_BYTES);
  // STREAMINFO is the last block, and its checksum is unknown.
  header[FLAC_MAGIC_BYTES] = 0x80;
  header.fill(0, header.length - 16);
  const windowOf = (from: number, to: number, samples: number): AudioWindow => {
    const piece = new Uint8Array(header.length + to - from);
    piece.set(header);
    piece.set(bytes.subarray(from, to), header.length);
    const view = new DataView(piece.buffer);
    const length = FLAC_MAGIC_BYTES + BLOCK_HEADER_BYTES + 13;
    view.setUint8(length, view.getUint8(length) & 0xf0);
    view.setUint32(length + 1, samples);
    return { file: piece.buffer, samples };
  };
  let [frames, samples, inWindow, from] = [0, 0, 0, at];
  for (let frame = frameAt(bytes, at, 0, 0); frame; ) {
    frames++;
    samples += frame.samples;
    inWindow += frame.samples;
    const next = nextFrame(bytes, frame.end, frames, samples);
    if (!next || inWindow >= WINDOW_SECONDS * rate) {
      const to = next ? next.start : bytes.length;
      yield windowOf(from, to, inWindow);
      [from, inWindow] = [to, 0];
    }
    frame = next;
  }
}

/** A frame's header: where it starts and ends, and the frame's samples. */
interface FlacFrame {
  start: number;
  end: number;
  samples: number;
}

/** The next frame from `at` on. */
function nextFrame(bytes: Uint8Array, at: number, frames: number, samples: number): FlacFrame | undefined {
  for (let start = bytes.indexOf(0xff, at); start >= 0; start = bytes.indexOf(0xff, start + 1)) {
    const frame = frameAt(bytes, start, frames, samples);
    if (frame) return frame;
  }
  return undefined;
}

/** The frame at `at`, if one starts there that has this number (of frames, or of samples where sizes vary). */
function frameAt(bytes: Uint8Array, at: number, frames: number, samples: number): FlacFrame | undefined {
  const [sync = 0, codes = 0, channels = 1] = bytes.subarray(at + 1, at + 4);
  if (bytes[at] !== 0xff || (sync & 0xfe) !== 0xf8 || (channels & 1) !== 0 || channels >> 4 > 10) return undefined;
  let next = at + 4;
  const lead = bytes[next++] ?? 0xff;
  const ones = Math.clz32(~(lead << 24));
  if (ones === 1 || ones > 7) return undefined;
  let number = ones === 0 ? lead : lead & (0x7f >> ones);
  for (let i = 1; i < ones; i++) number = number * 64 + (bytes[next++]! & 0x3f);
  if (number !== ((sync & 1) === 0 ? frames : samples)) return undefined;
  const [size, rate] = [codes >> 4, codes & 15];
  let count = size === 1 ? 192 : size < 6 ? 576 << (size - 2) : 256 << (size - 8);
  if (size === 6) count = bytes[next++]! + 1;
  if (size === 7) count = ((bytes[next++]! << 8) | bytes[next++]!) + 1;
  if (rate === 12) next += 1;
  if (rate === 13 || rate === 14) next += 2;
  if (size === 0 || rate === 15 || next >= bytes.length) return undefined;
  return crc8(bytes.subarray(at, next)) === bytes[next] ? { start: at, end: next + 1, samples: count } : undefined;
}

/** The checksum of a frame's header: polynomial x^8 + x^2 + x + 1. */
function crc8(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = ((crc << 1) ^ (crc & 0x80 ? 0x07 : 0)) & 0xff;
  }
  return crc;
}
