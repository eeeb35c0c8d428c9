// Adds to each row the table row of its position in the sequence. A workgroup takes 256 elements.
struct Params {
    cols: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: State;
#import common/rows
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> table: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let element = (wid.x + wid.y * groups.x) * 256u + lid;
    let row = element / params.cols;
    let c = element % params.cols;
    if (row >= state.rows) {
        return;
    }
    let place = row_position(row) * params.cols + c;
    out[row * params.out_stride + c] = x[params.x_offset + row * params.x_stride + c] + table[place];
}
