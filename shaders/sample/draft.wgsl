// Drafts tokens by prompt lookup (Saxena, 2023): matches the last tokens in the sequence so far, and copies the tokens
// that followed to this step's rows, after the last token. The longest matching suffix wins, on ties the latest. A copy
// that reaches the end of the sequence continues with the copied tokens.
struct Params {
    longest: u32,
    shortest: u32,
    most: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> history: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> state: State;
@group(0) @binding(3) var<storage, read_write> ids: array<u32>;

// Suffix length in the upper 4 bits, its last position below; 0 without a match.
var<workgroup> best: atomic<u32>;
const PLACE: u32 = 0xfffffffu;

fn token(at: u32) -> u32 {
    return history[at / 4u][at % 4u];
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32) {
    let pos = state.pos;
    let last = token(pos);
    for (var i = lid; i * 4u < pos; i += 256u) {
        let four = history[i];
#for j in 0..4
        if (four[$j] == last && 4u * i + $ju < pos) {
            let at = 4u * i + $ju;
            let most = min(params.longest, at + 1u);
            var length = 1u;
            while (length < most && token(at - length) == token(pos - length)) { length++; }
            if (length >= params.shortest) { atomicMax(&best, (length << 28u) | at); }
        }
#endfor
    }
    workgroupBarrier();
    let found = atomicLoad(&best);
    if (lid == 0u) { state.accepted = 0u; }
    // A stopped state keeps its zero rows.
    if (state.stopped != 0u) {
        return;
    }
    var rows = 1u;
    if (found != 0u) {
        let at = found & PLACE;
        if (lid < params.most) { ids[lid + 1u] = token(at + 1u + lid % (pos - at)); }
        // No more rows than the token budget, which also keeps them inside the cache.
        rows = min(params.most + 1u, state.budget);
    }
    if (lid == 0u) { state.rows = rows; }
}
