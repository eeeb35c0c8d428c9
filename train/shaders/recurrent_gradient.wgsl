// Gradients of a step of recurrent_cell.wgsl: of the sums of gates (`dgates`), and in place of the gradient of the cells
// after it (`dcells`, absent with LAST) that of the cells before it. `dy` has the gradient of the step's output, with what
// the steps after it add.
struct Params {
    rows: u32,
    hidden: u32,
    gates_offset: u32,
    before_offset: u32,
    now_offset: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read_write> dgates: array<f32>;
#ifdef RNN
@group(0) @binding(3) var<storage, read> out: array<f32>;
#else
@group(0) @binding(3) var<storage, read> cells: array<f32>;
@group(0) @binding(4) var<storage, read> gates: array<f32>;
@group(0) @binding(5) var<storage, read_write> dcells: array<f32>;
#endif
#import common/activation

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let index = (wid.x + wid.y * groups.x) * 64u + lid;
    let size = params.hidden;
    if (index >= params.rows * size) { return; }
    let d = dy[params.now_offset + index];
#ifdef RNN
    let y = out[params.now_offset + index];
    dgates[params.gates_offset + index] = d * (1.0 - y * y);
#else
    let at = params.gates_offset + index / size * 4u * size + index % size;
    let i = gates[at];
    let f = gates[at + size];
    let g = gates[at + 2u * size];
    let o = gates[at + 3u * size];
    let t = safe_tanh(cells[params.now_offset + index]);
    var dcell = d * o * (1.0 - t * t);
#ifndef LAST
    dcell += dcells[index];
#endif
    var before = 0.0;
#ifndef FIRST
    before = cells[params.before_offset + index];
#endif
    dgates[at] = dcell * g * i * (1.0 - i);
    dgates[at + size] = dcell * before * f * (1.0 - f);
    dgates[at + 2u * size] = dcell * i * (1.0 - g * g);
    dgates[at + 3u * size] = d * t * o * (1.0 - o);
    dcells[index] = dcell * f;
#endif
}
