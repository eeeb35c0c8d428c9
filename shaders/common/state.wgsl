// Step state. Decode steps advance it on the GPU, so the CPU writes nothing between tokens.
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
}
