// A step of an LSTM cell (gates in PyTorch's order: input, forget, cell, output) or with RNN of a tanh cell. Sums of gates
// come in two parts: of the step's input (`from_input`) and of the hidden state before it (`from_state`, absent with FIRST).
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
#ifndef RNN
@group(0) @binding(4) var<storage, read_write> cells: array<f32>;
@group(0) @binding(5) var<storage, read_write> gates: array<f32>;
#endif
#import common/activation

fn gate_sum(row: u32, col: u32, width: u32) -> f32 {
    var sum = from_input[params.input_offset + row * width + col];
#ifndef FIRST
    sum += from_state[row * width + col];
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
#ifdef RNN
    out[params.now_offset + index] = safe_tanh(gate_sum(row, c, size));
#else
    let i = sigmoid(gate_sum(row, c, 4u * size));
    let f = sigmoid(gate_sum(row, size + c, 4u * size));
    let g = safe_tanh(gate_sum(row, 2u * size + c, 4u * size));
    let o = sigmoid(gate_sum(row, 3u * size + c, 4u * size));
    var cell = i * g;
#ifndef FIRST
    cell += f * cells[params.before_offset + index];
#endif
    let at = params.gates_offset + row * 4u * size + c;
    gates[at] = i;
    gates[at + size] = f;
    gates[at + 2u * size] = g;
    gates[at + 3u * size] = o;
    cells[params.now_offset + index] = cell;
    out[params.now_offset + index] = o * safe_tanh(cell);
#endif
}
