// Weights of 16 or 32 bits: rows zero-padded to a multiple of 32 elements.
@group(0) @binding(2) var<storage, read> w_q: array<vec4<u32>>;

fn w_prepare8(x: X8) -> X8 {
    return x;
}

#ifdef W_F32
fn w_load8(row: u32, unit: u32) -> X8 {
    let at = row * params.k_blocks * 8u + 2u * unit;
    return X8(bitcast<vec4<f32>>(w_q[at]), bitcast<vec4<f32>>(w_q[at + 1u]));
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(w_q[row * params.k_blocks * 8u + (k >> 2u)]);
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let at = row * params.k_blocks * 8u + 2u * unit;
    return dot(bitcast<vec4<f32>>(w_q[at]), x.a) + dot(bitcast<vec4<f32>>(w_q[at + 1u]), x.b);
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
    var half = words.xy;
    if ((k & 4u) != 0u) { half = words.zw; }
    return vec4<f32>(w_pair(half.x), w_pair(half.y));
}

fn w_load8(row: u32, unit: u32) -> X8 {
    let words = w_q[row * params.k_blocks * 4u + unit];
    return X8(vec4<f32>(w_pair(words.x), w_pair(words.y)), vec4<f32>(w_pair(words.z), w_pair(words.w)));
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let w = w_load8(row, unit);
    return dot(w.a, x.a) + dot(w.b, x.b);
}
#endif
