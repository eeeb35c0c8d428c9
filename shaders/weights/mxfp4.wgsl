// MXFP4: codes of a sign and E2M1, and a byte per block of 32, four to a word through the whole matrix:
// w = e2m1(q) * 2^(byte - 127).
@group(0) @binding(2) var<storage, read> w_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare(x: ptr<function, array<vec4<f32>, 8>>) {}

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
    return w_power(index) * w_values(w_q[index][(k & 31u) >> 3u], (k & 4u) << 2u);
}

fn w_dot(row: u32, block: u32, x: ptr<function, array<vec4<f32>, 8>>, sum: f32) -> f32 {
    let index = row * params.k_blocks + block;
    let words = w_q[index];
    var total = 0.0;
    for (var i = 0u; i < 4u; i++) {
        total += dot(w_values(words[i], 0u), (*x)[2u * i]);
        total += dot(w_values(words[i], 16u), (*x)[2u * i + 1u]);
    }
    return total * w_power(index);
}
