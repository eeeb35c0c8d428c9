// Block GEMV y = x Wᵀ for one row of x (decode) or COLS of a few (verification, batches), with weights in blocks of 32.
// Each thread keeps one block of each row of x in registers and iterates over rows of W, four at a time, while the next
// four load. With X_BITS 8, x is quantized to 8 bits in blocks, so that eight rows fit registers. ROW_THREADS threads share all of K (looping if K is longer) and `share` outputs; ROW_GROUPS such groups per
// workgroup share the reads of x. Sums are f32.
// NORM computes y = rmsnorm(x) Wᵀ: the norm only scales the dot product, so its sum of squares is accumulated
// alongside. ROUND quantizes x, or its norm, to integers up to 127 of its largest magnitude (shaders/norm/norm.wgsl); K
// takes one iteration. KV_SPLITS loads x from that many KV splits of decode attention and reduces them. GATED computes
// act(x Gᵀ) * (x Uᵀ), with U params.up_row rows below G in the same planes.
struct Params {
#import matmul/product_params
    share: u32,
    eps: f32,
    norm_offset: f32,
    scale: f32,
    softcap: f32,
#import matmul/expert_params
#if KV_SPLITS != 0
    head_dim: u32,
    window: u32,
    tile: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import weights/block
#import matmul/experts
#import matmul/epilogue
#import matmul/bounds
#ifdef NORM
@group(0) @binding(7) var<storage, read> norm: array<vec4<f32>>;
#endif
#import common/state
#if KV_SPLITS != 0
@group(0) @binding(8) var<storage, read> state: State;
#import attention/kv_splits_reduce
#else
#if COLS != 1
@group(0) @binding(8) var<storage, read> state: State;
#endif
#endif

const WG: u32 = ROW_THREADS * ROW_GROUPS;
// Weight rows per output.
#ifdef GATED
const EACH: u32 = 2u;
#else
const EACH: u32 = 1u;
#endif

#import matmul/broadcast_x

// [row of a group][row of x][subgroup of the workgroup]
var<workgroup> sums: array<f32, SUMS>;
// [row of x][subgroup]; a subgroup has at least four threads.
var<workgroup> squares: array<f32, COLS * WG / 4u>;
#ifdef ROUND
// Likewise the largest magnitude of x, before the norm.
var<workgroup> tops: array<f32, COLS * WG / 4u>;
#endif

// Weight row of a group's item: consecutive outputs, with GATED the gate row and the up row of each.
fn weight_row(item: u32) -> u32 {
    return output_row(min(item / EACH, params.n - 1u)) + (item % EACH) * params.up_row;
}

#ifdef SUM_EXPERTS
// Loads from the outputs of a row's selected experts in sequence, each times its weight.
fn mixed(row: u32, from4: u32, all: u32, column: u32) -> vec4<f32> {
    let flat = min(column / 8u, all - 1u);
    let pick = flat / params.k_blocks;
    let at = flat % params.k_blocks * 8u + column % 8u;
    var share = share_of(row, pick);
    if (column / 8u >= all) {
        share = 0.0;
    }
    return share * inside(x[from4 + pick * params.span / 4u + min(at, (params.k - 1u) / 4u)], at * 4u);
}
#endif

// Subgroup sums of four values; thread i of each four returns the i-th.
fn turn(a: f32, b: f32, c: f32, d: f32, lane: u32, subgroup_size: u32) -> f32 {
    var ab = vec2<f32>(a, b);
    var cd = vec2<f32>(c, d);
    if ((lane & 1u) != 0u) {
        ab = ab.yx;
        cd = cd.yx;
    }
    var both = vec2<f32>(ab.x + subgroupShuffleXor(ab.y, 1u), cd.x + subgroupShuffleXor(cd.y, 1u));
    if ((lane & 2u) != 0u) { both = both.yx; }
    var sum = both.x + subgroupShuffleXor(both.y, 2u);
    for (var step = 4u; step < subgroup_size; step *= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    return sum;
}

// Sum of a dot product over the subgroups of its group.
fn whole(product: u32, part: u32, each: u32, subgroups: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < each; i++) {
        sum += sums[product * subgroups + part + i];
    }
    return sum;
}

// Norm factor of a row of x.
fn norm_of(c: u32, subgroups: u32) -> f32 {
#ifdef NORM
    var total = 0.0;
    for (var j = 0u; j < subgroups; j++) {
        total += squares[c * subgroups + j];
    }
    return inverseSqrt(total / f32(params.k) + params.eps);
#else
    return 1.0;
#endif
}

#ifdef ROUND
// Scale of the quantized row's integers.
fn unit_of(c: u32, subgroups: u32, factor: f32) -> f32 {
    var most = 0.0;
    for (var j = 0u; j < subgroups; j++) {
        most = max(most, tops[c * subgroups + j]);
    }
    return max(most * factor, 1e-5) / 127.0;
}
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let team = lid / ROW_THREADS;
    let tid = lid % ROW_THREADS;
    let subgroups = WG / subgroup_size;
    let subgroup = lid / subgroup_size;
    let items = params.share * EACH;
    let first = (wid.x * ROW_GROUPS + team) * items;
    var all = params.k_blocks;
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
#if COLS != 1
    // A step may have fewer rows than its plan.
    if (col0 >= state.rows) {
        return;
    }
#endif
#for c in 0..COLS
    var square$c = 0.0;
#if COLS == 1
    let x$c = (params.x_offset + col0 * params.x_stride) / 4u;
#else
    let x$c = (params.x_offset + min(col0 + $cu, state.rows - 1u) * params.x_stride) / 4u;
#endif
#endfor
    let outputs = ROW_GROUPS * params.share * COLS;
#ifndef EXPERTS
    // Loaded first: with few outputs, a thread has one. An expert's bias depends on the router's selection.
    let own = wid.x * ROW_GROUPS * params.share + lid / COLS;
    var early: Ending;
#if COLS == 1
    if (lid < outputs && own < params.n) {
#else
    if (lid < outputs && own < params.n && col0 + lid % COLS < state.rows) {
#endif
        early = ending_of(col0 + lid % COLS, own);
    }
#endif
    for (var base = 0u; base < all; base += ROW_THREADS) {
#ifdef SUM_EXPERTS
        let flat = min(base + tid, all - 1u);
        let block = flat % params.k_blocks;
        let shift = shift_of(col0, flat / params.k_blocks);
#else
        let block = min(base + tid, params.k_blocks - 1u);
        let shift = 0u;
#endif
#for r in 0..4
        var codes$r = w_codes(weight_row(first + $ru) + shift, block);
        var bits$r = w_bits(weight_row(first + $ru) + shift, block * 32u);
#endfor
#for h in 0..2
#for j in 0..4/ROW_GROUPS
        let at$h$j = column(base, $hu, lid + $ju * WG);
        let near$h$j = min(at$h$j, (params.k - 1u) / 4u);
#endfor
#endfor
#if KV_SPLITS != 0
#for j in 0..4/ROW_GROUPS
        let both$j = joined(column(base, 0u, lid + $ju * WG), column(base, 1u, lid + $ju * WG));
#endfor
#endif
        // Two rows of x at a time: their loads all start before the first is used.
#for p in 0..COLS
#for c in 0..COLS
#if $c/2 == $p
#for h in 0..2
#for j in 0..4/ROW_GROUPS
#ifdef SUM_EXPERTS
        let x$c_$h$j = mixed(col0, x$c, all, at$h$j);
#else
#if KV_SPLITS != 0
        let x$c_$h$j = inside(both$j[$h], at$h$j * 4u);
#else
        let x$c_$h$j = inside(x[x$c + near$h$j], at$h$j * 4u);
#endif
#endif
#endfor
#endfor
#endif
#endfor
#ifdef NORM
#if $p == 0
#for h in 0..2
#for j in 0..4/ROW_GROUPS
        let gain$h$j = norm[near$h$j] + params.norm_offset;
#endfor
#endfor
#endif
#endif
#ifdef ROUND
#if $p*2 < COLS
#for c in 0..COLS
#if $c/2 == $p
        var top$c = vec4<f32>(0.0);
#for h in 0..2
#for j in 0..4/ROW_GROUPS
#ifdef NORM
        square$c += dot(x$c_$h$j, x$c_$h$j);
        let y$c_$h$j = x$c_$h$j * gain$h$j;
#else
        let y$c_$h$j = x$c_$h$j;
#endif
        top$c = max(top$c, abs(y$c_$h$j));
#endfor
#endfor
        square$c = subgroupAdd(square$c);
        let most$c = subgroupMax(max(max(top$c.x, top$c.y), max(top$c.z, top$c.w)));
        if (lane == 0u) {
            squares[$cu * subgroups + subgroup] = square$c;
            tops[$cu * subgroups + subgroup] = most$c;
        }
#endif
#endfor
        workgroupBarrier();
#for c in 0..COLS
#if $c/2 == $p
        let norm$c = norm_of($cu, subgroups);
        let steps$c = norm$c / unit_of($cu, subgroups, norm$c);
#endif
#endfor
#endif
#endif
#for c in 0..COLS
#if $c/2 == $p
#for h in 0..2
#for j in 0..4/ROW_GROUPS
#ifdef ROUND
        let z$c_$h$j = round(y$c_$h$j * steps$c);
#else
#ifdef NORM
        square$c += dot(x$c_$h$j, x$c_$h$j);
        let z$c_$h$j = x$c_$h$j * gain$h$j;
#else
        let z$c_$h$j = x$c_$h$j;
#endif
#endif
#endfor
#endfor
#if DOT == 1
#if $c == 0
        if (base != 0u) { workgroupBarrier(); }
#else
        workgroupBarrier();
#endif
#for j in 0..4/ROW_GROUPS
        hold(lid + $ju * WG, z$c_0$j, z$c_1$j);
#endfor
        workgroupBarrier();
        let ready$c = held(tid);
#else
        var mine$c: X32;
#for h in 0..2
        workgroupBarrier();
#for j in 0..4/ROW_GROUPS
        hold(lid + $ju * WG, z$c_$h$j);
#endfor
        workgroupBarrier();
#if $h == 0
        mine$c.a0 = held(0u, tid);
        mine$c.b0 = held(1u, tid);
        mine$c.a1 = held(2u, tid);
        mine$c.b1 = held(3u, tid);
#else
        mine$c.a2 = held(0u, tid);
        mine$c.b2 = held(1u, tid);
        mine$c.a3 = held(2u, tid);
        mine$c.b3 = held(3u, tid);
#endif
#endfor
        let ready$c = x_block(mine$c);
#endif
#endif
#endfor
#endfor
        for (var item = 0u; item < items; item += 4u) {
#for r in 0..4
            let line$r = w_line(bits$r, block);
            let now$r = codes$r;
#endfor
            // Loads of the next rows start before these are computed.
            if (item + 4u < items) {
#for r in 0..4
                codes$r = w_codes(weight_row(first + item + 4u + $ru) + shift, block);
                bits$r = w_bits(weight_row(first + item + 4u + $ru) + shift, block * 32u);
#endfor
            }
            // All sums first: branches between them would keep the rows of x in sequence.
#for c in 0..COLS
#for r in 0..4
            let y$c_$r = w_dot(now$r, ready$c) * line$r.x + line$r.y * ready$c.sum;
#endfor
            var sum$c = turn(y$c_0, y$c_1, y$c_2, y$c_3, lane, subgroup_size);
#endfor
            if (lane < 4u) {
#for c in 0..COLS
                let slot$c = ((item + lane) * COLS + $cu) * subgroups + subgroup;
                if (base != 0u) { sum$c += sums[slot$c]; }
                sums[slot$c] = sum$c;
#endfor
            }
        }
    }
#ifndef ROUND
#ifdef NORM
#for c in 0..COLS
    square$c = subgroupAdd(square$c);
    if (lane == 0u) {
        squares[$cu * subgroups + subgroup] = square$c;
    }
#endfor
#endif
#endif
    workgroupBarrier();
    let each = ROW_THREADS / subgroup_size;
    for (var i = lid; i < outputs; i += WG) {
        let output = i / COLS;
        let n = wid.x * ROW_GROUPS * params.share + output;
        let c = i % COLS;
#if COLS == 1
        let asked = n < params.n;
#else
        let asked = n < params.n && col0 + c < state.rows;
#endif
        if (asked) {
            var factor = norm_of(c, subgroups);
#ifdef ROUND
            factor = unit_of(c, subgroups, factor);
#endif
            factor *= params.scale;
            let row = output % params.share * EACH;
            let part = output / params.share * each;
            var up = 0.0;
#ifdef GATED
            up = whole((row + 1u) * COLS + c, part, each, subgroups);
#endif
            let sum = whole(row * COLS + c, part, each, subgroups);
#ifdef EXPERTS
            finish(col0 + c, n, sum, up, factor);
#else
            if (i != lid) { early = ending_of(col0 + c, n); }
            finish_with(col0 + c, n, sum, up, factor, early);
#endif
        }
    }
}
