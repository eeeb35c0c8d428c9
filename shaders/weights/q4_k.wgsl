// Q4_K: 4-bit codes, and five words per 256: d and dmin as halves, eight scale bytes, eight minimum bytes.
// w = (d * scale) * q - dmin * min.
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare8(x: X8) -> X8 {
    return x;
}

// d * scale and dmin * min of a block of 32.
fn w_pair(row: u32, block: u32) -> vec2<f32> {
    let at = (row * params.groups + (block >> 3u)) * 5u;
    let sub = block & 7u;
    let shift = (sub & 3u) * 8u;
    let scale = (w_s[at + 1u + (sub >> 2u)] >> shift) & 255u;
    let low = (w_s[at + 3u + (sub >> 2u)] >> shift) & 255u;
    return unpack2x16float(w_s[at]) * vec2<f32>(f32(scale), f32(low));
}

fn w_ints(word: u32, shift: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word >> shift) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let block = k >> 5u;
    let pair = w_pair(row, block);
    return pair.x * w_ints(w_q[row * params.k_blocks * 4u + (k >> 3u)], (k & 4u) << 2u) - pair.y;
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let word = w_q[row * params.k_blocks * 4u + unit];
    let pair = w_pair(row, unit >> 2u);
    return (dot(w_ints(word, 0u), x.a) + dot(w_ints(word, 16u), x.b)) * pair.x - pair.y * sum;
}

fn w_load8(row: u32, unit: u32) -> X8 {
    return X8(w_load4(row, 8u * unit), w_load4(row, 8u * unit + 4u));
}
