// Swaps the first two dimensions of [outer, middle, cols]: out is [middle, outer, cols].
struct Params {
    count: u32,
    outer: u32,
    middle: u32,
    cols: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let at = (wid.x + wid.y * groups.x) * 256u + lid;
    if (at >= params.count) { return; }
    let c = at % params.cols;
    let i = at / params.cols / params.middle;
    let j = at / params.cols % params.middle;
    out[(j * params.outer + i) * params.cols + c] = x[at];
}
