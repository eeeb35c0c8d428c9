// Prefill attention over the cache, or over packed sequences (FlashAttention, arXiv 2205.14135).
// A workgroup of 128 threads takes 32 rows of one query head and iterates over 64 keys at a time with an online
// softmax. Tiles are as in GEMM: a thread computes 4 rows by 4 keys of the scores, then 4 rows by 4 columns of each
// SLAB of 64 output columns. ENDS: attention within an image is bidirectional, inside the window.
#import attention/prefill
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

// 16 columns at a time: [column][four of 64 keys], then [two columns][four of 32 queries]. Groups of four are permuted
// per four columns to avoid bank conflicts. Later, values of some keys: [key][slab][four columns].
var<workgroup> tile: array<array<vec4<f32>, 16>, 24>;
// [key][four rows]; groups of four are permuted per four keys.
var<workgroup> scores: array<array<vec4<f32>, 8>, 64>;
// Partial row statistics of four threads: the maximum score, finally the sum of the weights.
var<workgroup> known: array<array<f32, 32>, 4>;
// Rescale factor of each row's sums under its new maximum.
var<workgroup> kept: array<vec4<f32>, 8>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let d4 = params.head_dim / 4u;
    let head = wid.z;
    let kv_head = head / (params.heads / params.kv_heads);
    // The last rows see the most keys, so they run first.
    let row0 = (groups.y - 1u - wid.y) * 32u;
    let last_row = min(row0 + 32u, state.rows) - 1u;
    let range = vec2<u32>(visible(row0).x, visible(last_row).y);
    start_keys(range.x);

    // Loads per thread: four columns of a query and of two keys, then four columns of some values.
    let mine = lid / 4u;
    let part = lid % 4u;
    let swap = part * 2u;
    let q_at = query_at(min(row0 + mine, last_row), head, d4);
#for p in 0..2
    let v_key$p = ($pu * 128u + lid) / (16u * SLABS);
    let v_col$p = ($pu * 128u + lid) % (16u * SLABS);
#endfor
    // Outputs per thread: four keys or columns, four rows.
    let kg = lid % 16u;
    let rg = lid / 16u;
    // Softmax per thread: 16 keys of a row.
    let own = lid % 32u;
    let key0 = lid / 32u * 16u;
    let seen = visible(min(row0 + own, last_row));
    var top = NONE;
    var sum = 0.0;
#ifdef SINKS
    top = sinks[head];
    if (key0 == 0u) { sum = 1.0; }
#endif
#for r in 0..4
#for s in 0..SLABS
    var acc$r_$s: vec4<f32>;
#endfor
#endfor

    var q_next = q[q_at + min(part, d4 - 1u)];
#for p in 0..2
    let k_first$p = key_at(min(range.x + $pu * 32u + mine, range.y - 1u), kv_head, d4);
    var k_next$p = k_cache[k_first$p + min(part, d4 - 1u)];
    var k_most$p = k_most(k_first$p);
#endfor
    for (var first = range.x; first < range.y; first += 64u) {
        // Explicit zeros: SwiftShader keeps values of the previous iteration.
#for r in 0..4
        var s$r = vec4<f32>(0.0);
#endfor
        for (var c4 = 0u; c4 < d4; c4 += 4u) {
            let within = c4 + part < d4;
            workgroupBarrier();
            var query = q_next * params.scale;
            if (!within) { query = vec4<f32>(0.0); }
#for e in 0..4
            tile[16u + part * 2u + $eu / 2u][$eu % 2u * 8u + ((mine / 4u) ^ swap)][mine % 4u] = query[$e];
#endfor
#for p in 0..2
            var key$p = kv_read(k_next$p, k_most$p);
            if (!within) { key$p = vec4<f32>(0.0); }
#for e in 0..4
            tile[part * 4u + $eu][($pu * 8u + mine / 4u) ^ swap][mine % 4u] = key$p[$e];
#endfor
#endfor
            workgroupBarrier();
            // The next columns, or the first columns of the next keys.
            var column = c4 + 4u;
            var next = first;
            if (column >= d4) {
                column = 0u;
                next += 64u;
            }
            column = min(column + part, d4 - 1u);
            q_next = q[q_at + column];
#for p in 0..2
            let k_at$p = key_at(min(next + $pu * 32u + mine, range.y - 1u), kv_head, d4);
            k_next$p = k_cache[k_at$p + column];
            k_most$p = k_most(k_at$p);
#endfor
#for u in 0..16
            {
                let k = tile[$u][kg ^ ($uu / 4u * 2u)];
                let rows = tile[16 + $u / 2][$uu % 2u * 8u + (rg ^ ($uu / 4u * 2u))];
#for r in 0..4
                s$r = fma(vec4<f32>(rows[$r]), k, s$r);
#endfor
            }
#endfor
        }
        // Loads of the first values overlap the softmax.
#for p in 0..2
        let v_first$p = value_at(min(first + v_key$p, range.y - 1u), kv_head, d4);
        var v_next$p = v_cache[v_first$p + min(v_col$p, d4 - 1u)];
        var v_most$p = v_most(v_first$p);
#endfor
#for e in 0..4
        scores[kg * 4u + $eu][rg ^ (kg % 8u)] = vec4<f32>(s0[$e], s1[$e], s2[$e], s3[$e]);
#endfor
        workgroupBarrier();
        var best = top;
#for i in 0..16
        let dots$i = scores[key0 + $iu][(own / 4u) ^ ((key0 + $iu) / 4u % 8u)][own % 4u];
        let p$i = masked(dots$i, row0 + own, first + key0 + $iu, seen, head);
        best = max(best, p$i);
#endfor
        known[lid / 32u][own] = best;
        workgroupBarrier();
#for i in 0..4
        best = max(best, known[$i][own]);
#endfor
        let keep = exp(max(top - best, -80.0));
        top = best;
        sum *= keep;
#for i in 0..16
        let weight$i = weight(p$i, best);
        sum += weight$i;
        scores[key0 + $iu][(own / 4u) ^ ((key0 + $iu) / 4u % 8u)][own % 4u] = weight$i;
#endfor
        if (key0 == 0u) { kept[own / 4u][own % 4u] = keep; }
        workgroupBarrier();
        let keeps = kept[rg];
#for s in 0..SLABS
#for r in 0..4
        acc$r_$s *= keeps[$r];
#endfor
#endfor
        for (var key = 0u; key < min(64u, range.y - first); key += 16u / SLABS) {
            workgroupBarrier();
#for p in 0..2
            tile[v_key$p * SLABS + v_col$p / 16u][v_col$p % 16u] = kv_read(v_next$p, v_most$p);
#endfor
            workgroupBarrier();
#for p in 0..2
            let v_at$p = value_at(min(first + key + 16u / SLABS + v_key$p, range.y - 1u), kv_head, d4);
            v_next$p = v_cache[v_at$p + min(v_col$p, d4 - 1u)];
            v_most$p = v_most(v_at$p);
#endfor
#for j in 0..16/SLABS
            {
                let weights = scores[key + $ju][rg ^ ((key + $ju) / 4u % 8u)];
#for s in 0..SLABS
                let v$s = tile[$ju * SLABS + $su][kg];
#for r in 0..4
                acc$r_$s = fma(vec4<f32>(weights[$r]), v$s, acc$r_$s);
#endfor
#endfor
            }
#endfor
        }
    }
    workgroupBarrier();
    known[lid / 32u][own] = sum;
    workgroupBarrier();
#for r in 0..4
    {
        let row = rg * 4u + $ru;
        let total = known[0][row] + known[1][row] + known[2][row] + known[3][row];
        let at = (params.out_offset + (row0 + row) * params.out_stride) / 4u + head * d4;
#for s in 0..SLABS
        if (row0 + row <= last_row && $su * 16u + kg < d4) { out[at + $su * 16u + kg] = acc$r_$s / max(total, 1e-30); }
#endfor
    }
#endfor
}
