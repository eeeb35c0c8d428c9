// Elements of a head in workgroup memory (`head`), normed by `factor` and rotated for a position.
// `gain` is where the head's gain begins: q's at 0, k's after it.
#ifdef HEAD_NORM
@group(0) @binding(8) var<storage, read> gains: array<f32>;
#endif
#ifdef ROPE
@group(0) @binding(9) var<storage, read> rope: array<vec2<f32>>;
#endif

fn head_factor(d: u32) -> f32 {
#ifdef HEAD_NORM
    var squares = 0.0;
    for (var i = 0u; i < d; i++) { squares += head[i] * head[i]; }
    return inverseSqrt(squares / f32(d) + params.eps);
#else
    return 1.0;
#endif
}

// The gain comes before the rotation, or with NORM_AFTER_ROPE after it.
fn normed(i: u32, factor: f32, gain: u32) -> f32 {
    var x = head[i] * factor;
#ifdef HEAD_NORM
#ifndef NORM_AFTER_ROPE
    x *= gains[gain + i] + params.norm_offset;
#endif
#endif
    return x;
}

fn rotated(i: u32, pos: u32, factor: f32, gain: u32) -> f32 {
    var x = normed(i, factor, gain);
#ifdef ROPE
    if (i < params.rope_dim) {
        let half = params.rope_dim / 2u;
#ifdef INTERLEAVED
        let pair = i / 2u;
        let first = (i & 1u) == 0u;
        let other = i ^ 1u;
#else
        let pair = i % half;
        let first = i < half;
        let other = (i + half) % params.rope_dim;
#endif
        let cs = rope[pos * half + pair];
        let y = normed(other, factor, gain);
        if (first) { x = x * cs.x - y * cs.y; } else { x = x * cs.x + y * cs.y; }
    }
#endif
#ifdef HEAD_NORM
#ifdef NORM_AFTER_ROPE
    x *= gains[gain + i] + params.norm_offset;
#endif
#endif
    return x;
}

fn rotated4(i: u32, pos: u32, factor: f32, gain: u32) -> vec4<f32> {
    return vec4<f32>(rotated(i, pos, factor, gain), rotated(i + 1u, pos, factor, gain),
        rotated(i + 2u, pos, factor, gain), rotated(i + 3u, pos, factor, gain));
}
