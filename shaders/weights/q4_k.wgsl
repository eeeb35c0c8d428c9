// Q4_K: 4-bit codes, a scale and a minimum for each 32.
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
#import weights/q4_k_scales

fn w_prepare8(x: X8) -> X8 {
    return x;
}

fn w_ints(word: u32, shift: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word >> shift) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let block = k >> 5u;
    let pair = w_pair(w_bits(row, k), block);
    return pair.x * w_ints(w_q[row * params.k_blocks * 4u + (k >> 3u)], (k & 4u) << 2u) - pair.y;
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let word = w_q[row * params.k_blocks * 4u + unit];
    let pair = w_pair(w_bits(row, 8u * unit), unit >> 2u);
    return (dot(w_ints(word, 0u), x.a) + dot(w_ints(word, 16u), x.b)) * pair.x - pair.y * sum;
}

fn w_load8(row: u32, unit: u32) -> X8 {
    return X8(w_load4(row, 8u * unit), w_load4(row, 8u * unit + 4u));
}
