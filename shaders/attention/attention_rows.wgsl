// Prefill attention without a GPU, over the cache or packed sequences. A thread takes ROWS rows of one query head, so
// that the threads of a workgroup, which are the lanes of a vector, read the same keys and values and never wait for
// each other. It iterates over the keys with an online softmax. WIDE: groups of four columns of a head, rounded up.
// ENDS: attention within an image is bidirectional, inside the window.
#import attention/prefill
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let d4 = params.head_dim / 4u;
    let head = wid.z;
    let kv_head = head / (params.heads / params.kv_heads);
    let start = wid.y * THREADS * ROWS;
    let last_row = min(start + THREADS * ROWS, state.rows) - 1u;
    let range = vec2<u32>(visible(start).x, visible(last_row).y);
    start_keys(range.x);
#for r in 0..ROWS
    let row$r = min(start + $ru * THREADS + lid, last_row);
    let seen$r = visible(row$r);
    let q_at$r = query_at(row$r, head, d4);
#for c in 0..WIDE
    var q$r_$c = q[q_at$r + min($cu, d4 - 1u)] * params.scale;
    if ($cu >= d4) { q$r_$c = vec4<f32>(0.0); }
    var acc$r_$c = vec4<f32>(0.0);
#endfor
    var top$r = NONE;
    var sum$r = 0.0;
#ifdef SINKS
    top$r = sinks[head];
    sum$r = 1.0;
#endif
#endfor
    for (var key = range.x; key < range.y; key++) {
        let k_at = key_at(key, kv_head, d4);
        let k_most_here = k_most(k_at);
#for r in 0..ROWS
        var dots$r = vec4<f32>(0.0);
#endfor
#for c in 0..WIDE
        let k$c = kv_read(k_cache[k_at + min($cu, d4 - 1u)], k_most_here);
#for r in 0..ROWS
        dots$r = fma(q$r_$c, k$c, dots$r);
#endfor
#endfor
#for r in 0..ROWS
        let score$r = masked(dots$r.x + dots$r.y + dots$r.z + dots$r.w, row$r, key, seen$r, head);
        let best$r = max(top$r, score$r);
        let keep$r = exp(max(top$r - best$r, -80.0));
        top$r = best$r;
        let p$r = weight(score$r, best$r);
        sum$r = sum$r * keep$r + p$r;
#endfor
        let v_at = value_at(key, kv_head, d4);
        let v_most_here = v_most(v_at);
#for c in 0..WIDE
        let v$c = kv_read(v_cache[v_at + min($cu, d4 - 1u)], v_most_here);
#for r in 0..ROWS
        acc$r_$c = fma(vec4<f32>(p$r), v$c, acc$r_$c * keep$r);
#endfor
#endfor
    }
#for r in 0..ROWS
    if (start + $ru * THREADS + lid <= last_row) {
        let at = (params.out_offset + row$r * params.out_stride) / 4u + head * d4;
#for c in 0..WIDE
        if ($cu < d4) { out[at + $cu] = acc$r_$c / max(sum$r, 1e-30); }
#endfor
    }
#endfor
}
