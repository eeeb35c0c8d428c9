// Takes the best of each row's slices as the next token of the row's sequence and advances its entry in the row table, as
// sample/advance does for one sequence. A workgroup takes a row. A row's part of `tokens` holds a ring of sampled tokens,
// then their count and whether the row has stopped. Rows with sampling parameters have candidates of their own: a launch
// with `apart` takes only the row `row0`, one without skips such rows.
struct Params {
    slices: u32,
    stops: u32,
    ring: u32,
    row0: u32,
    apart: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> candidates: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> stops: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: State;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
#ifdef COUNT
@group(0) @binding(6) var<storage, read_write> counts: array<u32>;
#endif

#import sample/best

var<workgroup> spread: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = params.row0 + wid.x;
    let base = wid.x * params.slices;
    var best = Best(-3.4e38, NONE);
    for (var i = lid; i < params.slices; i += 256u) {
        let c = candidates[base + i];
        if (c.y == NOT_FINITE) {
            best = Best(3.4e38, NOT_FINITE);
        } else {
            if (c.y < FLAT || c.x != candidates[base].x) { atomicStore(&spread, 1u); }
            best = better(best, Best(bitcast<f32>(c.x), c.y & (FLAT - 1u)));
        }
    }
    best = best_of_all(lid, best);
    if (lid != 0u || row >= state.rows) {
        return;
    }
    var own = state.sequences[row];
    if (own.stopped != 0u || own.sampled_apart != params.apart) {
        return;
    }
    var token = best.index;
    if (atomicLoad(&spread) == 0u) { token = NOT_FINITE; }
#ifdef COUNT
    if (token < NOT_FINITE) { counts[token] += 1u; }
#endif
    let to = row * (params.ring + 2u);
    tokens[to + own.step % params.ring] = token;
    own.step += 1u;
    own.position += 1u;
    own.rope_position += 1u;
    own.budget -= 1u;
    var stopped = own.budget == 0u || token >= NOT_FINITE;
    for (var i = 0u; i < params.stops; i++) {
        if (stops[row * params.stops + i] == token) { stopped = true; }
    }
    if (stopped) {
        own.stopped = 1u;
    } else {
        ids[row] = token;
    }
    state.sequences[row] = own;
    tokens[to + params.ring] = own.step;
    tokens[to + params.ring + 1u] = own.stopped;
}
