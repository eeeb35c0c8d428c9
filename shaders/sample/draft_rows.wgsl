// Takes a draft model's proposals as the target's rows after its last token.
struct Params {
    ring: u32,
    vocab: u32,
    most: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
// The draft model's state and ring of sampled tokens.
@group(0) @binding(1) var<storage, read> draft: State;
@group(0) @binding(2) var<storage, read> proposed: array<u32>;
// Those of the target.
@group(0) @binding(3) var<storage, read_write> state: State;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;

@compute @workgroup_size(1)
fn main() {
    state.accepted = 0u;
    // A stopped state keeps its zero rows.
    if (state.stopped != 0u) {
        return;
    }
    // No more rows than the token budget, which also keeps them inside the cache.
    let most = min(min(draft.step - state.step, params.most), state.budget - 1u);
    var count = 0u;
    while (count < most) {
        let token = proposed[(state.step + count) % params.ring];
        if (token >= params.vocab) {
            break;
        }
        count++;
        ids[count] = token;
    }
    state.rows = 1u + count;
}
