// Builds heads of D columns: a's columns of the head, then b's, then zeros. An input's heads are `step` columns apart;
// 0 if all heads share the columns.
struct Params {
    cols: u32,
    head_dim: u32,
    a_cols: u32,
    a_step: u32,
    a_offset: u32,
    a_stride: u32,
    b_cols: u32,
    b_step: u32,
    b_offset: u32,
    b_stride: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
#ifdef BINARY
@group(0) @binding(2) var<storage, read> b: array<f32>;
#endif
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let at = wid.x * 64u + lid;
    let row = wid.y;
    if (at >= params.cols) {
        return;
    }
    let head = at / params.head_dim;
    let c = at % params.head_dim;
    var y = 0.0;
    if (c < params.a_cols) {
        y = a[params.a_offset + row * params.a_stride + head * params.a_step + c];
    }
#ifdef BINARY
    if (c >= params.a_cols && c < params.a_cols + params.b_cols) {
        y = b[params.b_offset + row * params.b_stride + head * params.b_step + c - params.a_cols];
    }
#endif
    out[row * params.out_stride + at] = y;
}
