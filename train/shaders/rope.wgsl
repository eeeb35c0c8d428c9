// RoPE of [rows, heads × head_dim] at given positions; INVERSE applies the transposed rotation, which is the gradient.
// `table` has (cos, sin) of each pair and position. Columns from `dim` on are copied. ADD adds to out.
struct Params {
    rows: u32,
    heads: u32,
    head_dim: u32,
    dim: u32,
    interleaved: u32,
    x_offset: u32,
    x_stride: u32,
    out_offset: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let at = (wid.x + wid.y * groups.x) * 256u + lid;
    let width = params.heads * params.head_dim;
    let row = at / width;
    if (row >= params.rows) { return; }
    let c = at % width;
    let i = c % params.head_dim;
    let base = params.x_offset + row * params.x_stride + c - i;
    let half = params.dim / 2u;
    var value = x[base + i];
    if (i < params.dim) {
        var pair = i % half;
        var other = (i + half) % params.dim;
        var second = i >= half;
        if (params.interleaved != 0u) {
            pair = i / 2u;
            other = i ^ 1u;
            second = (i & 1u) == 1u;
        }
        let turn = table[positions[row] * half + pair];
        var sine = -turn.y;
        if (second) { sine = turn.y; }
#ifdef INVERSE
        sine = -sine;
#endif
        value = value * turn.x + x[base + other] * sine;
    }
    let to = params.out_offset + row * params.out_stride + c;
#ifdef ADD
    value += out[to];
#endif
    out[to] = value;
}
