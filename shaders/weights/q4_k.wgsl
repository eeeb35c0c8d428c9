// Q4_K: 4-bit codes, and five words per 256: d and dmin as halves, eight scale bytes, eight minimum bytes.
// w = (d * scale) * q - dmin * min.
@group(0) @binding(2) var<storage, read> w_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare(x: ptr<function, array<vec4<f32>, 8>>) {}

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
    let words = w_q[row * params.k_blocks + block];
    let pair = w_pair(row, block);
    return pair.x * w_ints(words[(k & 31u) >> 3u], (k & 4u) << 2u) - pair.y;
}

fn w_dot(row: u32, block: u32, x: ptr<function, array<vec4<f32>, 8>>, sum: f32) -> f32 {
    let words = w_q[row * params.k_blocks + block];
    var total = 0.0;
    for (var i = 0u; i < 4u; i++) {
        total += dot(w_ints(words[i], 0u), (*x)[2u * i]);
        total += dot(w_ints(words[i], 16u), (*x)[2u * i + 1u]);
    }
    let pair = w_pair(row, block);
    return total * pair.x - pair.y * sum;
}
