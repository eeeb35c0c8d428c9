// Starts a round of a draft model behind the target's last token. The first step runs two rows, the last two tokens: the
// draft model has not run the first of them if the target accepted all of its proposals.
// An MTP head runs the tokens that the target has accepted since the last round, whose hidden states are known now. Its
// rows are one position before their tokens.
struct Params {
    ring: u32,
    vocab: u32,
    is_head: u32,
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
    var rows = 2u;
    if (params.is_head != 0u) {
        // Its step and budget tell where the last round began.
        let accepted = state.step - draft.step + (0xffffffffu - draft.budget);
        rows = min(clamp(accepted, 1u, 8u), state.pos);
    }
    draft.pos = state.pos + 1u - params.is_head - rows;
    draft.rows = rows * (1u - state.stopped);
    // The same random numbers as the target's.
    draft.step = state.step;
    draft.stopped = state.stopped;
    draft.budget = 0xffffffffu;
    for (var i = 0u; i < rows; i++) {
        ids[i] = min(tokens[(state.step + params.ring - rows + i) % params.ring], params.vocab - 1u);
    }
}
