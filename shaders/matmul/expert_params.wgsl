// `Params` fields of shaders/matmul/experts.wgsl and of the epilogue.
#ifdef EXPERTS
    each: u32,
    pick_offset: u32,
    pick_stride: u32,
    first_expert: u32,
    expert_count: u32,
    expert_rows: u32,
    row_step: u32,
    span: u32,
    later: u32,
    alpha: f32,
    limit: f32,
#endif
