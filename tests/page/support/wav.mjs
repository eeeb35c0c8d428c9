/** WAV files for tests. */

/** A WAV file: `sample(t)` of each channel, in 16 or 24 bits. */
export function wav({ rate = 16_000, seconds = 1, channels = 1, bits = 16, sample = () => 0 }) {
  const frames = Math.round(rate * seconds);
  const bytes = bits / 8;
  const data = Buffer.alloc(frames * channels * bytes);
  for (let i = 0; i < frames; i++) for (let c = 0; c < channels; c++) data.writeIntLE(Math.round(sample(i / rate, c) * (2 ** (bits - 1) - 1)), (i * channels + c) * bytes, bytes);
  const head = Buffer.alloc(44);
  head.write("RIFF", 0);
  head.writeUInt32LE(36 + data.length, 4);
  head.write("WAVEfmt ", 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(channels, 22);
  head.writeUInt32LE(rate, 24);
  head.writeUInt32LE(rate * channels * bytes, 28);
  head.writeUInt16LE(channels * bytes, 32);
  head.writeUInt16LE(bits, 34);
  head.write("data", 36);
  head.writeUInt32LE(data.length, 40);
  return Buffer.concat([head, data]);
}
