// Norm of each column group over all rows, from its slab sums. A workgroup takes 1024 elements of one group.
struct Params {
    cols: u32,
    groups: u32,
    slabs: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
    eps: f32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> sums: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> gain: array<f32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let wide = params.cols / params.groups;
    let unit = wid.x + wid.y * groups.x;
    let group = unit % params.groups;
    let size = f32(state.rows * wide);
    // Few slabs: every thread reduces all of them.
    var mean = 0.0;
    for (var s = 0u; s < params.slabs; s++) {
        let count = f32(((s + 1u) * state.rows / params.slabs - s * state.rows / params.slabs) * wide);
        mean += sums[group * params.slabs + s].x * count / size;
    }
    var squares = 0.0;
    for (var s = 0u; s < params.slabs; s++) {
        let count = f32(((s + 1u) * state.rows / params.slabs - s * state.rows / params.slabs) * wide);
        let part = sums[group * params.slabs + s];
        squares += part.y + count * (part.x - mean) * (part.x - mean);
    }
    let factor = inverseSqrt(squares / size + params.eps);
    for (var i = 0u; i < 4u; i++) {
        let element = unit / params.groups * 1024u + i * 256u + lid;
        let row = element / wide;
        let c = group * wide + element % wide;
        if (row < state.rows) {
            let y = (x[params.x_offset + row * params.x_stride + c] - mean) * factor;
            out[row * params.out_stride + c] = y * gain[c] + bias[c];
        }
    }
}
