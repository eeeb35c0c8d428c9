// Prefill attention on subgroup matrices, over the cache or over packed sequences (FlashAttention, arXiv 2205.14135).
// A workgroup takes 16 rows of one query head per subgroup (SUBGROUP_COUNT) and iterates over 32 keys at a time with an
// online softmax. Accumulators stay in registers. They are rescaled only if a row's maximum score has grown by more
// than SLACK (FlashAttention-4's rule), which is rare after the first keys. Until then, weights of at most exp(SLACK)
// are added.
// ENDS: attention within an image is bidirectional, inside the window. APART: keys and values have separate workgroup
// memory, so that the next keys are stored before a step ends; otherwise each waits until the others are read.
#import attention/prefill
#import common/f16_store
@group(0) @binding(4) var<storage, read_write> out: array<Kept>;

const SLACK = 5.0;
#import attention/attention_matrix_memory

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let d4 = params.head_dim / 4u;
    let head = wid.z;
    let kv_head = head / (params.heads / params.kv_heads);
    // The last rows see the most keys, so they run first.
    let row0 = (groups.y - 1u - wid.y) * ROWS;
    let last_row = min(row0 + ROWS, state.rows) - 1u;
    let range = vec2<u32>(visible(row0).x, visible(last_row).y);
    start_keys(range.x);
    let team = lid / LANES;
    let mine = lid % LANES;
#ifdef EMULATED
    lane = mine;
#endif
    // The subgroup's rows in `tile` and in `parts`.
    let slice = team * 16u / SIDE;
    let scores_at = team * 16u * SCORES;
    // Softmax per thread: OWN keys of a row.
    let own = lid / SHARES;
    let share = lid % SHARES;
    let own_key = share * OWN;
    let seen = visible(min(row0 + own, last_row));
    var top = NONE;
    var sum = 0.0;
#ifdef SINKS
    top = sinks[head];
    if (share == 0u) { sum = 1.0; }
#endif
#for j in 0..WIDTH/SIDE
#for i in 0..16/SIDE
    var sum$i_$j = Sum();
#endfor
#endfor
    if (lid == 0u) { grown[0] = 0u; }

    // Columns beyond the head's are zero.
    for (var i = lid; i < ROWS * WIDTH / 4u; i += THREADS) {
        let row = i / (WIDTH / 4u);
        let column = i % (WIDTH / 4u);
        var v = q[query_at(min(row0 + row, last_row), head, d4) + min(column, d4 - 1u)] * params.scale;
        if (column >= d4) { v = vec4<f32>(0.0); }
        let e = elements(v);
#for e in 0..4
        tile[FIRST_ROW + row / SIDE][row % SIDE * PITCH + column * 4u + $eu] = e[$e];
#endfor
    }
    workgroupBarrier();
#for u in 0..WIDTH/SIDE
#for i in 0..16/SIDE
    let a$u_$i = load_left$u(FIRST_ROW + slice + $iu);
#endfor
#endfor
#for p in 0..WIDTH*8/SUBGROUP_COUNT/LANES
    let key$p = ($pu * THREADS + lid) / (WIDTH / 4u);
    let column$p = ($pu * THREADS + lid) % (WIDTH / 4u);
    let within$p = column$p < d4;
    let to$p = key$p % SIDE * PITCH + column$p * 4u;
    let k_at$p = key_at(min(range.x + key$p, range.y - 1u), kv_head, d4);
    var k_next$p = k_cache[k_at$p + min(column$p, d4 - 1u)];
    var k_most$p = k_most(k_at$p);
#endfor
    for (var first = range.x; first < range.y; first += KEYS) {
        if (APART == 0u || first == range.x) {
            workgroupBarrier();
#for p in 0..WIDTH*8/SUBGROUP_COUNT/LANES
            {
                var v = kv_read(k_next$p, k_most$p);
                if (!within$p) { v = vec4<f32>(0.0); }
                let e = elements(v);
#for e in 0..4
                tile[key$p / SIDE][to$p + $eu] = e[$e];
#endfor
            }
#endfor
            workgroupBarrier();
        }
#for p in 0..WIDTH*8/SUBGROUP_COUNT/LANES
        let v_at$p = value_at(min(first + key$p, range.y - 1u), kv_head, d4);
        let v_next$p = v_cache[v_at$p + min(column$p, d4 - 1u)];
        let v_most$p = v_most(v_at$p);
#if APART == 1
        let k_at_next$p = key_at(min(first + KEYS + key$p, range.y - 1u), kv_head, d4);
        k_next$p = k_cache[k_at_next$p + min(column$p, d4 - 1u)];
        k_most$p = k_most(k_at_next$p);
#endif
#endfor
        {
#for j in 0..32/SIDE
#for i in 0..16/SIDE
            var score$i_$j = Sum();
#endfor
#endfor
#for u in 0..WIDTH/SIDE
#for j in 0..32/SIDE
            let b$u_$j = load_turned$u($ju);
#for i in 0..16/SIDE
            score$i_$j = multiply(a$u_$i, b$u_$j, score$i_$j);
#endfor
#endfor
#endfor
#for j in 0..32/SIDE
#for i in 0..16/SIDE
            store_sum(score$i_$j, scores_at + $iu * SIDE * SCORES + $ju * SIDE, SCORES);
#endfor
#endfor
        }
        workgroupBarrier();
        var best = NONE;
#for i in 0..512/LANES
        var p$i = scored(parts[own * SCORES + own_key + $iu], row0 + own, first + own_key + $iu, head);
        if (first + own_key + $iu < seen.x || first + own_key + $iu >= seen.y) { p$i = NONE; }
        best = max(best, p$i);
#endfor
        known[share][own] = best;
        if (best > top + SLACK) { grown[0] = 1u; }
        // These keys and the previous values are no longer read.
#for p in 0..WIDTH*8/SUBGROUP_COUNT/LANES
        {
            var v = kv_read(v_next$p, v_most$p);
            if (!within$p) { v = vec4<f32>(0.0); }
            let e = elements(v);
#for e in 0..4
            tile[FIRST_VALUE + key$p / SIDE][to$p + $eu] = e[$e];
#endfor
        }
#if APART == 1
        {
            var v = kv_read(k_next$p, k_most$p);
            if (!within$p) { v = vec4<f32>(0.0); }
            let e = elements(v);
#for e in 0..4
            tile[key$p / SIDE][to$p + $eu] = e[$e];
#endfor
        }
#else
        let k_at_next$p = key_at(min(first + KEYS + key$p, range.y - 1u), kv_head, d4);
        k_next$p = k_cache[k_at_next$p + min(column$p, d4 - 1u)];
        k_most$p = k_most(k_at_next$p);
#endif
#endfor
        let scaled = workgroupUniformLoad(&grown[0]) == 1u;
        if (scaled) {
            best = top;
#for s in 0..LANES/16
            best = max(best, known[$s][own]);
#endfor
            let keep = exp(max(top - best, -80.0));
            top = best;
            sum *= keep;
            if (share == 0u) { kept[own] = keep; }
            if (lid == 0u) { grown[0] = 0u; }
        }
#for i in 0..512/LANES
        {
            var weight = exp(max(p$i - top, -80.0));
            if (!(p$i > 0.5 * NONE)) { weight = 0.0; }
            sum += weight;
            tile[FIRST_WEIGHT + own / SIDE][own % SIDE * PITCH + own_key + $iu] = Element(weight);
        }
#endfor
        // Zero accumulators need no rescaling.
        if (scaled && first > range.x) {
#for j in 0..WIDTH/SIDE
            workgroupBarrier();
#for i in 0..16/SIDE
            store_sum(sum$i_$j, scores_at + $iu * SIDE * SCORES, SCORES);
#endfor
            workgroupBarrier();
            for (var e = mine; e < 16u * SIDE; e += LANES) {
                parts[scores_at + e / SIDE * SCORES + e % SIDE] *= kept[team * 16u + e / SIDE];
            }
            workgroupBarrier();
#for i in 0..16/SIDE
            sum$i_$j = load_sum(scores_at + $iu * SIDE * SCORES, SCORES);
#endfor
#endfor
        }
        workgroupBarrier();
#for u in 0..32/SIDE
#for i in 0..16/SIDE
        let w$u_$i = load_left$u(FIRST_WEIGHT + slice + $iu);
#endfor
#for j in 0..WIDTH/SIDE
        let v$u_$j = load_right$j(FIRST_VALUE + $uu);
#for i in 0..16/SIDE
        sum$i_$j = multiply(w$u_$i, v$u_$j, sum$i_$j);
#endfor
#endfor
#endfor
    }
    known[share][own] = sum;
    workgroupBarrier();
    if (share == 0u) {
        var total = 0.0;
#for s in 0..LANES/16
        total += known[$s][own];
#endfor
        kept[own] = 1.0 / max(total, 1e-30);
    }
#for j in 0..WIDTH/SIDE
    workgroupBarrier();
#for i in 0..16/SIDE
    store_sum(sum$i_$j, scores_at + $iu * SIDE * SCORES, SCORES);
#endfor
    workgroupBarrier();
    for (var e = mine; e < 16u * SIDE; e += LANES) {
        let row = team * 16u + e / SIDE;
        let column = $ju * SIDE + e % SIDE;
        if (row0 + row <= last_row && column < params.head_dim) {
            let at = params.out_offset + (row0 + row) * params.out_stride + head * params.head_dim + column;
            out[at] = as_kept(parts[row * SCORES + e % SIDE] * kept[row]);
        }
    }
#endfor
}
