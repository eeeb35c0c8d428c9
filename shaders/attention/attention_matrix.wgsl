// Softmax attention of many rows over the cache (FlashAttention, arXiv 2205.14135) on matrix units. A workgroup takes 16 rows
// of one query head for each of its TEAMS subgroups and walks over keys 32 at a time with an online softmax. The sums of a
// subgroup stay in its registers: they are scaled only when a row's largest score has grown by more than SLACK since they
// were, which after the first keys is seldom (FlashAttention-4's rule); until then weights of at most exp(SLACK) are added.
// ENDS: rows of a picture see all of it that no window hides.
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    out_offset: u32,
    out_stride: u32,
    window: u32,
    scale: f32,
    softcap: f32,
#ifdef RING
    ring: u32,
#endif
}
#import common/state
#import common/kv
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k_cache: array<Kv4>;
@group(0) @binding(3) var<storage, read> v_cache: array<Kv4>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> state: State;
#ifdef ENDS
@group(0) @binding(6) var<storage, read> ends: array<u32>;
#endif
#ifdef SINKS
@group(0) @binding(7) var<storage, read> sinks: array<f32>;
#endif
#import attention/ring
#import common/kv_scale

const NONE = -1e30;
const SLACK = 5.0;
const ROWS: u32 = TEAMS * 16u;
const KEYS: u32 = 32u;
const THREADS: u32 = TEAMS * LANES;
// Rows begin in other banks.
const PITCH: u32 = D + 8u;
const WEIGHTS: u32 = KEYS + 8u;
const SCORES: u32 = KEYS + 4u;
// Rows of q, keys or values, then rows of weights; and browsers want a pitch behind a matrix's last row.
const FIRST_KEY: u32 = ROWS * PITCH;
const FIRST_WEIGHT: u32 = FIRST_KEY + KEYS * PITCH;
var<workgroup> tile: array<Element, FIRST_WEIGHT + (ROWS + 1u) * WEIGHTS>;
// Scores, and sums that are on their way.
var<workgroup> parts: array<f32, (ROWS + 1u) * SCORES>;
#import common/matrix
// What the lanes of a row know each: the largest score, at the end the sum of the weights.
const SHARES: u32 = LANES / 16u;
const OWN: u32 = KEYS / SHARES;
var<workgroup> known: array<array<f32, ROWS>, SHARES>;
// What is left of each row's sums under its new maximum, at the end what divides them.
var<workgroup> kept: array<f32, ROWS>;
// Whether the sums are to be scaled; four, as what begins behind a single word is not aligned as matrices in memory must be.
var<workgroup> grown: array<u32, 4>;

// The keys [x, y) that a row sees. Neither falls from row to row.
fn visible(row: u32) -> vec2<u32> {
    var end = state.pos + row + 1u;
    var first = 0u;
    if (params.window > 0u) { first = end - min(end, params.window); }
#ifdef ENDS
    end = max(end, ends[row]);
#endif
    return vec2<u32>(first, end);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let d4 = params.head_dim / 4u;
    let head = wid.z;
    let kv_head = head / (params.heads / params.kv_heads);
    // The last rows see the most keys: they come first.
    let row0 = (groups.y - 1u - wid.y) * ROWS;
    let last_row = min(row0 + ROWS, state.rows) - 1u;
    let range = vec2<u32>(visible(row0).x, visible(last_row).y);
    let team = lid / LANES;
    let mine = lid % LANES;
#ifdef SPELLED
    lane = mine;
#endif
    // Its subgroup's rows, in `tile` and in `parts`.
    let q_at = team * 16u * PITCH;
    let weights_at = FIRST_WEIGHT + team * 16u * WEIGHTS;
    let scores_at = team * 16u * SCORES;
    // What a thread weighs: OWN keys of a row.
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
#for j in 0..D/SIDE
#for i in 0..16/SIDE
    var sum$i_$j = Sum();
#endfor
#endfor
    if (lid == 0u) { grown[0] = 0u; }

    // Columns beyond the head's are zeros.
    for (var i = lid; i < ROWS * D / 4u; i += THREADS) {
        let row = i / (D / 4u);
        let column = i % (D / 4u);
        var v = q[(min(row0 + row, last_row) * params.heads + head) * d4 + min(column, d4 - 1u)] * params.scale;
        if (column >= d4) { v = vec4<f32>(0.0); }
        let e = element4(v);
        let to = row * PITCH + column * 4u;
#for e in 0..4
        tile[to + $eu] = e[$e];
#endfor
    }
#for p in 0..D*8/TEAMS/LANES
    let key$p = ($pu * THREADS + lid) / (D / 4u);
    let column$p = ($pu * THREADS + lid) % (D / 4u);
    let within$p = column$p < d4;
    let to$p = FIRST_KEY + key$p * PITCH + column$p * 4u;
    let k_at$p = kv_at(place(min(range.x + key$p, range.y - 1u)) * params.kv_heads + kv_head, d4);
    var k_next$p = k_cache[k_at$p + min(column$p, d4 - 1u)];
    var k_most$p = k_most(k_at$p);
#endfor
    for (var first = range.x; first < range.y; first += KEYS) {
        workgroupBarrier();
#for p in 0..D*8/TEAMS/LANES
        {
            var v = kv_read(k_next$p, k_most$p);
            if (!within$p) { v = vec4<f32>(0.0); }
            let e = element4(v);
#for e in 0..4
            tile[to$p + $eu] = e[$e];
#endfor
        }
        let v_at$p = kv_at(place(min(first + key$p, range.y - 1u)) * params.kv_heads + kv_head, d4);
        let v_next$p = v_cache[v_at$p + min(column$p, d4 - 1u)];
        let v_most$p = v_most(v_at$p);
#endfor
        workgroupBarrier();
        {
#for j in 0..32/SIDE
#for i in 0..16/SIDE
            var score$i_$j = Sum();
#endfor
#endfor
#for u in 0..D/SIDE
#for i in 0..16/SIDE
            let a$u_$i = load_left(q_at + $iu * SIDE * PITCH + $uu * SIDE, PITCH);
#endfor
#for j in 0..32/SIDE
            let b$u_$j = load_turned(FIRST_KEY + $ju * SIDE * PITCH + $uu * SIDE, PITCH);
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
        var p$i = parts[own * SCORES + own_key + $iu];
#ifdef SOFTCAP
        p$i = params.softcap * safe_tanh(p$i / params.softcap);
#endif
        if (first + own_key + $iu < seen.x || first + own_key + $iu >= seen.y) { p$i = NONE; }
        best = max(best, p$i);
#endfor
        known[share][own] = best;
        if (best > top + SLACK) { grown[0] = 1u; }
        // The values take the keys' place, which nobody reads any more.
#for p in 0..D*8/TEAMS/LANES
        {
            var v = kv_read(v_next$p, v_most$p);
            if (!within$p) { v = vec4<f32>(0.0); }
            let e = element4(v);
#for e in 0..4
            tile[to$p + $eu] = e[$e];
#endfor
        }
        let k_at_next$p = kv_at(place(min(first + KEYS + key$p, range.y - 1u)) * params.kv_heads + kv_head, d4);
        k_next$p = k_cache[k_at_next$p + min(column$p, d4 - 1u)];
        k_most$p = k_most(k_at_next$p);
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
            tile[FIRST_WEIGHT + own * WEIGHTS + own_key + $iu] = Element(weight);
        }
#endfor
        // What is added to nothing needs no scale.
        if (scaled && first > range.x) {
#for j in 0..D/SIDE
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
        let w$u_$i = load_left(weights_at + $iu * SIDE * WEIGHTS + $uu * SIDE, WEIGHTS);
#endfor
#for j in 0..D/SIDE
        let v$u_$j = load_right(FIRST_KEY + $uu * SIDE * PITCH + $ju * SIDE, PITCH);
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
#for j in 0..D/SIDE
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
            out[at] = parts[row * SCORES + e % SIDE] * kept[row];
        }
    }
#endfor
}
