// Gated RMSNorm of column groups, in place or with APART into `out`: norm(x) · gain · silu(z), or with GATE_FIRST
// norm(x · silu(z)) · gain. A workgroup takes one group of one row; the gains of consecutive groups are gain_step
// columns apart.
struct Params {
    cols: u32,
    x_offset: u32,
    x_stride: u32,
    z_offset: u32,
    z_stride: u32,
    out_offset: u32,
    out_stride: u32,
    gain_offset: u32,
    gain_step: u32,
    eps: f32,
}
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
#ifdef APART
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif
@group(0) @binding(2) var<storage, read> z: array<f32>;
@group(0) @binding(3) var<storage, read> gain: array<f32>;

var<workgroup> parts: array<f32, WG>;
var<workgroup> eighths: array<f32, 8>;

fn given(at: u32, gate: u32) -> f32 {
#ifdef GATE_FIRST
    let v = z[gate];
    return x[at] * v * sigmoid(v);
#else
    return x[at];
#endif
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let run = wid.x * params.cols;
    let at = params.x_offset + wid.y * params.x_stride + run;
    let gain_at = params.gain_offset + wid.x * params.gain_step;
    let gate = params.z_offset + wid.y * params.z_stride + run;
    var squares = 0.0;
    // Four columns are loaded together.
    for (var first = lid; first < params.cols; first += 4u * WG) {
#for i in 0..4
        var v$i = 0.0;
        if (first + $iu * WG < params.cols) { v$i = given(at + first + $iu * WG, gate + first + $iu * WG); }
#endfor
        squares += v0 * v0 + v1 * v1 + v2 * v2 + v3 * v3;
    }
    parts[lid] = squares;
    workgroupBarrier();
    if (lid < 8u) {
        var sum = 0.0;
        for (var i = lid; i < WG; i += 8u) { sum += parts[i]; }
        eighths[lid] = sum;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) { sum += eighths[i]; }
    let factor = inverseSqrt(sum / f32(params.cols) + params.eps);
    for (var c = lid; c < params.cols; c += WG) {
#ifdef GATE_FIRST
        let y = given(at + c, gate + c) * factor * gain[gain_at + c];
#else
        let v = z[gate + c];
        let y = x[at + c] * factor * gain[gain_at + c] * v * sigmoid(v);
#endif
#ifdef APART
        out[params.out_offset + wid.y * params.out_stride + run + c] = y;
#else
        x[at + c] = y;
#endif
    }
}
