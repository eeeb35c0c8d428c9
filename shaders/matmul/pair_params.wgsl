// `Params` fields of a product over row-expert pairs.
    // Selected experts per row of x, and the start of the pairs' order.
    each: u32,
    order_at: u32,
    first_expert: u32,
    expert_count: u32,
    expert_rows: u32,
    row_step: u32,
