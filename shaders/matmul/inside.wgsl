// Columns of x beyond K are zero, whatever the buffer holds there: four from column k on.
fn inside(v: vec4<f32>, k: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), v, vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(params.k));
}
