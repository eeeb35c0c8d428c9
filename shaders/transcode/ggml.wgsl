// Transcodes GGUF blocks to their layouts. KIND is ggml's type number.
#import transcode/pack
#ifdef SCALE_BYTES
@group(0) @binding(3) var<storage, read_write> out_s: array<atomic<u32>>;
#else
@group(0) @binding(3) var<storage, read_write> out_s: array<u32>;
#endif

// The values of IQ4_NL and IQ4_XS plus 128, by code.
fn iq4(code: u32) -> u32 {
    var four = 0x3f2d1801u;
    switch (code / 4u) {
        case 1u: { four = 0x766a5d4fu; }
        case 2u: { four = 0xa6998d81u; }
        case 3u: { four = 0xf1d9c5b5u; }
        default: {}
    }
    return (four >> ((code % 4u) * 8u)) & 255u;
}

// Element e of a TQ1_0 block: five ternary digits per byte, stored as a fraction of 256.
fn tq1(b: u32, e: u32) -> u32 {
    var at = e % 32u;
    var digit = e / 32u;
    if (e >= 240u) {
        at = 48u + e % 4u;
        digit = (e - 240u) / 4u;
    } else if (e >= 160u) {
        at = 32u + e % 16u;
        digit = (e - 160u) / 16u;
    }
    var power = 1u;
    for (var i = 0u; i < digit; i++) {
        power *= 3u;
    }
    return (((byte(b + at) * power) & 255u) * 3u) >> 8u;
}

// Element e of an I2_S tensor: byte p of 32 holds elements p, p + 32, p + 64, p + 96 from the top bits down.
fn i2s(e: u32) -> u32 {
    return (byte(params.src_at + e / 128u * 32u + e % 32u) >> (6u - 2u * (e % 128u / 32u))) & 3u;
}

fn half_at(i: u32) -> f32 {
    return f16_value(half_bits(i));
}

fn nibble(at: u32, i: u32) -> u32 {
    return (byte(at + (i & 15u)) >> ((i >> 4u) * 4u)) & 15u;
}

// Code of element i of sub-block j of the block at byte b.
fn code(b: u32, j: u32, i: u32) -> u32 {
    if (KIND == 2u) { return nibble(b + 2u, i); }
    if (KIND == 3u) { return nibble(b + 4u, i); }
    if (KIND == 6u) { return nibble(b + 6u, i) | (((byte(b + 2u + i / 8u) >> (i % 8u)) & 1u) << 4u); }
    if (KIND == 7u) { return nibble(b + 8u, i) | (((byte(b + 4u + i / 8u) >> (i % 8u)) & 1u) << 4u); }
    if (KIND == 8u) { return byte(b + 2u + i) ^ 128u; }
    if (KIND == 10u) { return (byte(b + 16u + j / 4u * 32u + i) >> (2u * (j % 4u))) & 3u; }
    if (KIND == 11u) {
        let low = (byte(b + 32u + j / 4u * 32u + i) >> (2u * (j % 4u))) & 3u;
        return (low | (((byte(b + i) >> j) & 1u) << 2u)) + 28u;
    }
    if (KIND == 12u) { return (byte(b + 16u + j / 2u * 32u + i) >> (4u * (j % 2u))) & 15u; }
    if (KIND == 13u) {
        return ((byte(b + 48u + j / 2u * 32u + i) >> (4u * (j % 2u))) & 15u) | (((byte(b + 16u + i) >> j) & 1u) << 4u);
    }
    if (KIND == 20u || KIND == 23u) {
        if (KIND == 20u) { return iq4(nibble(b + 2u, i)); }
        return iq4(nibble(b + 8u + 16u * j, i));
    }
    if (KIND == 34u) { return tq1(b, j * 32u + i); }
    if (KIND == 35u) { return (byte(b + j / 4u * 32u + i) >> (2u * (j % 4u))) & 3u; }
    if (KIND == 39u) {
        // ggml's values have no negative zero.
        let n = nibble(b + 1u, i);
        if (n == 8u) { return 0u; }
        return n;
    }
    // 14: Q6_K
    let quarter = j % 4u;
    let low = (byte(b + j / 4u * 64u + (quarter % 2u) * 32u + i) >> (4u * (quarter / 2u))) & 15u;
    return low | (((byte(b + 128u + j / 4u * 32u + i) >> (2u * quarter)) & 3u) << 4u);
}

// 6-bit scale (x) and minimum (y) of sub-block j from the twelve bytes of Q4_K and Q5_K.
fn k_scale(s: u32, j: u32) -> vec2<u32> {
    if (j < 4u) {
        return vec2<u32>(byte(s + j) & 63u, byte(s + j + 4u) & 63u);
    }
    let both = byte(s + j + 4u);
    return vec2<u32>((both & 15u) | ((byte(s + j - 4u) >> 2u) & 0x30u), (both >> 4u) | ((byte(s + j) >> 2u) & 0x30u));
}

// Scale s of Q3_K as the byte of an i8.
fn q3_scale(b: u32, s: u32) -> u32 {
    let low = (byte(b + s % 8u) >> (4u * (s / 8u))) & 15u;
    let high = (byte(b + 8u + s % 4u) >> (2u * (s / 4u))) & 3u;
    return ((low | (high << 4u)) + 224u) & 255u;
}

fn negated(x: f32) -> u32 {
    return bitcast<u32>(x) ^ 0x80000000u;
}

// Scales of the block at byte b, of which this thread holds sub-block j.
fn scales(row: u32, block: u32, b: u32, j: u32) {
#ifdef SCALE_BYTES
    // Four blocks share a word, which is zero before the load.
    let index = (params.out_row + row) * params.blocks + block;
    atomicOr(&out_s[index >> 2u], byte(b) << ((index & 3u) * 8u));
#else
    let at = (params.out_row + row) * params.groups;
    if (KIND == 36u) {
        // One f32 after all elements; one per row of the layout.
        let end = params.src_at + params.n * params.cols / 4u;
        if (block == 0u) {
            out_s[params.out_row + row] = half_bits(end) | (half_bits(end + 2u) << 16u);
        }
        return;
    }
    if (KIND == 20u) {
        out_s[at + block] = half_bits(b) | (0x5800u << 16u);
        return;
    }
    if (KIND == 23u) {
        let low = (byte(b + 4u + j / 2u) >> (4u * (j % 2u))) & 15u;
        let high = (half_bits(b + 2u) >> (2u * j)) & 3u;
        out_s[2u * (at + block)] = bitcast<u32>(half_at(b) * (f32(low | (high << 4u)) - 32.0));
        out_s[2u * (at + block) + 1u] = bitcast<u32>(128.0);
        return;
    }
    if (KIND == 34u || KIND == 35u) {
        // 128 elements per pair, the zero point 1.
        if (j % 4u == 0u) {
            let d = half_bits(b + BLOCK_BYTES - 2u);
            out_s[at + block / 4u] = d | (0x3c00u << 16u);
        }
        return;
    }
    if (KIND == 2u || KIND == 6u || KIND == 8u) {
        // Zero points 8, 16 and 128 as f16.
        var zero = 0x5800u;
        if (KIND == 6u) { zero = 0x4c00u; }
        if (KIND == 2u) { zero = 0x4800u; }
        out_s[at + block] = half_bits(b) | (zero << 16u);
    } else if (KIND == 3u || KIND == 7u) {
        out_s[at + block] = half_bits(b) | (half_bits(b + 2u) << 16u);
    } else if (KIND == 10u) {
        for (var s = 0u; s < 2u; s++) {
            let packed = byte(b + 2u * j + s);
            let to = 2u * (at + 2u * block + s);
            out_s[to] = bitcast<u32>(half_at(b + 80u) * f32(packed & 15u));
            out_s[to + 1u] = negated(half_at(b + 82u) * f32(packed >> 4u));
        }
    } else if (KIND == 13u) {
        let pair = k_scale(b + 4u, j);
        out_s[2u * (at + block)] = bitcast<u32>(half_at(b) * f32(pair.x));
        out_s[2u * (at + block) + 1u] = negated(half_at(b + 2u) * f32(pair.y));
    } else if (j == 0u) {
        // Five words per 256: the f16 values, then sixteen bytes.
        let to = (at + block / 8u) * 5u;
        var bytes: array<u32, 4>;
        if (KIND == 12u) {
            out_s[to] = half_bits(b) | (half_bits(b + 2u) << 16u);
            for (var s = 0u; s < 8u; s++) {
                let pair = k_scale(b + 4u, s);
                bytes[s / 4u] |= pair.x << ((s % 4u) * 8u);
                bytes[2u + s / 4u] |= pair.y << ((s % 4u) * 8u);
            }
        } else {
            var half = b + 208u;
            if (KIND == 11u) { half = b + 108u; }
            out_s[to] = half_bits(half);
            for (var s = 0u; s < 16u; s++) {
                var scale = byte(b + 192u + s);
                if (KIND == 11u) {
                    scale = q3_scale(b + 96u, s);
                }
                bytes[s / 4u] |= scale << ((s % 4u) * 8u);
            }
        }
        for (var w = 0u; w < 4u; w++) {
            out_s[to + 1u + w] = bytes[w];
        }
    }
#endif
}

fn make_block(row: u32, source: u32, block: u32) {
    // Sub-blocks per block: 1 or 8. The source has no padding, since K is whole blocks.
    let j = block % SUBS;
    let b = params.src_at + (source * (params.blocks / SUBS) + block / SUBS) * BLOCK_BYTES;
    for (var i = 0u; i < 32u; i++) {
        if (KIND == 36u) {
            let k = block * 32u + i;
            if (k < params.cols) {
                put(BITS, i, i2s(source * params.cols + k));
            }
        } else {
            put(BITS, i, code(b, j, i));
        }
    }
    store_block(BITS, row, block);
    scales(row, block, b, j);
}
