// A step of a GRU cell, gates in PyTorch's order: reset, update, new. Sums of gates come in two parts: of the step's input
// with its bias (`from_input`) and of the hidden state before it (`from_state`, absent with FIRST), whose bias is added here
// (BIAS). `gates` stores reset, update, new, and the state's sum of new, which the reset gate multiplies.
struct Params {
    rows: u32,
    hidden: u32,
    input_offset: u32,
    gates_offset: u32,
    before_offset: u32,
    now_offset: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> from_input: array<f32>;
#ifndef FIRST
@group(0) @binding(2) var<storage, read> from_state: array<f32>;
#endif
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> gates: array<f32>;
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#import common/activation

fn state_sum(row: u32, col: u32) -> f32 {
    var sum = 0.0;
#ifndef FIRST
    sum += from_state[row * 3u * params.hidden + col];
#endif
#ifdef BIAS
    sum += bias[col];
#endif
    return sum;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let index = (wid.x + wid.y * groups.x) * 64u + lid;
    let size = params.hidden;
    if (index >= params.rows * size) { return; }
    let row = index / size;
    let c = index % size;
    let own = params.input_offset + row * 3u * size + c;
    let r = sigmoid(from_input[own] + state_sum(row, c));
    let z = sigmoid(from_input[own + size] + state_sum(row, size + c));
    let from_before = state_sum(row, 2u * size + c);
    let n = safe_tanh(from_input[own + 2u * size] + r * from_before);
    var before = 0.0;
#ifndef FIRST
    before = out[params.before_offset + index];
#endif
    let at = params.gates_offset + row * 4u * size + c;
    gates[at] = r;
    gates[at + size] = z;
    gates[at + 2u * size] = n;
    gates[at + 3u * size] = from_before;
    out[params.now_offset + index] = (1.0 - z) * n + z * before;
}
