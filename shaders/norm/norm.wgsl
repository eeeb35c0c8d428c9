// RMSNorm, or LayerNorm with LAYER, of each row or each of `groups` column groups; one workgroup each. ROUND then
// quantizes to integers up to 127 of the row's largest magnitude (8 bits); PLAIN omits the norm. ADD computes (rest +
// norm + more) · scale · by. EACH is the number of columns per thread. LAST: with params.last, only the step's last row.
struct Params {
    cols: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
    eps: f32,
    offset: f32,
    groups: u32,
#ifdef LAST
    last: u32,
#endif
#ifdef ADD
    rest_offset: u32,
    rest_stride: u32,
    more_offset: u32,
    more_stride: u32,
    scale: f32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
#import common/f16_store
@group(0) @binding(2) var<storage, read_write> out: array<Kept>;
#ifdef GAIN
@group(0) @binding(3) var<storage, read> gain: array<f32>;
#endif
#ifdef BIAS
@group(0) @binding(4) var<storage, read> bias: array<f32>;
#endif
#ifdef ADD
@group(0) @binding(5) var<storage, read> rest: array<f32>;
#endif
#ifdef ADD2
@group(0) @binding(6) var<storage, read> more: array<f32>;
#endif
#ifdef SCALE_BUFFER
@group(0) @binding(7) var<storage, read> by: array<f32>;
#endif
#ifdef LAST
#import common/state
@group(0) @binding(8) var<storage, read> state: State;
#endif

#import common/total

// Maximum over the workgroup.
fn highest(lid: u32, value: f32) -> f32 {
    partial[lid] = value;
    workgroupBarrier();
    if (lid < 16u) {
        var most = 0.0;
        for (var i = lid; i < WG; i += 16u) { most = max(most, partial[i]); }
        sixteenths[lid] = most;
    }
    workgroupBarrier();
    var most = 0.0;
    for (var i = 0u; i < 16u; i++) { most = max(most, sixteenths[i]); }
    return most;
}

// Gain and offset of a column.
fn line(c: u32) -> vec2<f32> {
    var line = vec2<f32>(1.0, 0.0);
#ifdef GAIN
    line.x = gain[c] + params.offset;
#endif
#ifdef BIAS
    line.y = bias[c];
#endif
    return line;
}

// Residual of a column.
fn beside(row: u32, c: u32) -> f32 {
    var sum = 0.0;
#ifdef ADD
    sum = rest[params.rest_offset + row * params.rest_stride + c];
#ifdef ADD2
    sum += more[params.more_offset + row * params.more_stride + c];
#endif
#endif
    return sum;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let part = wid.x + wid.y * groups.x;
    let row = part / params.groups;
    let first = part % params.groups * params.cols;
    var taken = row;
#ifdef LAST
    if (params.last == 1u) { taken = state.rows - 1u; }
#endif
    let base = params.x_offset + taken * params.x_stride + first;
    var mean = 0.0;
    var factor = 1.0;
    // All loads start before the first is used: with a single row, nothing else hides the latency of a second read.
#for i in 0..EACH
    let c$i = lid + $iu * WG;
    let near$i = min(c$i, params.cols - 1u);
    let x$i = x[base + near$i];
    let line$i = line(near$i);
    let beside$i = beside(row, near$i);
#endfor
#ifdef LAYER
    var sum = 0.0;
#for i in 0..EACH
    if (c$i < params.cols) { sum += x$i; }
#endfor
    mean = total(lid, sum) / f32(params.cols);
#endif
#ifndef PLAIN
    var squares = 0.0;
#for i in 0..EACH
    if (c$i < params.cols) { squares += (x$i - mean) * (x$i - mean); }
#endfor
    factor = inverseSqrt(total(lid, squares) / f32(params.cols) + params.eps);
#endif
#for i in 0..EACH
    var y$i = (x$i - mean) * factor * line$i.x + line$i.y;
#endfor
#ifdef ROUND
    var most = 0.0;
#for i in 0..EACH
    most = max(most, abs(y$i));
#endfor
    let steps = 127.0 / max(highest(lid, most), 1e-5);
#endif
#for i in 0..EACH
#ifdef ROUND
    y$i = round(y$i * steps) / steps;
#endif
#ifdef ADD
    y$i = (y$i + beside$i) * params.scale;
#ifdef SCALE_BUFFER
    y$i *= by[0];
#endif
#endif
    if (c$i < params.cols) { out[row * params.out_stride + first + c$i] = as_kept(y$i); }
#endfor
}
