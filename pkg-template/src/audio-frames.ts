/** Finds the frames of MP3 and AAC (ADTS) files, so that a long file can be cut between them. */

/** Frames of one rate and length. `starts[i]` is where frame i begins in the file; the last entry is where the last one ends. */
export interface AudioFrames {
  rate: number;
  samplesPerFrame: number;
  starts: number[];
  /** Frames that must precede a frame for it to decode as in the whole file. */
  lead: number;
}

/** A frame's header. */
interface FrameHeader {
  bytes: number;
  samples: number;
  rate: number;
}

/** A format: its header at a position, and the frames that its decoder remembers. */
interface FrameFormat {
  header(bytes: Uint8Array, at: number): FrameHeader | undefined;
  lead: number;
}

/** MPEG 1 layer III; MPEG 2 and 2.5 have a half and a quarter of the rates. */
const MP3_RATES = [44_100, 48_000, 32_000];
/** Bit rates in kbit/s of MPEG 1, and of MPEG 2 and 2.5. */
const MP3_BIT_RATES = [
  [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
  [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
] as const;
const AAC_RATES = [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000, 7350];
const ADTS_HEADER_BYTES = 7;
/** Headers that must follow each other for a file to count as one of a format. */
const MIN_FRAMES = 3;

const MP3: FrameFormat = {
  // The bit reservoir reaches 511 bytes back, which are up to 22 of the smallest frames; the filter bank one frame.
  lead: 24,
  header(bytes, at) {
    const [sync = 0, version = 0, rates = 0] = bytes.subarray(at, at + 3);
    if (sync !== 0xff || (version & 0xe6) !== 0xe2) return undefined;
    const mpeg = (version >> 3) & 3;
    const kilobits = MP3_BIT_RATES[mpeg === 3 ? 0 : 1][(rates >> 4) - 1];
    const fullRate = MP3_RATES[(rates >> 2) & 3];
    if (mpeg === 1 || kilobits === undefined || fullRate === undefined) return undefined;
    const rate = fullRate / [4, 1, 2, 1][mpeg]!;
    const samples = mpeg === 3 ? 1152 : 576;
    return { rate, samples, bytes: Math.floor((samples * kilobits * 125) / rate) + ((rates >> 1) & 1) };
  },
};

const ADTS: FrameFormat = {
  // Spectral band replication looks back by a few frames.
  lead: 4,
  header(bytes, at) {
    const [sync = 0, version = 0, rates = 0, high = 0, middle = 0, low = 0, blocks = 0] = bytes.subarray(at, at + ADTS_HEADER_BYTES);
    const rate = AAC_RATES[(rates >> 2) & 15];
    const length = ((high & 3) << 11) | (middle << 3) | (low >> 5);
    if (sync !== 0xff || (version & 0xf6) !== 0xf0 || rate === undefined || length < ADTS_HEADER_BYTES) return undefined;
    return { rate, samples: 1024 * ((blocks & 3) + 1), bytes: length };
  },
};

/** The frames of an MP3 or ADTS file; undefined for other files. */
export function audioFrames(bytes: Uint8Array): AudioFrames | undefined {
  const begin = tagBytes(bytes);
  return framesOf(MP3, bytes, begin) ?? framesOf(ADTS, bytes, begin);
}

/** Bytes of the ID3 tag before the first frame. */
function tagBytes(bytes: Uint8Array): number {
  if (bytes.length < 10 || String.fromCharCode(...bytes.subarray(0, 3)) !== "ID3") return 0;
  return bytes.subarray(6, 10).reduce((size, byte) => size * 128 + (byte & 0x7f), 0) + 10;
}

function framesOf({ header, lead }: FrameFormat, bytes: Uint8Array, begin: number): AudioFrames | undefined {
  const first = header(bytes, begin);
  if (!first) return undefined;
  const { rate, samples } = first;
  const same = (at: number): FrameHeader | undefined => {
    const found = header(bytes, at);
    return found?.rate === rate && found.samples === samples && at + found.bytes <= bytes.length ? found : undefined;
  };
  const starts: number[] = [];
  let end = begin;
  for (let at = begin; at < bytes.length; ) {
    const frame = same(at);
    if (frame) {
      starts.push(at);
      at = end = at + frame.bytes;
      continue;
    }
    if (starts.length < MIN_FRAMES) return undefined;
    // Tags and damage between frames: the next frame is one that another follows.
    do at = bytes.indexOf(0xff, at + 1);
    while (at >= 0 && !(same(at) && same(at + same(at)!.bytes)));
    if (at < 0) break;
  }
  if (starts.length < MIN_FRAMES) return undefined;
  return { rate, samplesPerFrame: samples, starts: starts.concat(end), lead };
}
