// Scaled table rows by id. A table sharded over several buffers takes one dispatch per shard: a dispatch serves ids in
// row0..row0+n and leaves other rows unchanged. With POSITIONS, the index is the row's position in the sequence. With
// SOFT, ids past the table's end (image tokens) read one fixed row.
struct Params {
    k: u32,
    k_blocks: u32,
    groups: u32,
    row0: u32,
    n: u32,
    out_stride: u32,
    scale: f32,
#ifdef SOFT
    end: u32,
    past: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
#ifdef POSITIONS
#import common/state
@group(0) @binding(1) var<storage, read> state: State;
#import common/rows
#else
@group(0) @binding(1) var<storage, read> ids: array<u32>;
#endif
#import weights/any
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let k = (wid.x * 64u + lid) * 4u;
#ifdef POSITIONS
    let id = row_position(row);
#else
    var id = ids[row];
#endif
#ifdef SOFT
    if (id >= params.end) { id = params.past; }
#endif
    if (k < params.k && id >= params.row0 && id < params.row0 + params.n) {
        out[(row * params.out_stride + k) / 4u] = w_load4(id - params.row0, k) * params.scale;
    }
}
