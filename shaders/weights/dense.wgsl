// Weights of 16 or 32 bits: rows padded with zeros to a multiple of 32 elements.
// Every file of this folder offers w_prepare, w_dot, w_load4 and w_block over the same planes.
@group(0) @binding(2) var<storage, read> w_q: array<vec4<u32>>;

fn w_prepare(x: ptr<function, array<vec4<f32>, 8>>) {}

#ifdef W_F32
fn w_load4(row: u32, k: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(w_q[row * params.k_blocks * 8u + (k >> 2u)]);
}
#else
fn w_pair(word: u32) -> vec2<f32> {
#ifdef W_BF16
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
#else
    return unpack2x16float(word);
#endif
}
fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let words = w_q[row * params.k_blocks * 4u + (k >> 3u)];
    if ((k & 4u) == 0u) {
        return vec4<f32>(w_pair(words.x), w_pair(words.y));
    }
    return vec4<f32>(w_pair(words.z), w_pair(words.w));
}
#endif

// The dot product of 32 weights (block `block` of a row) with x; `sum` is the sum of x.
fn w_dot(row: u32, block: u32, x: ptr<function, array<vec4<f32>, 8>>, sum: f32) -> f32 {
    var total = 0.0;
#ifdef W_F32
    let base = (row * params.k_blocks + block) * 8u;
    for (var i = 0u; i < 8u; i++) {
        total += dot(bitcast<vec4<f32>>(w_q[base + i]), (*x)[i]);
    }
#else
    let base = (row * params.k_blocks + block) * 4u;
    for (var i = 0u; i < 4u; i++) {
        let words = w_q[base + i];
        total += dot(vec4<f32>(w_pair(words.x), w_pair(words.y)), (*x)[2u * i]);
        total += dot(vec4<f32>(w_pair(words.z), w_pair(words.w)), (*x)[2u * i + 1u]);
    }
#endif
    return total;
}
