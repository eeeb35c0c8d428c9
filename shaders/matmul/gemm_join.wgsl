// Adds the parts that the workgroups of a split GEMM left, one thread for each output. EXPERTS: what they left are tiles of
// one expert's picks (shaders/experts/bucket.wgsl), in one part; wid.y is the tile.
struct Params {
    n: u32,
    tiles: u32,
    tile_rows: u32,
    tile_cols: u32,
#ifdef EXPERTS
    order_at: u32,
    expert_rows: u32,
    row_step: u32,
    alpha: f32,
    limit: f32,
#else
    target_groups: u32,
    max_splits: u32,
#endif
    out_offset: u32,
    out_stride: u32,
    res_offset: u32,
    res_stride: u32,
    res_times: u32,
    up_row: u32,
    scale: f32,
    softcap: f32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
#import matmul/finish
@group(0) @binding(7) var<storage, read> parts: array<f32>;
#ifdef EXPERTS
@group(0) @binding(8) var<storage, read> buckets: array<u32>;
var<private> bias_row: u32;
const out_first: u32 = 0u;
#else
@group(0) @binding(8) var<storage, read> state: State;
#endif

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#ifdef EXPERTS
    const row_tiles = 0u;
    const splits = 1u;
    let columns = (params.n + 255u) / 256u;
    let n = wid.x % columns * 256u + lid;
    let place = buckets[5u + wid.y * 4u] + wid.x / columns;
    if (n >= params.n || wid.y >= buckets[0] || place >= buckets[6u + wid.y * 4u]) {
        return;
    }
    let line = wid.y * params.tile_rows + wid.x / columns;
    let row = buckets[params.order_at + place];
    bias_row = buckets[4u + wid.y * 4u] * params.expert_rows;
#else
    let n = wid.x * 256u + lid;
    let row = wid.y;
    let line = row;
    if (n >= params.n) {
        return;
    }
    // As GridSpec::Split has it.
    let row_tiles = (state.rows + params.tile_rows - 1u) / params.tile_rows;
    let tiles = params.tiles * row_tiles;
    var splits = clamp(params.target_groups / tiles, 1u, params.max_splits);
    let last = tiles % params.target_groups;
    if (tiles > params.target_groups && tiles < 4u * params.target_groups && last > 0u && 2u * last <= params.target_groups) {
        splits = min(params.max_splits, 2u);
    }
#endif
#ifdef GATED
    let column = n / 32u * 64u + n % 32u;
#else
    let column = n;
#endif
    let width = params.tiles * params.tile_cols;
    var sum = 0.0;
    var up = 0.0;
    for (var s = 0u; s < splits; s++) {
        let at = (s * row_tiles * params.tile_rows + line) * width + column;
        sum += parts[at];
#ifdef GATED
        up += parts[at + 32u];
#endif
    }
    finish(row, n, sum, up, params.scale);
}
