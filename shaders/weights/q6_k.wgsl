// Q6_K: 6-bit codes (4 bits, then 2), and five words per 256: d as f16, sixteen signed scale bytes, one per 16. w = (d
// * scale) * (q - 32).
@group(0) @binding(2) var<storage, read> w_q: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> w_s: array<u32>;

fn w_prepare8(x: X8) -> X8 {
    return x;
}

// d * scale of the two halves of a block of 32.
fn w_scales(row: u32, block: u32) -> vec2<f32> {
    let at = (row * params.groups + (block >> 3u)) * 5u;
    let sub = (block & 7u) * 2u;
    let bytes = w_s[at + 1u + (sub >> 2u)] << ((2u - (sub & 2u)) * 8u);
    // The two bytes are at the top now: an arithmetic shift keeps their signs.
    let scales = vec2<i32>(i32(bytes << 8u) >> 24u, i32(bytes) >> 24u);
    return unpack2x16float(w_s[at]).x * vec2<f32>(scales);
}

// Scale of element k of the block.
fn w_scale(row: u32, block: u32, k: u32) -> f32 {
    let scales = w_scales(row, block);
    if ((k & 16u) != 0u) { return scales.y; }
    return scales.x;
}

fn w_ints(base: u32, k: u32) -> vec4<f32> {
    let low = w_q[base + (k >> 4u)][(k >> 3u) & 1u] >> ((k & 4u) << 2u);
    let high = w_q[base + 2u][k >> 4u] >> ((k & 12u) << 1u);
    let q = (vec4<u32>(low) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let h = (vec4<u32>(high) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
    return vec4<f32>(q | (h << vec4<u32>(4u))) - 32.0;
}

fn w_load4(row: u32, k: u32) -> vec4<f32> {
    let block = k >> 5u;
    return w_scale(row, block, k) * w_ints((row * params.k_blocks + block) * 3u, k & 31u);
}

fn w_dot8(row: u32, unit: u32, x: X8, sum: f32) -> f32 {
    let block = unit >> 2u;
    let base = (row * params.k_blocks + block) * 3u;
    let k = (unit & 3u) * 8u;
    return (dot(w_ints(base, k), x.a) + dot(w_ints(base, k + 4u), x.b)) * w_scale(row, block, k);
}

fn w_load8(row: u32, unit: u32) -> X8 {
    return X8(w_load4(row, 8u * unit), w_load4(row, 8u * unit + 4u));
}
