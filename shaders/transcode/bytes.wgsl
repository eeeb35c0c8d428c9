// 4-bit and 8-bit codes. SOURCE: 0 mxfp4, E2M1 with an E8M0 byte per 32; 1 nvfp4, E2M1 with an E4M3 byte per 16, which
// indexes a table of half the scales; 2 signed bytes with a scale per row (group 1) or one for all (group 0).
#import transcode/codes
#ifdef SCALE_BYTES
@group(0) @binding(3) var<storage, read_write> out_s: array<atomic<u32>>;
#else
@group(0) @binding(3) var<storage, read_write> out_s: array<u32>;
#endif
@group(0) @binding(4) var<storage, read> src_s: array<u32>;
#ifdef TABLE
@group(0) @binding(5) var<storage, read> table: array<f32>;
#endif

fn scale_byte(i: u32) -> u32 {
    let at = params.scale_at + i;
    return (src_s[at >> 2u] >> ((at & 3u) * 8u)) & 255u;
}

fn nibble_at(row: u32, k: u32) -> u32 {
    return (byte(params.src_at + row * (params.cols / 2u) + k / 2u) >> ((k & 1u) * 4u)) & 15u;
}

fn code_bits() -> u32 {
    if (SOURCE == 0u) { return 4u; }
    if (SOURCE == 1u) { return 5u; }
    return 8u;
}

fn code(row: u32, k: u32) -> u32 {
    if (SOURCE == 2u) {
        return byte(params.src_at + row * params.cols + k) ^ 0x80u;
    }
    let n = nibble_at(row, k);
    if (SOURCE == 0u) {
        return n;
    }
    // Twice an E2M1 value plus 16.
    let twice = (0xc8643210u >> ((n & 7u) * 4u)) & 15u;
    if (n >= 8u) {
        return 16u - twice;
    }
    return 16u + twice;
}

// The scale of a row in the layout's type, and 128 in the same type.
fn store_row_pair(row: u32, source: u32, group: u32) {
#ifdef SCALE_BYTES
#else
    let i = source * params.group;
    let at = (params.out_row + row) * params.groups + group;
    if (SCALE == 2u) {
        out_s[2u * at] = src_s[(params.scale_at >> 2u) + i];
        out_s[2u * at + 1u] = bitcast<u32>(128.0);
        return;
    }
    let half_at = params.scale_at / 2u + i;
    let scale = (src_s[half_at >> 1u] >> ((half_at & 1u) * 16u)) & 0xffffu;
    var zero = 0x4300u;
    if (SCALE == 0u) { zero = 0x5800u; }
    out_s[at] = scale | (zero << 16u);
#endif
}

fn scales(row: u32, source: u32, block: u32) {
#ifdef SCALE_BYTES
    // Four blocks share a word, which is zero before the load.
    let index = (params.out_row + row) * params.blocks + block;
    let value = scale_byte(source * (params.cols / 32u) + block);
    atomicOr(&out_s[index >> 2u], value << ((index & 3u) * 8u));
#else
#ifdef TABLE
    for (var g = 2u * block; g < 2u * block + 2u && g * 16u < params.cols; g++) {
        let at = (params.out_row + row) * params.groups + g;
        out_s[2u * at] = bitcast<u32>(table[scale_byte(source * (params.cols / 16u) + g)]);
        out_s[2u * at + 1u] = bitcast<u32>(16.0);
    }
#else
    if (block % 4u == 0u) {
        store_row_pair(row, source, block / 4u);
    }
#endif
#endif
}
