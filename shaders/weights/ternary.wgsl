// Ternary: 2-bit codes of the value plus one, and one f32 scale per row: w = (q - 1) * scale.
@group(0) @binding(2) var<storage, read> w_q: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare(x: ptr<function, array<vec4<f32>, 8>>) {}

fn w_ints(word: u32, shift: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word >> shift) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let words = w_q[row * params.k_blocks + (k >> 5u)];
    return (w_ints(words[(k >> 4u) & 1u], (k & 12u) << 1u) - 1.0) * bitcast<f32>(w_s[row]);
}

fn w_dot(row: u32, block: u32, x: ptr<function, array<vec4<f32>, 8>>, sum: f32) -> f32 {
    let words = w_q[row * params.k_blocks + block];
    var total = 0.0;
    for (var i = 0u; i < 4u; i++) {
        total += dot(w_ints(words.x, 8u * i), (*x)[i]);
        total += dot(w_ints(words.y, 8u * i), (*x)[i + 4u]);
    }
    return (total - sum) * bitcast<f32>(w_s[row]);
}
