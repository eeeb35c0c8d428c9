// Copies the step's rows, from or to rows by position.
struct Params {
    cols: u32,
    from_offset: u32,
    from_stride: u32,
    // 1 where rows are counted from the step's position.
    from_position: u32,
    to_stride: u32,
    to_position: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> state: State;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid;
    let row = wid.y;
    if (c >= params.cols || row >= state.rows) {
        return;
    }
    let target_row = row + params.to_position * state.pos;
    let source_row = row + params.from_position * state.pos;
    out[target_row * params.to_stride + c] = rows[params.from_offset + source_row * params.from_stride + c];
}
