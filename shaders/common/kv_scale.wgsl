// What elements of a head that begin at `at` are shares of, in the caches that the including shader has.
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
