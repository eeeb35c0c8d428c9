// Top-k router, one workgroup per row: maps logits to `picks` expert ids, best first, then their weights. Ties go to
// the lower id. The rank of a score is the number of scores before it, so that all selections run in parallel.
struct Params {
    experts: u32,
    picks: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
    // Expert groups, and how many of them are selected.
    group_count: u32,
    group_keep: u32,
    // 1 to divide the weights by their sum.
    renormalize: u32,
    // Added to that sum; for the mixer, its tolerance.
    eps: f32,
    scale: f32,
}
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#ifdef BIAS
@group(0) @binding(3) var<storage, read> bias: array<f32>;
#endif
#ifdef GAIN
@group(0) @binding(4) var<storage, read> gain: array<f32>;
#endif

const WG: u32 = 128u;
const MOST: u32 = 512u;
const LOWEST: f32 = -3.0e38;
// Weight of an expert, and its selection score.
var<workgroup> scores: array<f32, MOST>;
// Padded to a multiple of eight.
var<workgroup> order: array<f32, MOST + 8u>;
var<workgroup> groups: array<f32, MOST>;
var<workgroup> partial: array<f32, WG>;
var<workgroup> eighths: array<f32, 8>;
var<workgroup> chosen: array<f32, 16>;
#ifdef GAIN
var<workgroup> gains: array<f32, 16>;
#endif

fn load(row: u32, e: u32) -> f32 {
    return x[params.x_offset + row * params.x_stride + e];
}

#ifdef SOFTMAX
// Workgroup maximum, or with `adds` sum, returned to every thread. Two barriers: another may follow directly.
fn whole(lid: u32, value: f32, adds: bool) -> f32 {
    partial[lid] = value;
    workgroupBarrier();
    if (lid < 8u) {
        var part = partial[lid];
#for i in 1..16
        if (adds) { part += partial[lid + $iu * 8u]; } else { part = max(part, partial[lid + $iu * 8u]); }
#endfor
        eighths[lid] = part;
    }
    workgroupBarrier();
    var all = eighths[0];
#for i in 1..8
    if (adds) { all += eighths[$i]; } else { all = max(all, eighths[$i]); }
#endfor
    return all;
}
#endif

// Number of experts ranked before e; padding ranks before none.
fn rank(e: u32) -> u32 {
    let own = order[e];
    var before = 0u;
    for (var i = 0u; i < params.experts; i += 8u) {
#for j in 0..8
        if (order[i + $ju] > own || (order[i + $ju] == own && i + $ju < e)) { before++; }
#endfor
    }
    return before;
}

#ifdef MIXER
// Weight of the best expert except `taken`, by softmax over the logits within its tolerance.
fn mixed(taken: u32) -> vec2<f32> {
    var best = 0u;
    var most = LOWEST;
    for (var e = 0u; e < params.experts; e++) {
        if (e != taken && scores[e] > most) {
            most = scores[e];
            best = e;
        }
    }
    var sum = 0.0;
    for (var e = 0u; e < params.experts; e++) {
        if (e != taken && most - scores[e] <= 2.0 * params.eps * max(abs(scores[e]), most)) {
            sum += exp(max(scores[e] - most, -80.0));
        }
    }
    return vec2<f32>(f32(best), 1.0 / sum);
}
#endif

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.x + wid.y * grid.x;
    let to = row * params.out_stride;
#ifdef SIGMOID
    for (var e = lid; e < params.experts; e += WG) { scores[e] = sigmoid(load(row, e)); }
#endif
#ifdef SOFTMAX
    var top = LOWEST;
    for (var e = lid; e < params.experts; e += WG) { top = max(top, load(row, e)); }
    top = whole(lid, top, false);
    var sum = 0.0;
    for (var e = lid; e < params.experts; e += WG) {
        let p = exp(max(load(row, e) - top, -80.0));
        scores[e] = p;
        sum += p;
    }
    let total = whole(lid, sum, true);
    for (var e = lid; e < params.experts; e += WG) { scores[e] = scores[e] / total; }
#endif
#ifdef MIXER
    for (var e = lid; e < params.experts; e += WG) { scores[e] = load(row, e); }
    workgroupBarrier();
    if (lid == 0u) {
        var pick = vec2<f32>(f32(MOST), 0.0);
        for (var p = 0u; p < params.picks; p++) {
            pick = mixed(u32(pick.x));
            out[to + p] = pick.x;
            out[to + params.picks + p] = pick.y * params.scale;
        }
    }
#else
    if (lid < 8u) { order[params.experts + lid] = LOWEST; }
    for (var e = lid; e < params.experts; e += WG) {
        var by = scores[e];
#ifdef BIAS
        by += bias[e];
#endif
        order[e] = by;
    }
    workgroupBarrier();
#ifdef GROUPS
    // A group's score is its best expert's, or with PAIRS the sum of its two best.
    let size = params.experts / params.group_count;
    for (var g = lid; g < params.group_count; g += WG) {
        var first = LOWEST;
        var second = LOWEST;
        for (var i = 0u; i < size; i++) {
            let by = order[g * size + i];
            second = max(second, min(first, by));
            first = max(first, by);
        }
#ifdef PAIRS
        groups[g] = first + second;
#else
        groups[g] = first;
#endif
    }
    workgroupBarrier();
    for (var e = lid; e < params.experts; e += WG) {
        let own = e / size;
        var before = 0u;
        for (var g = 0u; g < params.group_count; g++) {
            if (groups[g] > groups[own] || (groups[g] == groups[own] && g < own)) { before++; }
        }
        if (before >= params.group_keep) { order[e] = LOWEST; }
    }
    workgroupBarrier();
#endif
    for (var e = lid; e < params.experts; e += WG) {
        let place = rank(e);
        if (place < params.picks) {
            chosen[place] = scores[e];
#ifdef GAIN
            gains[place] = gain[e];
#endif
            out[to + place] = f32(e);
        }
    }
    workgroupBarrier();
    if (lid < params.picks) {
        var factor = params.scale;
        if (params.renormalize == 1u) {
            var all = params.eps;
            for (var p = 0u; p < params.picks; p++) { all += chosen[p]; }
            factor /= all;
        }
#ifdef GAIN
        factor *= gains[lid];
#endif
        out[to + params.picks + lid] = chosen[lid] * factor;
    }
#endif
}
