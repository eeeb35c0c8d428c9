// Which row of W makes an output. EXPERTS: experts lie one under another in W, expert_rows each, and these planes hold
// expert_count of them from first_expert on; a workgroup along z makes one pick of a row of x, or with MIXED a row's sum
// of all its picks, each times its weight. The picks of a row lie `span` elements apart in `out`, with MIXED in x.
#ifdef EXPERTS
// Numbers of a row's experts, then their weights (shaders/experts/route.wgsl).
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

// Whether these planes hold an expert: a smaller number than the first wraps round.
fn holds(expert: u32) -> bool {
    return expert - params.first_expert < params.expert_count;
}

// Makes ready for one pick; false where another launch has its expert.
fn take(row: u32, pick: u32) -> bool {
    let expert = picked(row, pick);
    expert_row = (expert - params.first_expert) * params.expert_rows;
    bias_row = expert * params.expert_rows;
    out_first = pick * params.span;
    return holds(expert);
}

#ifdef MIXED
// The weight of a pick; nothing where another launch has its expert.
fn share_of(row: u32, pick: u32) -> f32 {
    if (!holds(picked(row, pick))) {
        return 0.0;
    }
    return picks[params.pick_offset + row * params.pick_stride + params.each + pick];
}

// The first row of W of its expert.
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
