// MXFP4: sign and E2M1 codes, with a scale byte per block of 32: w = e2m1(q) * 2^(byte - 127).
@group(0) @binding(2) var<storage, read> w_q: array<u32>;
#import weights/mxfp4_scales

fn w_prepare8(x: X8) -> X8 {
    return x;
}

// Twice the values of four codes, in integers: 0 1 2 3 4 6 8 12, then negative.
fn w_values(word: u32, shift: u32) -> vec4<f32> {
    let q = (vec4<u32>(word >> shift) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let twice = (vec4<u32>(0xc8643210u) >> ((q & vec4<u32>(7u)) * 4u)) & vec4<u32>(15u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(twice)) | ((q & vec4<u32>(8u)) << vec4<u32>(28u)));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    return w_power(w_bits(row, k)) * w_values(w_q[row * params.k_blocks * 4u + (k >> 3u)], (k & 4u) << 2u);
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let word = w_q[row * params.k_blocks * 4u + unit];
    return (dot(w_values(word, 0u), x.a) + dot(w_values(word, 16u), x.b)) * w_power(w_bits(row, 8u * unit));
}

fn w_load8(row: u32, unit: u32) -> X8 {
    return X8(w_load4(row, 8u * unit), w_load4(row, 8u * unit + 4u));
}
