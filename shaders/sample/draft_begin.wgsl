// Starts a round of a draft model behind the target's last token. The first step runs two rows, the last two tokens: the
// draft model has not run the first of them if the target accepted all of its proposals.
struct Params {
    ring: u32,
    vocab: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
// The target's state and ring of sampled tokens.
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> tokens: array<u32>;
// Those of the draft model.
@group(0) @binding(3) var<storage, read_write> draft: State;
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;

@compute @workgroup_size(1)
fn main() {
    draft.pos = state.pos - 1u;
    draft.rows = 2u * (1u - state.stopped);
    // The same random numbers as the target's.
    draft.step = state.step;
    draft.stopped = state.stopped;
    draft.budget = 0xffffffffu;
    for (var i = 0u; i < 2u; i++) {
        ids[i] = min(tokens[(state.step + params.ring - 2u + i) % params.ring], params.vocab - 1u);
    }
}
