/** FLAC files for tests: mono, 16 bits, without compression other than that of constant blocks. */

const crcTable = (bits, polynomial) =>
  Uint16Array.from({ length: 256 }, (_, byte) => {
    let crc = byte << (bits - 8);
    for (let i = 0; i < 8; i++) crc = ((crc << 1) ^ (crc >> (bits - 1) ? polynomial : 0)) & (2 ** bits - 1);
    return crc;
  });
const CRC8 = crcTable(8, 0x07);
const CRC16 = crcTable(16, 0x8005);
const crc8 = (bytes) => bytes.reduce((crc, byte) => CRC8[crc ^ byte], 0);
const crc16 = (bytes) => bytes.reduce((crc, byte) => ((crc << 8) & 0xffff) ^ CRC16[(crc >> 8) ^ byte], 0);

/** A frame number as FLAC codes it: like UTF-8. */
const coded = (number) => [...Buffer.from(String.fromCodePoint(number))];

/** Codes of common sample rates in a frame's header; 0 refers to STREAMINFO. */
const RATE_CODES = { 8000: 4, 16_000: 5, 22_050: 6, 24_000: 7, 32_000: 8, 44_100: 9, 48_000: 10 };

/**
 * A FLAC file of blocks of `size` samples: a number for a constant block, or its samples. `declared` overrides the
 * length in STREAMINFO.
 */
export function flac({ rate = 16_000, size = 65_535, blocks, declared = size * blocks.length }) {
  const info = Buffer.alloc(34);
  info.writeUInt16BE(size, 0);
  info.writeUInt16BE(size, 2);
  info.writeUInt32BE((rate << 12) | (0 << 9) | (15 << 4) | Math.floor(declared / 2 ** 32), 10);
  info.writeUInt32BE(declared % 2 ** 32, 14);
  const frames = blocks.map((block, number) => {
    const header = [0xff, 0xf8, 0x70 | (RATE_CODES[rate] ?? 0), 0x08, ...coded(number), (size - 1) >> 8, (size - 1) & 255];
    const samples = typeof block === "number" ? [block] : block;
    const values = samples.flatMap((sample) => [(sample >> 8) & 255, sample & 255]);
    const frame = Uint8Array.from([...header, crc8(header), typeof block === "number" ? 0 : 2, ...values]);
    const crc = crc16(frame);
    return Buffer.from([...frame, crc >> 8, crc & 255]);
  });
  return Buffer.concat([Buffer.from("fLaC"), Buffer.from([0x80, 0, 0, 34]), info, ...frames]);
}
