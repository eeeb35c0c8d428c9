// GEMV y = x Wᵀ for few rows of x (decode, verification). A workgroup takes ROWS rows of W, read once for COLS rows of
// x. Its threads stride through K in units of eight, adjacent threads in adjacent memory, with UNROLL units in flight.
// Sums are f32. NORM computes y = rmsnorm(x) Wᵀ: the norm only scales the dot product, so its sum of squares is
// accumulated alongside. GATED computes act(x Gᵀ) * (x Uᵀ), with U params.up_row rows below G in the same planes.
struct Params {
#import matmul/product_params
    eps: f32,
    norm_offset: f32,
    scale: f32,
    softcap: f32,
#import matmul/expert_params
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import weights/any
#import matmul/experts
#import matmul/epilogue
#import matmul/bounds
#ifdef NORM
@group(0) @binding(7) var<storage, read> norm: array<vec4<f32>>;
#endif
#if COLS != 1
#import common/state
@group(0) @binding(8) var<storage, read> state: State;
#endif

// Sums per row of x: ROWS dot products, then the squares.
const SLOTS: u32 = COLS * (ROWS + 1u);
#ifdef SUBGROUPS
// A subgroup has at least four threads.
var<workgroup> partial: array<f32, SLOTS * WG / 4u>;
#else
var<workgroup> partial: array<f32, SLOTS * WG>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
#ifdef SUBGROUPS
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
#endif
) {
#ifdef GATED
    const PER: u32 = ROWS / 2u;
#else
    const PER: u32 = ROWS;
#endif
    let first = (wid.x + wid.y * groups.x) * PER;
    let units = params.k_blocks * 4u;
    var all = units;
#ifdef EXPERTS
#ifdef SUM_EXPERTS
    let col0 = wid.z;
    all *= params.each;
#else
    let col0 = wid.z / params.each;
    if (!take(col0, wid.z % params.each)) {
        return;
    }
#endif
#else
    let col0 = wid.z * COLS;
#endif
    let last4 = (params.k - 1u) / 4u;
#for r in 0..ROWS
    // Rows past the end repeat the last one, which is cheaper than branching around the loads.
#ifdef GATED
    let row$r = output_row(min(first + $ru % PER, params.n - 1u)) + ($ru / PER) * params.up_row;
#else
    let row$r = output_row(min(first + $ru, params.n - 1u));
#endif
#endfor
#for c in 0..COLS
    let x$c = (params.x_offset + (col0 + $cu) * params.x_stride) / 4u;
#endfor
    var acc: array<f32, SLOTS>;
    for (var base = lid; base < all; base += WG * UNROLL) {
#for s in 0..UNROLL
#ifdef SUM_EXPERTS
        // The selected experts are processed in sequence, as if K were that much longer.
        let flat$s = min(base + $su * WG, all - 1u);
        let pick$s = flat$s / units;
        let unit$s = flat$s % units;
        let k$s = unit$s * 8u;
        var share$s = share_of(col0, pick$s);
        if (base + $su * WG >= all) { share$s = 0.0; }
        let shift$s = shift_of(col0, pick$s);
        let at$s = vec2<u32>(min(unit$s * 2u, last4), min(unit$s * 2u + 1u, last4)) + pick$s * params.span / 4u;
#else
        let unit$s = min(base + $su * WG, units - 1u);
        let k$s = (base + $su * WG) * 8u;
        let shift$s = 0u;
        let at$s = vec2<u32>(min(unit$s * 2u, last4), min(unit$s * 2u + 1u, last4));
#endif
#for c in 0..COLS
        var v$s_$c = X8(x[x$c + at$s.x], x[x$c + at$s.y]);
#endfor
#ifdef NORM
        let gain$s = X8(norm[at$s.x] + params.norm_offset, norm[at$s.y] + params.norm_offset);
#endif
#endfor
#for s in 0..UNROLL
#for c in 0..COLS
        if (k$s + 8u > params.k) {
            v$s_$c = X8(inside(v$s_$c.a, k$s), inside(v$s_$c.b, k$s + 4u));
        }
#ifdef SUM_EXPERTS
        v$s_$c = X8(v$s_$c.a * share$s, v$s_$c.b * share$s);
#endif
#ifdef NORM
        acc[COLS * ROWS + $cu] += dot(v$s_$c.a, v$s_$c.a) + dot(v$s_$c.b, v$s_$c.b);
        v$s_$c = X8(v$s_$c.a * gain$s.a, v$s_$c.b * gain$s.b);
#endif
        let sum$s_$c = dot(v$s_$c.a + v$s_$c.b, vec4<f32>(1.0));
        v$s_$c = w_prepare8(v$s_$c);
#endfor
#endfor
#for r in 0..ROWS
#for s in 0..UNROLL
#for c in 0..COLS
        acc[$cu * ROWS + $ru] += w_dot8(row$r + shift$s, unit$s, v$s_$c, sum$s_$c);
#endfor
#endfor
#endfor
    }
#ifdef SUBGROUPS
    // A subgroup may be wider than the workgroup.
    let teams = max(WG / subgroup_size, 1u);
    let team = lid / subgroup_size;
#for i in 0..COLS*ROWS
    acc[$i] = subgroupAdd(acc[$i]);
#endfor
#ifdef NORM
#for c in 0..COLS
    acc[COLS * ROWS + $cu] = subgroupAdd(acc[COLS * ROWS + $cu]);
#endfor
#endif
    if (subgroup_lane == 0u) {
#for i in 0..COLS*ROWS
        partial[$iu * teams + team] = acc[$i];
#endfor
#ifdef NORM
#for c in 0..COLS
        partial[(COLS * ROWS + $cu) * teams + team] = acc[COLS * ROWS + $cu];
#endfor
#endif
    }
    workgroupBarrier();
#else
#for i in 0..COLS*ROWS
    partial[$iu * WG + lid] = acc[$i];
#endfor
#ifdef NORM
#for c in 0..COLS
    partial[(COLS * ROWS + $cu) * WG + lid] = acc[COLS * ROWS + $cu];
#endfor
#endif
    for (var step = WG / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (lid < step) {
            for (var i = lid; i < SLOTS * WG; i += WG) {
                partial[i] += partial[i + step];
            }
        }
    }
    workgroupBarrier();
#endif
    if (lid >= COLS * PER) {
        return;
    }
    let c = lid / PER;
    let n = first + lid % PER;
    if (n >= params.n) {
        return;
    }
#if COLS != 1
    if (col0 + c >= state.rows) {
        return;
    }
#endif
    let slot = c * ROWS + lid % PER;
    var factor = params.scale;
#ifdef SUBGROUPS
    var y = 0.0;
    var up = 0.0;
    var squares = 0.0;
    for (var i = 0u; i < teams; i++) {
        y += partial[slot * teams + i];
#ifdef GATED
        up += partial[(slot + PER) * teams + i];
#endif
#ifdef NORM
        squares += partial[(COLS * ROWS + c) * teams + i];
#endif
    }
#else
    let y = partial[slot * WG];
#ifdef GATED
    let up = partial[(slot + PER) * WG];
#else
    let up = 0.0;
#endif
    let squares = partial[(COLS * ROWS + c) * WG];
#endif
#ifdef NORM
    factor *= inverseSqrt(squares / f32(params.k) + params.eps);
#endif
    finish(col0 + c, n, y, up, factor);
}
