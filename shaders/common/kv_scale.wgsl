// Scale of the head whose elements begin at `at`, in the caches of the including shader.
fn k_most(at: u32) -> f32 {
#ifdef KV_INT8
    return bitcast<f32>(k_cache[at - 1u]);
#else
    return 1.0;
#endif
}

fn v_most(at: u32) -> f32 {
#ifdef KV_INT8
    return bitcast<f32>(v_cache[at - 1u]);
#else
    return 1.0;
#endif
}
