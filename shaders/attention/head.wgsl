// A head component, normed by `factor` and rotated for a position (RoPE). The including shader provides
// `component(base, i)`; `gain` is the start of the head's gain: 0 for q, then k's.
#ifdef HEAD_NORM
@group(0) @binding(8) var<storage, read> gains: array<f32>;
#endif
#ifdef ROPE
@group(0) @binding(9) var<storage, read> rope: array<vec2<f32>>;
#endif

// The gain precedes RoPE, or with NORM_AFTER_ROPE follows it.
fn normed(base: u32, i: u32, factor: f32, gain: u32) -> f32 {
    var x = component(base, i) * factor;
#ifdef HEAD_NORM
#ifndef NORM_AFTER_ROPE
    x *= gains[gain + i] + params.norm_offset;
#endif
#endif
    return x;
}

fn rotated(base: u32, i: u32, pos: u32, factor: f32, gain: u32) -> f32 {
    var x = normed(base, i, factor, gain);
#ifdef ROPE
    // Columns that are not rotated load a valid index too, so that no load depends on a condition.
    let half = params.rope_dim / 2u;
#ifdef INTERLEAVED
    let pair = i / 2u;
    let first = (i & 1u) == 0u;
    let other = i ^ 1u;
#else
    let first = i < half;
    var pair = i;
    var other = i + half;
    if (!first) {
        pair = i - half;
        other = i - half;
    }
#endif
    let cs = rope[pos * half + min(pair, half - 1u)];
    var y = normed(base, min(other, params.rope_dim - 1u), factor, gain);
    if (first) { y = -y; }
    if (i < params.rope_dim) { x = x * cs.x + y * cs.y; }
#endif
#ifdef HEAD_NORM
#ifdef NORM_AFTER_ROPE
    x *= gains[gain + i] + params.norm_offset;
#endif
#endif
    return x;
}

fn rotated4(base: u32, i: u32, pos: u32, factor: f32, gain: u32) -> vec4<f32> {
    return vec4<f32>(rotated(base, i, pos, factor, gain), rotated(base, i + 1u, pos, factor, gain),
        rotated(base, i + 2u, pos, factor, gain), rotated(base, i + 3u, pos, factor, gain));
}
