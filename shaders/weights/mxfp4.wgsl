// MXFP4: codes of a sign and E2M1, and a byte per block of 32, four to a word through the whole matrix:
// w = e2m1(q) * 2^(byte - 127).
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare8(x: X8) -> X8 {
    return x;
}

// Half the power of two, applied to twice the values, so that the largest byte does not overflow.
fn w_power(index: u32) -> f32 {
    let e = (w_s[index >> 2u] >> ((index & 3u) * 8u)) & 255u;
    return bitcast<f32>((max(e, 1u) - 1u) << 23u);
}

// Twice the values of four codes, in integers: 0 1 2 3 4 6 8 12, then negative.
fn w_values(word: u32, shift: u32) -> vec4<f32> {
    let q = (vec4<u32>(word >> shift) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let twice = (vec4<u32>(0xc8643210u) >> ((q & vec4<u32>(7u)) * 4u)) & vec4<u32>(15u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(twice)) | ((q & vec4<u32>(8u)) << vec4<u32>(28u)));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let index = row * params.k_blocks + (k >> 5u);
    return w_power(index) * w_values(w_q[row * params.k_blocks * 4u + (k >> 3u)], (k & 4u) << 2u);
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let word = w_q[row * params.k_blocks * 4u + unit];
    return (dot(w_values(word, 0u), x.a) + dot(w_values(word, 16u), x.b)) * w_power(row * params.k_blocks + (unit >> 2u));
}

fn w_load8(row: u32, unit: u32) -> X8 {
    return X8(w_load4(row, 8u * unit), w_load4(row, 8u * unit + 4u));
}
