// Selects the weight row of an output. EXPERTS: experts are stacked in W, expert_rows each; these planes hold
// expert_count of them from first_expert on. A workgroup along z computes one selected expert of a row of x, or with
// SUM_EXPERTS the weighted sum of all of them. A row's selected experts are `span` elements apart in `out`, with
// SUM_EXPERTS in x.
#ifdef EXPERTS
// Expert ids of a row, then their weights (shaders/experts/route.wgsl).
@group(0) @binding(9) var<storage, read> picks: array<f32>;
var<private> expert_row: u32;
var<private> bias_row: u32;
var<private> out_first: u32;

fn output_row(n: u32) -> u32 {
    return expert_row + n * params.row_step;
}

fn picked(row: u32, pick: u32) -> u32 {
    return u32(max(picks[params.pick_offset + row * params.pick_stride + pick], 0.0));
}

// Whether these planes hold an expert; smaller ids than first_expert wrap around.
fn holds(expert: u32) -> bool {
    return expert - params.first_expert < params.expert_count;
}

// Loads one selected expert; false if another launch has it.
fn take(row: u32, pick: u32) -> bool {
    let expert = picked(row, pick);
    expert_row = (expert - params.first_expert) * params.expert_rows;
    bias_row = expert * params.expert_rows;
    out_first = pick * params.span;
    return holds(expert);
}

#ifdef SUM_EXPERTS
// Weight of a selected expert; 0 if another launch has it.
fn share_of(row: u32, pick: u32) -> f32 {
    if (!holds(picked(row, pick))) {
        return 0.0;
    }
    return picks[params.pick_offset + row * params.pick_stride + params.each + pick];
}

// First weight row of the selected expert.
fn shift_of(row: u32, pick: u32) -> u32 {
    let expert = picked(row, pick);
    if (!holds(expert)) {
        return 0u;
    }
    return (expert - params.first_expert) * params.expert_rows;
}
#endif
#else
fn output_row(n: u32) -> u32 {
    return params.row0 + n;
}
#endif
