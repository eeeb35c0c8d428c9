// Step state. Decode steps advance it on the GPU, so the CPU writes nothing between tokens.
#ifdef BATCH
// A row of a batched step: the next token of one sequence.
struct SequenceRow {
    // Position of the token.
    position: u32,
    // Slot of the sequence in the state pools.
    slot: u32,
    // Position in the RoPE tables.
    rope_position: u32,
    // Tokens sampled since the row was set.
    step: u32,
    // 1 after a stop token: later steps have no effect on the sequence.
    stopped: u32,
    // Tokens that may still be sampled.
    budget: u32,
    // 1 if launches of its own sample it.
    sampled_apart: u32,
    unused: u32,
}
#endif
struct State {
    // Position of the first row of this step.
    pos: u32,
    // Rows (tokens) of this step.
    rows: u32,
    // Tokens sampled since the state was set.
    step: u32,
    // 1 after a stop token: later steps have no effect.
    stopped: u32,
    // Tokens that may still be sampled.
    budget: u32,
#ifdef ACCEPTED
    // Rows of the last step with drafts that were accepted.
    accepted: u32,
#endif
#ifdef BATCH
    unused0: u32,
    unused1: u32,
    unused2: u32,
    sequences: array<SequenceRow>,
#endif
}
