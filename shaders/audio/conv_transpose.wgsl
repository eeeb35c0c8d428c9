// Causal grouped transposed convolution over rows: each row becomes `rate` rows, which also read earlier rows through
// the remaining taps. Outputs past the last row's own are cut. weight [inputs][outputs of a group][taps]. A workgroup
// takes 256 elements.
struct Params {
    cols: u32,
    inputs: u32,
    outputs: u32,
    taps: u32,
    rate: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
#ifdef BIAS
@group(0) @binding(4) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let element = (wid.x + wid.y * groups.x) * 256u + lid;
    let row = element / params.cols;
    let c = element % params.cols;
    if (row >= state.rows * params.rate) {
        return;
    }
    let phase = row % params.rate;
    let first = c / params.outputs * params.inputs;
    let own = c % params.outputs;
    var sum = 0.0;
#ifdef BIAS
    sum = bias[c];
#endif
    var source = row / params.rate;
    for (var tap = phase; tap < params.taps; tap += params.rate) {
        for (var i = 0u; i < params.inputs; i++) {
            let w = weight[((first + i) * params.outputs + own) * params.taps + tap];
            sum += x[params.x_offset + source * params.x_stride + first + i] * w;
        }
        if (source == 0u) {
            break;
        }
        source -= 1u;
    }
    out[row * params.out_stride + c] = sum;
}
