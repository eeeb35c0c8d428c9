// Ternary: 2-bit codes of the value plus one, and one f32 scale per row: w = (q - 1) * scale.
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare8(x: X8) -> X8 {
    return x;
}

fn w_ints(word: u32, shift: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word >> shift) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let word = w_q[row * params.k_blocks * 2u + (k >> 4u)];
    return (w_ints(word, (k & 12u) << 1u) - 1.0) * bitcast<f32>(w_s[row]);
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let word = w_q[row * params.k_blocks * 2u + (unit >> 1u)] >> ((unit & 1u) * 16u);
    return (dot(w_ints(word, 0u), x.a) + dot(w_ints(word, 8u), x.b) - sum) * bitcast<f32>(w_s[row]);
}

fn w_load8(row: u32, unit: u32) -> X8 {
    return X8(w_load4(row, 8u * unit), w_load4(row, 8u * unit + 4u));
}
