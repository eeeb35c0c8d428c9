// Transcodes integer codes with separate scale tensors (MLX, GPTQ, AWQ, MLC, compressed-tensors) to the affine layout.
// SOURCE: 0 a bit stream per row with biases (MLX); 1 GPTQ; 2 AWQ; 3 MLC by rows; 4 MLC transposed; 5 a bit stream per
// row with zero points packed along the rows (compressed-tensors).
#import transcode/codes
@group(0) @binding(3) var<storage, read_write> out_s: array<u32>;
@group(0) @binding(4) var<storage, read> src_s: array<u32>;
#ifdef ZEROS
@group(0) @binding(5) var<storage, read> src_z: array<u32>;
#endif
#ifdef ORDER
// Source column of each output column: act-order, sorted by group.
@group(0) @binding(6) var<storage, read> order: array<u32>;
#endif

// Bits at bit position `at` of the source, across word boundaries.
fn stream(at: u32) -> u32 {
    let w = at >> 5u;
    let shift = at & 31u;
    var value = src[w] >> shift;
    if (shift + BITS > 32u) {
        value |= src[w + 1u] << (32u - shift);
    }
    return value & ((1u << BITS) - 1u);
}

// The nibble of a word that holds output j of eight in AWQ: 0 4 1 5 2 6 3 7.
fn awq_shift(j: u32) -> u32 {
    return ((j >> 1u) + (j & 1u) * 4u) * 4u;
}

fn code_bits() -> u32 {
    return BITS;
}

fn code(row: u32, column: u32) -> u32 {
    var k = column;
#ifdef ORDER
    k = order[column];
#endif
    let base = params.src_at >> 2u;
    if (SOURCE == 1u) {
        let bit = k * BITS;
        let at = base + (bit >> 5u) * params.n + row;
        let shift = bit & 31u;
        var value = src[at] >> shift;
        if (shift + BITS > 32u) {
            value |= src[at + params.n] << (32u - shift);
        }
        return value & ((1u << BITS) - 1u);
    }
    if (SOURCE == 2u) {
        return (src[base + k * (params.n / 8u) + row / 8u] >> awq_shift(row % 8u)) & 15u;
    }
    if (SOURCE == 4u) {
        return (src[base + (k / 8u) * params.n + row] >> ((k % 8u) * 4u)) & 15u;
    }
    // A stream's row is whole words.
    let row_words = (params.cols * BITS + 31u) / 32u;
    return stream((base + row * row_words) * 32u + k * BITS);
}

// Bits of element i of a scale tensor.
fn scale_bits(i: u32) -> u32 {
    if (SCALE == 2u) {
        return src_s[(params.scale_at >> 2u) + i];
    }
    let at = params.scale_at / 2u + i;
    return (src_s[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
}

#ifdef ZEROS
fn zero_bits(i: u32) -> u32 {
    if (SCALE == 2u) {
        return src_z[(params.zero_at >> 2u) + i];
    }
    let at = params.zero_at / 2u + i;
    return (src_z[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
}
#endif

// The zero point of a group as an integer.
fn zero_point(row: u32, g: u32, groups: u32) -> u32 {
#ifdef ZEROS
    let base = params.zero_at >> 2u;
    let mask = (1u << BITS) - 1u;
    if (SOURCE == 2u) {
        return (src_z[base + g * (params.n / 8u) + row / 8u] >> awq_shift(row % 8u)) & 15u;
    }
    let bit = row * BITS;
    let shift = bit & 31u;
    // GPTQ packs zero points along the outputs; compressed-tensors down the rows.
    var at = base + g * (params.n * BITS / 32u) + (bit >> 5u);
    var next = at + 1u;
    if (SOURCE == 5u) {
        at = base + (bit >> 5u) * groups + g;
        next = at + groups;
    }
    var value = src_z[at] >> shift;
    if (shift + BITS > 32u) {
        value |= src_z[next] << (32u - shift);
    }
    return (value + MINUS_ONE) & mask;
#else
    if (SOURCE == 3u || SOURCE == 4u) {
        return 7u;
    }
    return 1u << (BITS - 1u);
#endif
}

// A small integer in the scales' type.
fn integer_bits(x: u32) -> u32 {
    let bits = bitcast<u32>(f32(x));
    if (SCALE == 0u) {
        return f16_bits(f32(x));
    }
    if (SCALE == 1u) {
        return bits >> 16u;
    }
    return bits;
}

fn pair(row: u32, group: u32) -> vec2<u32> {
    let groups = (params.cols + params.group - 1u) / params.group;
    let g = group * GROUP / params.group;
    var at = row * groups + g;
    if (SOURCE == 1u || SOURCE == 2u || SOURCE == 4u) {
        at = g * params.n + row;
    }
#ifdef ZEROS
    if (SOURCE == 0u) {
        return vec2<u32>(scale_bits(at), zero_bits(at));
    }
#endif
    return vec2<u32>(scale_bits(at), integer_bits(zero_point(row, g, groups)));
}

fn store_pair(row: u32, source: u32, group: u32) {
    let value = pair(source, group);
    let at = (params.out_row + row) * params.groups + group;
    if (SCALE == 2u) {
        out_s[2u * at] = value.x;
        out_s[2u * at + 1u] = value.y;
    } else {
        out_s[at] = value.x | (value.y << 16u);
    }
}

fn scales(row: u32, source: u32, block: u32) {
    let first = block * 32u;
    if (GROUP == 16u) {
        store_pair(row, source, 2u * block);
        if (first + 16u < params.cols) {
            store_pair(row, source, 2u * block + 1u);
        }
    } else if (first % GROUP == 0u) {
        store_pair(row, source, first / GROUP);
    }
}
