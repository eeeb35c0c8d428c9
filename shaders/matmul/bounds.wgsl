// Zeroes columns of x beyond K, whatever the buffer holds: four from column k on.
fn inside(v: vec4<f32>, k: u32) -> vec4<f32> {
    var kept = v;
    if (k >= params.k) { kept.x = 0.0; }
    if (k + 1u >= params.k) { kept.y = 0.0; }
    if (k + 2u >= params.k) { kept.z = 0.0; }
    if (k + 3u >= params.k) { kept.w = 0.0; }
    return kept;
}
