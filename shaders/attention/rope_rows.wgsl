// Optional RMSNorm and RoPE of the heads of q and k of packed sequences, by each row's own position. Output rows hold
// all queries, then all keys. A workgroup of 64 threads takes one head of one row.
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rope_dim: u32,
    q_offset: u32,
    q_stride: u32,
    k_offset: u32,
    k_stride: u32,
    eps: f32,
    norm_offset: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
const WG: u32 = 64u;
#import attention/staged_head

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let pos = positions[row];
    let d = params.head_dim;
    let is_q = wid.x < params.heads;
    for (var i = lid; i < d; i += WG) {
        if (is_q) {
            head[i] = q[params.q_offset + row * params.q_stride + wid.x * d + i];
        } else {
            head[i] = k[params.k_offset + row * params.k_stride + (wid.x - params.heads) * d + i];
        }
    }
    let factor = staged_factor(lid);
    var gain = d;
    if (is_q) { gain = 0u; }
    let at = (row * (params.heads + params.kv_heads) + wid.x) * d / 4u;
    for (var i = lid; i < d / 4u; i += WG) {
        out[at + i] = rotated4(0u, 4u * i, pos, factor, gain);
    }
}
