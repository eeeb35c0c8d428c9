// Reorders a row's columns, for matmuls whose weights are sorted by quantization group.
struct Params {
    cols: u32,
    a_offset: u32,
    a_stride: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let c = wid.x * 64u + lid;
    if (c < params.cols) {
        out[wid.y * params.out_stride + c] = a[params.a_offset + wid.y * params.a_stride + order[c]];
    }
}
