/** Converts audio inputs to mono samples at 16 kHz, and samples to PCM and WAV. */

import { describe, MAX_AUDIO_SECONDS } from "./check.js";
import { aborted, JerboaError, invalidRequest, missingAsset } from "./errors.js";
import { isDetached } from "./plain-json.js";
import { platform, type Platform } from "./platform.js";
import { ASSET_TIMEOUT_MS, AUDIO_TIMEOUT_MS, untilAborted, withTimeout } from "./waits.js";

/** Sample rate of the models' input, in Hz. */
export const SAMPLE_RATE = 16_000;

/**
 * Audio: a file, blob or bytes in any format that the browser decodes, an `AudioBuffer`, or samples with their rate.
 * Channels are mixed to mono.
 */
export type AudioInput = Blob | ArrayBuffer | ArrayBufferView | AudioBuffer | Float32Array | { samples: Float32Array; sampleRate: number };

/** Files of most formats that are shorter than this hold no hours of audio; see {@link mayHoldHours}. */
const SHORT_FILE_BYTES = 64 << 10;

/** Mono samples at 16 kHz. `sampleRate` applies to a bare Float32Array. An abort ends the wait at once. */
export function samplesOf(where: string, input: unknown, sampleRate?: number, signal?: AbortSignal): Promise<Float32Array> {
  return untilAborted(0, where, signal, samplesNow(where, input, sampleRate, signal));
}

async function samplesNow(where: string, input: unknown, sampleRate: number | undefined, signal: AbortSignal | undefined): Promise<Float32Array> {
  const given = input as AudioInput;
  const whole = typeof given === "object" && given !== null && "samples" in given ? given.samples : given;
  const buffer = ArrayBuffer.isView(whole) ? whole.buffer : whole;
  if (buffer instanceof ArrayBuffer && isDetached(buffer)) throw invalidRequest(`${where}: the audio's buffer was transferred elsewhere. Pass a copy.`);
  if (given instanceof Float32Array) {
    if (sampleRate === undefined) throw invalidRequest(`${where}: a Float32Array needs its sample rate. Set 'sampleRate'.`);
    return resample(where, given, sampleRate);
  }
  if (typeof AudioBuffer !== "undefined" && given instanceof AudioBuffer) return resampleBuffer(where, given);
  if (typeof given === "object" && given !== null && "samples" in given) {
    if (!(given.samples instanceof Float32Array)) throw invalidRequest(`${where}: 'samples' must be a Float32Array, not ${describe(given.samples)}.`);
    return resample(where, given.samples, given.sampleRate);
  }
  let bytes: ArrayBuffer;
  if (given instanceof Blob) bytes = await given.arrayBuffer().catch((thrown) => { throw invalidRequest(`${where}: the file cannot be read any more: ${(thrown as Error).message}. Select it again.`); });
  else if (given instanceof ArrayBuffer) bytes = given.slice(0);
  else if (ArrayBuffer.isView(given)) bytes = new Uint8Array(given.buffer, given.byteOffset, given.byteLength).slice().buffer;
  else throw invalidRequest(`${where}: the audio must be a File, Blob, ArrayBuffer, AudioBuffer or Float32Array, not ${describe(input)}.`);
  if (bytes.byteLength === 0) throw invalidRequest(`${where}: the file is empty (0 bytes). Select a file with audio.`);
  if (isEmptyWav(new DataView(bytes))) throw invalidRequest(`${where}: the WAV file has a header and no samples. Select a file with audio.`);
  const host = platform();
  if (!host && typeof OfflineAudioContext === "undefined") throw noAudio(where);
  const decode = (file: ArrayBuffer): Promise<Float32Array> => {
    if (signal?.aborted) throw aborted(where);
    return host ? decodeOn(host, where, file) : decodeAudio(where, file);
  };
  if (bytes.byteLength < SHORT_FILE_BYTES && !mayHoldHours(new DataView(bytes))) return decode(bytes);
  const { decodeInWindows } = await withTimeout(ASSET_TIMEOUT_MS, "the server of audio-windows.js", import("./audio-windows.js")).catch((thrown) => {
    throw missingAsset("The decoder of long audio", thrown);
  });
  return (await decodeInWindows(where, bytes, decode)) ?? decode(bytes);
}

/** Decodes a file outside a browser. */
async function decodeOn(host: Platform, where: string, bytes: ArrayBuffer): Promise<Float32Array> {
  try {
    const { channels, sampleRate } = await host.decodeAudio(bytes);
    return await resample(where, meanOf(channels), sampleRate);
  } catch (thrown) {
    if (thrown instanceof JerboaError) throw thrown;
    throw new JerboaError("request", `${where}: the file cannot be decoded: it is not audio, or in an unsupported format. Use WAV, MP3 or FLAC.`, { cause: thrown });
  }
}

/** The first bytes of a FLAC file, and those of an MP4 file after its first four. */
const [FLAC_MAGIC, MP4_MAGIC] = [0x664c6143, 0x66747970];

/** Whether even a small file may hold hours: FLAC compresses silence to nothing, MP4 may refer to the same bytes again and again. */
function mayHoldHours(file: DataView): boolean {
  return file.byteLength >= 8 && (file.getUint32(0) === FLAC_MAGIC || file.getUint32(4) === MP4_MAGIC);
}

/** Whether a WAV file has no samples. */
function isEmptyWav(file: DataView): boolean {
  const [RIFF, DATA] = [0x52494646, 0x64617461];
  if (file.byteLength < 12 || file.getUint32(0) !== RIFF) return false;
  for (let at = 12, size: number; at + 8 <= file.byteLength; at += 8 + size + (size % 2)) {
    size = file.getUint32(at + 4, true);
    if (file.getUint32(at) === DATA) return size === 0 || at + 8 === file.byteLength;
  }
  return false;
}

async function decodeAudio(where: string, bytes: ArrayBuffer): Promise<Float32Array> {
  try {
    // The context decodes to its own sample rate.
    const decoding = new OfflineAudioContext(1, 1, SAMPLE_RATE).decodeAudioData(bytes);
    return mixToMono(await withTimeout(AUDIO_TIMEOUT_MS, "decodeAudioData()", decoding));
  } catch (thrown) {
    throw new JerboaError("request", `${where}: this browser cannot decode the file: it is not audio, or in an unsupported format. Use WAV or MP3.`, { cause: thrown });
  }
}

async function resampleBuffer(where: string, buffer: AudioBuffer): Promise<Float32Array> {
  return resample(where, mixToMono(buffer), buffer.sampleRate);
}

/** Mixes the channels to mono by their mean. */
function mixToMono(buffer: AudioBuffer): Float32Array {
  return meanOf(Array.from({ length: buffer.numberOfChannels }, (_, channel) => buffer.getChannelData(channel)));
}

function meanOf(channels: Float32Array[]): Float32Array {
  const out = new Float32Array(channels[0]?.length ?? 0);
  for (const samples of channels) for (let i = 0; i < out.length; i++) out[i]! += samples[i]! / channels.length;
  return out;
}

/** Resamples to 16 kHz. */
export async function resample(where: string, samples: Float32Array, sampleRate: number): Promise<Float32Array> {
  if (typeof sampleRate !== "number" || !(sampleRate >= 3000 && sampleRate <= 768_000)) throw invalidRequest(`${where}: the sample rate must be a number between 3,000 and 768,000 Hz, not ${describe(sampleRate)}.`);
  if (samples.length > MAX_AUDIO_SECONDS * sampleRate) throw invalidRequest(`${where}: the audio is ${(samples.length / sampleRate / 3600).toFixed(1)} hours long; the limit is ${MAX_AUDIO_SECONDS / 3600} hours. Transcribe parts of it one after another.`);
  if (sampleRate === SAMPLE_RATE || samples.length === 0) return samples.slice();
  const host = platform();
  if (host) return host.resample(samples, sampleRate, SAMPLE_RATE);
  if (typeof OfflineAudioContext === "undefined") throw noAudio(where);
  const context = new OfflineAudioContext(1, Math.max(1, Math.round((samples.length * SAMPLE_RATE) / sampleRate)), SAMPLE_RATE);
  const buffer = context.createBuffer(1, samples.length, sampleRate);
  buffer.getChannelData(0).set(samples);
  const source = context.createBufferSource();
  source.buffer = buffer;
  source.connect(context.destination);
  source.start();
  const rendered = await withTimeout(AUDIO_TIMEOUT_MS, "startRendering()", context.startRendering()).catch((thrown) => {
    throw new JerboaError("request", `${where}: the audio could not be resampled: ${(thrown as Error).message}. Pass samples at ${SAMPLE_RATE} Hz.`, { cause: thrown });
  });
  return rendered.getChannelData(0);
}

function noAudio(where: string): JerboaError {
  return invalidRequest(`${where}: Web Audio is not available here, so audio cannot be decoded or resampled. Call it in a page, or pass samples at ${SAMPLE_RATE} Hz.`);
}

/** Samples as 16-bit little-endian PCM. */
export function pcm16(samples: Float32Array): ArrayBuffer {
  const view = new DataView(new ArrayBuffer(samples.length * 2));
  samples.forEach((sample, i) => view.setInt16(i * 2, Math.round(Math.max(-1, Math.min(1, sample)) * 32_767), true));
  return view.buffer;
}

/** The header of a mono 16-bit WAV file, before this many bytes of samples. */
export function wavHeader(bytes: number, sampleRate: number): ArrayBuffer {
  const head = new DataView(new ArrayBuffer(44));
  const text = (at: number, value: string): void => [...value].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  head.setUint32(4, 36 + bytes, true);
  text(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, sampleRate, true);
  head.setUint32(28, sampleRate * 2, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  text(36, "data");
  head.setUint32(40, bytes, true);
  return head.buffer;
}

/** A mono 16-bit WAV file. */
export function wav(pieces: Float32Array[], sampleRate: number): Blob {
  const bytes = pieces.reduce((sum, piece) => sum + piece.length * 2, 0);
  return new Blob([wavHeader(bytes, sampleRate), ...pieces.map(pcm16)], { type: "audio/wav" });
}
