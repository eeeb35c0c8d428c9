// Shared by all transcoders: the entry point, source bytes, and packing of 32 codes into a block. One thread makes one
// block of 32 elements of one row with the including shader's `make_block(row, source, block)`, where `source` is the
// source's row. The first thread of a group also writes the group's pair.
struct Params {
    // Rows and columns of this dispatch.
    rows: u32,
    cols: u32,
    // Blocks per output row (padding included) and pairs per output row.
    blocks: u32,
    groups: u32,
    // The source row of the first row; rows of a block with interleaved parts, 0 for none, and each part's rows.
    first_row: u32,
    order_rows: u32,
    run0: u32,
    run1: u32,
    run2: u32,
    run3: u32,
    // First output row.
    out_row: u32,
    // Rows of the whole source (the row length of transposed formats).
    n: u32,
    // Byte offsets of the weight, scales and zeros (or biases) in their buffers.
    src_at: u32,
    scale_at: u32,
    zero_at: u32,
    // Elements per group of the source (columns of a block where rows share scales too).
    group: u32,
    // Rows per scale; scales per second-level scale.
    block_rows: u32,
    nested: u32,
    // BitNet's scale, or the offset of second-level scales.
    constant: f32,
    // Always 0: OR with it prevents fusion with later operations.
    nothing: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> out_q: array<u32>;

fn byte(i: u32) -> u32 {
    return (src[i >> 2u] >> ((i & 3u) * 8u)) & 255u;
}

fn half_bits(i: u32) -> u32 {
    return byte(i) | (byte(i + 1u) << 8u);
}

// Source row of a row: the source interleaves parts within a block; the output stores each part contiguously.
fn source_row(row: u32) -> u32 {
    if (params.order_rows == 0u) {
        return params.first_row + row;
    }
    let runs = vec4<u32>(params.run0, params.run1, params.run2, params.run3);
    let group = runs.x + runs.y + runs.z + runs.w;
    let groups = params.order_rows / group;
    var rest = row % params.order_rows;
    var before = 0u;
    var run = runs.x;
    for (var part = 1u; part < 4u && rest >= groups * run; part++) {
        rest -= groups * run;
        before += run;
        run = runs[part];
    }
    return params.first_row + row / params.order_rows * params.order_rows + rest / run * group + before + rest % run;
}

// f32 to f16, to nearest even, in integers: the rounding of pack2x16float is device-specific.
fn f16_bits(x: f32) -> u32 {
    let u = bitcast<u32>(x);
    let sign = (u >> 16u) & 0x8000u;
    let a = u & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return sign | 0x7e00u | ((a >> 13u) & 0x3ffu);
    }
    if (a >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (a < 0x38800000u) {
        let e = a >> 23u;
        if (e < 102u) {
            return sign;
        }
        let m = (a & 0x7fffffu) | 0x800000u;
        let shift = 126u - e;
        var r = m >> shift;
        let rest = m & ((1u << shift) - 1u);
        let tie = 1u << (shift - 1u);
        if (rest > tie || (rest == tie && (r & 1u) == 1u)) {
            r += 1u;
        }
        return sign | r;
    }
    let r = a - 0x38000000u;
    return sign | ((r + 0xfffu + ((r >> 13u) & 1u)) >> 13u);
}

// f16 to f32 in integers: some devices' conversions flush subnormals.
fn f16_value(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let e = (bits >> 10u) & 31u;
    let m = bits & 0x3ffu;
    if (e == 0u) {
        let magnitude = f32(m) * 5.9604644775390625e-8;
        return bitcast<f32>(bitcast<u32>(magnitude) | sign);
    }
    var high = e + 112u;
    if (e == 31u) { high = 255u; }
    return bitcast<f32>(sign | (high << 23u) | (m << 13u));
}

var<private> words: array<u32, 8>;

// Adds code `c` of element i to the block's words.
fn put(bits: u32, i: u32, c: u32) {
    if (bits == 8u) {
        words[i / 4u] |= c << ((i % 4u) * 8u);
        return;
    }
    var base = 0u;
    var rest = c;
    if (bits >= 4u) {
        words[i / 8u] |= (rest & 15u) << ((i % 8u) * 4u);
        base = 4u;
        rest >>= 4u;
    }
    if (bits == 2u || bits == 3u || bits == 6u) {
        words[base + i / 16u] |= (rest & 3u) << ((i % 16u) * 2u);
        base += 2u;
        rest >>= 2u;
    }
    if (bits == 3u || bits == 5u) {
        words[base] |= (rest & 1u) << i;
    }
}

fn store_block(bits: u32, row: u32, block: u32) {
    let at = ((params.out_row + row) * params.blocks + block) * bits;
    for (var w = 0u; w < bits; w++) {
        out_q[at + w] = words[w];
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let t = (wid.x + wid.y * count.x) * 64u + lid;
    let row = t / params.blocks;
    if (row < params.rows) {
        make_block(row, source_row(row), t % params.blocks);
    }
}
