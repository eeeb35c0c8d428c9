// Dot product of attention's output and its gradient, for each row and head, into the second half of `stats`.
struct Params {
    parts: u32,
    heads: u32,
    head_dim: u32,
    out_offset: u32,
    out_stride: u32,
    dy_offset: u32,
    dy_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> out: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> stats: array<vec2<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let part = (wid.x + wid.y * groups.x) * 64u + lid;
    if (part >= params.parts) { return; }
    let row = part / params.heads;
    let first = part % params.heads * params.head_dim;
    let below = params.out_offset + row * params.out_stride + first;
    let above = params.dy_offset + row * params.dy_stride + first;
    var sum = 0.0;
    for (var d = 0u; d < params.head_dim; d++) { sum += out[below + d] * dy[above + d]; }
    stats[part].y = sum;
}
