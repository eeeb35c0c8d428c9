// Sorts a step's row-expert pairs by expert, in one workgroup. `buckets` gets the tile count, then four words per tile
// (expert, first pair, end of its bucket). From order_at on: the pairs sorted by expert. From place_at on: the tile row
// of each pair, with tiles stacked. A pair's index is row * each + its rank in the row. The order within a bucket is
// unspecified and does not affect results.
struct Params {
    experts: u32,
    each: u32,
    x_offset: u32,
    x_stride: u32,
    tile_rows: u32,
    order_at: u32,
    place_at: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> picks: array<f32>;
@group(0) @binding(2) var<storage, read_write> buckets: array<u32>;
@group(0) @binding(3) var<storage, read> state: State;

const WG: u32 = 256u;
const MOST: u32 = 512u;
var<workgroup> counts: array<atomic<u32>, MOST>;
var<workgroup> firsts: array<u32, MOST>;
// Offset from sorted index to tile row.
var<workgroup> shifts: array<u32, MOST>;

fn expert(pick: u32) -> u32 {
    let e = picks[params.x_offset + pick / params.each * params.x_stride + pick % params.each];
    return min(u32(e), params.experts - 1u);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32) {
    let all = state.rows * params.each;
    for (var e = lid; e < params.experts; e += WG) { atomicStore(&counts[e], 0u); }
    workgroupBarrier();
    for (var i = lid; i < all; i += WG) { atomicAdd(&counts[expert(i)], 1u); }
    workgroupBarrier();
    for (var e = lid; e < params.experts; e += WG) {
        var first = 0u;
        var tile = 0u;
        for (var i = 0u; i < e; i++) {
            let count = atomicLoad(&counts[i]);
            first += count;
            tile += (count + params.tile_rows - 1u) / params.tile_rows;
        }
        let end = first + atomicLoad(&counts[e]);
        firsts[e] = first;
        shifts[e] = tile * params.tile_rows - first;
        for (var at = first; at < end; at += params.tile_rows) {
            buckets[4u + tile * 4u] = e;
            buckets[5u + tile * 4u] = at;
            buckets[6u + tile * 4u] = end;
            tile++;
        }
        if (e == params.experts - 1u) { buckets[0] = tile; }
    }
    workgroupBarrier();
    for (var e = lid; e < params.experts; e += WG) { atomicStore(&counts[e], firsts[e]); }
    workgroupBarrier();
    for (var i = lid; i < all; i += WG) {
        let e = expert(i);
        let place = atomicAdd(&counts[e], 1u);
        buckets[params.order_at + place] = i;
        buckets[params.place_at + i] = place + shifts[e];
    }
}
