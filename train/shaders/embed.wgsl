// Scaled rows of a table by id. A table sharded over several buffers takes one dispatch per shard: a dispatch serves ids
// in first..first+count and leaves other rows unchanged.
struct Params {
    rows: u32,
    cols: u32,
    k_blocks: u32,
    groups: u32,
    first: u32,
    count: u32,
    scale: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
#import weights/any
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let c = (wid.x * 64u + lid) * 4u;
    let id = ids[row];
    if (c >= params.cols || id < params.first || id >= params.first + params.count) { return; }
    let values = w_load4(id - params.first, c);
    for (var e = 0u; e < min(4u, params.cols - c); e++) { out[row * params.cols + c + e] = values[e] * params.scale; }
}
