// Takes the best of the slices as the next token and advances the state: the token becomes the next step's input, at
// the position after this step's rows. After a stop token, or with the budget spent, nothing changes any more. Two
// words after the ring hold the token count and whether it stopped, so one readback suffices. A stopped state has no
// rows, so later steps leave the cache unchanged. All-equal logits are treated like NaN: devices that skip work produce
// them.
// HISTORY stores the token at its position for sample/draft. LOGITS finds the maximum of all logits itself, four at a
// time, for devices where saving a dispatch beats parallelism.
struct Params {
    slices: u32,
    stops: u32,
    ring: u32,
#ifdef LOGITS
    vocab: u32,
#endif
#ifdef DRAFTS
    row: u32,
#endif
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
#ifdef LOGITS
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read> candidates: array<vec2<u32>>;
#endif
@group(0) @binding(2) var<storage, read> stops: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: State;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> tokens: array<u32>;
#ifdef COUNT
@group(0) @binding(6) var<storage, read_write> counts: array<u32>;
#endif
#ifdef HISTORY
@group(0) @binding(7) var<storage, read_write> history: array<u32>;
#endif

#import sample/best

var<workgroup> spread: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32) {
    var best = Best(-3.4e38, NONE);
#ifdef LOGITS
    let fours = (params.vocab + 3u) / 4u;
    let head = logits[0].x;
    var differs = params.vocab == 1u;
    for (var first = lid; first < fours; first += 1024u) {
        // Loaded together; past the end the last ones repeat, without effect.
#for j in 0..4
        let at$j = min(first + $ju * 256u, fours - 1u);
        let four$j = logits[at$j];
#endfor
#for j in 0..4
        for (var c = 0u; c < 4u; c++) {
            let i = at$j * 4u + c;
            if (i < params.vocab) {
                let v = four$j[c];
                differs = differs || v != head;
                if ((bitcast<u32>(v) & 0x7f800000u) == 0x7f800000u) {
                    best = Best(3.4e38, NOT_FINITE);
                } else {
                    best = better(best, Best(v, i));
                }
            }
        }
#endfor
    }
    if (differs) { atomicStore(&spread, 1u); }
#else
    for (var i = lid; i < params.slices; i += 256u) {
        let c = candidates[i];
        if (c.y == NOT_FINITE) {
            best = Best(3.4e38, NOT_FINITE);
        } else {
            if (c.y < FLAT || c.x != candidates[0].x) { atomicStore(&spread, 1u); }
            best = better(best, Best(bitcast<f32>(c.x), c.y & (FLAT - 1u)));
        }
    }
#endif
    best = best_of_all(lid, best);
    if (lid != 0u || state.stopped != 0u) {
        return;
    }
#ifdef DRAFTS
    let rows = state.rows;
    if (params.row >= rows) {
        return;
    }
    if (params.row == 0u) { tokens[params.ring + 2u] += rows - 1u; }
#endif
    var token = best.index;
    if (atomicLoad(&spread) == 0u) { token = NOT_FINITE; }
    tokens[state.step % params.ring] = token;
#ifdef COUNT
    if (token < NOT_FINITE) { counts[token] += 1u; }
#endif
    state.step += 1u;
#ifdef DRAFTS
    state.accepted = params.row + 1u;
    state.pos += 1u;
#else
    state.pos += state.rows;
    state.rows = 1u;
#endif
    state.budget -= 1u;
#ifdef HISTORY
    history[state.pos] = token;
#endif
    var stopped = state.budget == 0u || token >= NOT_FINITE;
    for (var i = 0u; i < params.stops; i++) {
        if (stops[i] == token) { stopped = true; }
    }
    if (stopped) {
        state.stopped = 1u;
        state.rows = 0u;
    } else {
#ifdef DRAFTS
        if (params.row + 1u < rows && ids[params.row + 1u] == token) {
            tokens[params.ring + 3u] += 1u;
        } else {
            state.rows = 1u;
            ids[0] = token;
        }
#else
        ids[0] = token;
#endif
    }
    tokens[params.ring] = state.step;
    tokens[params.ring + 1u] = state.stopped;
}
