// Copies soft tokens (image embeddings) to rows whose id is past the table. ADD adds them to rows of a instead, for
// features of deeper vision layers.
struct Params {
    cols: u32,
    a_offset: u32,
    a_stride: u32,
    soft_offset: u32,
    soft_stride: u32,
    first: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
#ifdef ADD
@group(0) @binding(1) var<storage, read> a: array<f32>;
#endif
@group(0) @binding(2) var<storage, read> soft: array<f32>;
@group(0) @binding(3) var<storage, read> ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let id = ids[row];
    let picture = id >= params.first;
    for (var i = 0u; i < 4u; i++) {
        let c = wid.x * 256u + i * 64u + lid;
        if (c < params.cols) {
            var y = 0.0;
            if (picture) { y = soft[params.soft_offset + (id - params.first) * params.soft_stride + c]; }
#ifdef ADD
            out[row * params.out_stride + c] = a[params.a_offset + row * params.a_stride + c] + y;
#else
            if (picture) { out[row * params.out_stride + c] = y; }
#endif
        }
    }
}
