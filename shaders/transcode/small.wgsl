// FP8, FP4 and table codes with scales, to dense layouts; each is rounded once from the f32 product. SOURCE: 0 E4M3
// with a scale per block, row or tensor; 1 E4M3 with E8M0 bytes (MLX's mxfp8). TABLE: bitsandbytes 4-bit; NESTED:
// scales are codes of a second table.
#import transcode/plain
@group(0) @binding(4) var<storage, read> src_s: array<u32>;
#ifdef TABLE
@group(0) @binding(5) var<storage, read> table: array<f32>;
#endif
#ifdef NESTED
@group(0) @binding(6) var<storage, read> nested_table: array<f32>;
@group(0) @binding(7) var<storage, read> nested_scales: array<f32>;
#endif

fn scale_byte(i: u32) -> u32 {
    let at = params.scale_at + i;
    return (src_s[at >> 2u] >> ((at & 3u) * 8u)) & 255u;
}

fn scale_value(i: u32) -> f32 {
    if (SCALE == 2u) {
        return bitcast<f32>(src_s[(params.scale_at >> 2u) + i]);
    }
    let at = params.scale_at / 2u + i;
    let bits = (src_s[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
    if (SCALE == 1u) {
        return bitcast<f32>(bits << 16u);
    }
    return f16_value(bits);
}

// The value of an E4M3 byte (no infinities, 0x7f and 0xff are NaN).
fn e4m3(code: u32) -> f32 {
    let sign = (code & 128u) << 24u;
    let e = (code >> 3u) & 15u;
    let m = code & 7u;
    if (e == 0u) {
        return bitcast<f32>(bitcast<u32>(f32(m) * 0.001953125) | sign);
    }
    if ((code & 127u) == 127u) {
        return bitcast<f32>(0x7fc00000u | sign);
    }
    return bitcast<f32>(sign | ((e + 120u) << 23u) | (m << 20u));
}

fn value(row: u32, k: u32) -> f32 {
    let i = row * params.cols + k;
#ifdef TABLE
    // The high nibble comes first.
    let code = (byte(params.src_at + i / 2u) >> (4u - 4u * (i & 1u))) & 15u;
    let block = i / params.group;
#ifdef NESTED
    let product = nested_table[scale_byte(block)] * nested_scales[block / params.nested];
    let scale = bitcast<f32>(bitcast<u32>(product) | params.nothing) + params.constant;
#else
    let scale = scale_value(block);
#endif
    return table[code] * scale;
#else
    let x = e4m3(byte(params.src_at + i));
    if (SOURCE == 1u) {
        let e = scale_byte(row * ((params.cols + 31u) / 32u) + k / 32u);
        if (e == 0u) {
            return x * bitcast<f32>(0x00400000u);
        }
        return x * bitcast<f32>(e << 23u);
    }
    let across = (params.cols + params.group - 1u) / params.group;
    return x * scale_value(row / params.block_rows * across + k / params.group);
#endif
}

fn bits_at(row: u32, k: u32) -> u32 {
    return to_bits(value(row, k));
}
