// Accepts the tokens of a step with drafted rows. The first row's argmax is the next token. While the following row's
// draft equals that token, that row's argmax is accepted too. State, ring and stop as in sample/advance; two more words
// after the ring count drafted rows and accepted drafts. HISTORY stores the tokens for sample/draft. FORCED accepts drafts
// at random instead, with a chance of `chance` in 2^32: for measurements.
struct Params {
    slices: u32,
    stops: u32,
    ring: u32,
#ifdef FORCED
    chance: u32,
#endif
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> candidates: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> stops: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: State;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
#ifdef HISTORY
@group(0) @binding(6) var<storage, read_write> history: array<u32>;
#endif

#import sample/best

// Threads per row, eight rows in all.
const SHARERS: u32 = 32u;

// Per row: whether its logits differ at all, and whether its token ends the generation.
var<workgroup> spread: array<atomic<u32>, 8>;
var<workgroup> ends: array<atomic<u32>, 8>;

fn is_accepted(row: u32, token: u32) -> bool {
#ifdef FORCED
    // A multiplicative hash of the token's number (Steele et al., 2014).
    var hash = state.step * 0x9e3779b9u;
    hash = (hash ^ (hash >> 16u)) * 0x85ebca6bu;
    hash = (hash ^ (hash >> 13u)) * 0xc2b2ae35u;
    return (hash ^ (hash >> 16u)) < params.chance;
#else
    return ids[row] == token;
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32) {
    let own = lid / SHARERS;
    let sharer = lid % SHARERS;
    var best = Best(-3.4e38, NONE);
    for (var i = sharer; i < params.slices; i += SHARERS) {
        let c = candidates[own * params.slices + i];
        if (c.y == NOT_FINITE) {
            best = Best(3.4e38, NOT_FINITE);
        } else {
            if (c.y < FLAT || c.x != candidates[own * params.slices].x) { atomicStore(&spread[own], 1u); }
            best = better(best, Best(bitcast<f32>(c.x), c.y & (FLAT - 1u)));
        }
    }
    values[lid] = best.value;
    indices[lid] = best.index;
    for (var step = SHARERS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        var other = best;
        if (sharer < step) { other = Best(values[lid + step], indices[lid + step]); }
        workgroupBarrier();
        if (sharer < step) {
            best = better(best, other);
            values[lid] = best.value;
            indices[lid] = best.index;
        }
    }
    workgroupBarrier();
    for (var i = sharer; i < params.stops; i += SHARERS) {
        if (stops[i] == indices[own * SHARERS]) { atomicStore(&ends[own], 1u); }
    }
    workgroupBarrier();
    if (lid != 0u || state.stopped != 0u) {
        return;
    }
    let rows = state.rows;
    var row = 0u;
    var stopped = false;
    loop {
        var token = indices[row * SHARERS];
        if (atomicLoad(&spread[row]) == 0u) { token = NOT_FINITE; }
        tokens[state.step % params.ring] = token;
        state.step += 1u;
        state.pos += 1u;
        state.budget -= 1u;
#ifdef HISTORY
        history[state.pos] = token;
#endif
        stopped = state.budget == 0u || token >= NOT_FINITE || atomicLoad(&ends[row]) != 0u;
        if (stopped) {
            break;
        }
        if (row + 1u >= rows || !is_accepted(row + 1u, token)) {
            ids[0] = token;
            break;
        }
        row++;
    }
    state.accepted = row + 1u;
    state.rows = 1u;
    if (stopped) {
        state.stopped = 1u;
        state.rows = 0u;
    }
    tokens[params.ring] = state.step;
    tokens[params.ring + 1u] = state.stopped;
    tokens[params.ring + 2u] += rows - 1u;
    tokens[params.ring + 3u] += row;
}
