// Gradients of a step of gru_cell.wgsl: of the input's sums of gates (`dgates`) and of the state's (`dstate`), which differ
// in the new gate. `dy` has the gradient of the step's output, with what the steps after it add; what the output takes from
// the state before it is added to the gradient of that step.
struct Params {
    rows: u32,
    hidden: u32,
    gates_offset: u32,
    sums_offset: u32,
    before_offset: u32,
    now_offset: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> dy: array<f32>;
@group(0) @binding(2) var<storage, read> out: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read_write> dgates: array<f32>;
@group(0) @binding(5) var<storage, read_write> dstate: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let index = (wid.x + wid.y * groups.x) * 64u + lid;
    let size = params.hidden;
    if (index >= params.rows * size) { return; }
    let row = index / size;
    let c = index % size;
    let at = params.gates_offset + row * 4u * size + c;
    let r = gates[at];
    let z = gates[at + size];
    let n = gates[at + 2u * size];
    let from_before = gates[at + 3u * size];
    let d = dy[params.now_offset + index];
    var before = 0.0;
#ifndef FIRST
    before = out[params.before_offset + index];
    dy[params.before_offset + index] += d * z;
#endif
    let dn = d * (1.0 - z) * (1.0 - n * n);
    let dr = dn * from_before * r * (1.0 - r);
    let dz = d * (before - n) * z * (1.0 - z);
    let to = params.sums_offset + row * 3u * size + c;
    dgates[to] = dr;
    dgates[to + size] = dz;
    dgates[to + 2u * size] = dn;
    dstate[to] = dr;
    dstate[to + size] = dz;
    dstate[to + 2u * size] = dn * r;
}
