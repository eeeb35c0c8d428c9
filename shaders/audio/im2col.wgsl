// Im2col windows of a convolution over rows, the input of its matmul. Zeros precede the first row (`left`) and follow
// the last. Window columns are ordered by channel as in checkpoints, or with BY_TAP by tap. A workgroup takes 256
// elements.
struct Params {
    cols: u32,
    taps: u32,
    step: u32,
    dilation: u32,
    left: u32,
    // Zero rows on both sides minus the rows that a window spans.
    margin: i32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let width = params.cols * params.taps;
    let element = (wid.x + wid.y * groups.x) * 256u + lid;
    let row = element / width;
    let place = element % width;
    let windows = max((i32(state.rows) + params.margin) / i32(params.step) + 1, 0);
    if (i32(row) >= windows || i32(state.rows) + params.margin < 0) {
        return;
    }
#ifdef BY_TAP
    let tap = place / params.cols;
    let channel = place % params.cols;
#else
    let tap = place % params.taps;
    let channel = place / params.taps;
#endif
    let source = i32(row * params.step + tap * params.dilation) - i32(params.left);
    var value = 0.0;
    if (source >= 0 && source < i32(state.rows)) {
        value = x[params.x_offset + u32(source) * params.x_stride + channel];
    }
    out[row * params.out_stride + place] = value;
}
