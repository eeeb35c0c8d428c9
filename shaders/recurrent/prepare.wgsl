// Computes the interactions within a chunk of 32 rows, before recurrent/scan runs over the chunks: scores of queries
// against the chunk's own keys. With DELTA, also the keys and values that rows write after seeing earlier rows: (I +
// tril(beta K Kᵀ · decay))⁻¹ of beta exp(decay) K and of beta V (WY form of arXiv 2412.06464), by forward substitution,
// one column per thread.
// A workgroup of 128 threads takes a head of a chunk. Per row, `parts` gets W [dk] and U [dv] (DELTA only), 32 scores,
// and four factors: of the query and of the key against the memory, of the value, and the chunk's total decay. Missing
// rows of the last chunk have zero weight.
struct Params {
    heads: u32,
    key_heads: u32,
    per_key: u32,
    dk: u32,
    dv: u32,
    q_offset: u32,
    k_offset: u32,
    v_offset: u32,
    x_stride: u32,
    a_offset: u32,
    a_stride: u32,
    b_offset: u32,
    b_stride: u32,
    raw: u32,
    dt_scale: f32,
    dt_low: f32,
    dt_high: f32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> gains: array<f32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;
@group(0) @binding(6) var<storage, read> state: State;
#ifdef DELTA
@group(0) @binding(7) var<storage, read> b: array<f32>;
#endif
#import recurrent/rates

// 16 columns at a time: [column][four of 32 rows], keys, then queries.
var<workgroup> tile: array<vec4<f32>, 256>;
#ifdef DELTA
// Coefficients that each row subtracts for earlier rows: [row][four of 32 rows].
var<workgroup> lower: array<vec4<f32>, 256>;
// Sums of squares of queries and keys, four partial sums per row.
var<workgroup> squares: array<f32, 256>;
#endif
// Per row: log of the decay, factor of its values; decay since the chunk start; factors of query and key.
var<workgroup> rate: array<vec2<f32>, 32>;
var<workgroup> since: array<f32, 32>;
var<workgroup> factor: array<vec2<f32>, 32>;

fn four(at: u32) -> vec4<f32> {
    return vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let head = wid.x;
    let row0 = wid.y * 32u;
    let rows = state.rows;
    if (row0 >= rows) {
        return;
    }
    let dk = params.dk;
    let key_head = head / params.per_key % params.key_heads;
    // Loads per thread: a quarter of a row.
    let own = lid / 4u;
    let quarter = lid % 4u;
    let start = min(row0 + own, rows - 1u) * params.x_stride + key_head * dk;
    if (lid < 32u) {
        var mine = vec2<f32>(0.0);
        if (row0 + lid < rows) { mine = rates(row0 + lid, head); }
        rate[lid] = mine;
    }
#ifdef DELTA
    var q_sum = 0.0;
    var k_sum = 0.0;
    for (var i = quarter * 4u; i < dk; i += 16u) {
        let q = four(params.q_offset + start + i);
        let k = four(params.k_offset + start + i);
        q_sum += dot(q, q);
        k_sum += dot(k, k);
    }
    squares[quarter * 32u + own] = q_sum;
    squares[128u + quarter * 32u + own] = k_sum;
#endif
    workgroupBarrier();
    if (lid < 32u) {
        var sum = 0.0;
        for (var i = 0u; i <= lid; i++) { sum += rate[i].x; }
        since[lid] = sum;
        var factors = vec2<f32>(0.0);
        if (row0 + lid < rows) {
            factors = vec2<f32>(1.0);
#ifdef DELTA
            var q = 1e-6;
            var k = 1e-6;
            for (var i = 0u; i < 4u; i++) {
                q += squares[i * 32u + lid];
                k += squares[128u + i * 32u + lid];
            }
            factors = vec2<f32>(inverseSqrt(q) * inverseSqrt(f32(dk)), inverseSqrt(k));
#endif
        }
        factor[lid] = factors;
    }
    // Outputs per thread: four rows by two columns of Q Kᵀ and of K Kᵀ.
    let rg = lid / 16u;
    let cg = lid % 16u;
#for c in 0..2
    var qk$c = vec4<f32>(0.0);
    var kk$c = vec4<f32>(0.0);
#endfor
    for (var first = 0u; first < dk; first += 16u) {
        let i = first + quarter * 4u;
        var q = vec4<f32>(0.0);
        var k = vec4<f32>(0.0);
        if (i < dk) {
            q = four(params.q_offset + start + i);
            k = four(params.k_offset + start + i);
        }
        workgroupBarrier();
#for e in 0..4
        tile[(quarter * 4u + $eu) * 8u + own / 4u][own % 4u] = k[$e];
        tile[128u + (quarter * 4u + $eu) * 8u + own / 4u][own % 4u] = q[$e];
#endfor
        workgroupBarrier();
        for (var j = 0u; j < 16u; j++) {
            let keys = tile[j * 8u + rg];
            let queries = tile[128u + j * 8u + rg];
#for c in 0..2
            let key$c = tile[j * 8u + cg / 2u][cg % 2u * 2u + $cu];
            qk$c += queries * key$c;
            kk$c += keys * key$c;
#endfor
        }
    }
    let dv = params.dv;
#ifdef DELTA
    let width = dk + dv + 36u;
    let scores = dk + dv;
#else
    let width = 36u;
    let scores = 0u;
#endif
    let base = (wid.y * params.heads + head) * 32u * width;
#for c in 0..2
#for e in 0..4
    {
        let i = rg * 4u + $eu;
        let j = cg * 2u + $cu;
        var score = 0.0;
        var taken = 0.0;
        if (j <= i) {
            let decay = exp(max(since[i] - since[j], -80.0)) * factor[j].y;
            score = qk$c[$e] * factor[i].x * decay;
            if (j < i) { taken = kk$c[$e] * factor[i].y * decay * rate[i].y; }
        }
        parts[base + i * width + scores + j] = score;
#ifdef DELTA
        lower[i * 8u + j / 4u][j % 4u] = taken;
#endif
    }
#endfor
#endfor
    if (lid < 32u) {
        let at = base + lid * width + scores + 32u;
        parts[at] = factor[lid].x * exp(max(since[lid], -80.0));
        parts[at + 1u] = factor[lid].y * exp(max(since[31] - since[lid], -80.0));
        parts[at + 2u] = rate[lid].y;
        parts[at + 3u] = exp(max(since[31], -80.0));
    }
#ifdef DELTA
    workgroupBarrier();
    for (var column = lid; column < dk + dv; column += 128u) {
        let is_key = column < dk;
        var source = params.v_offset + head * dv + column - dk;
        if (is_key) { source = params.k_offset + key_head * dk + column; }
#for p in 0..8
        var y$p = vec4<f32>(0.0);
#for r in 0..4
        {
            let i = $pu * 4u + $ru;
            var value = x[source + min(row0 + i, rows - 1u) * params.x_stride] * rate[i].y;
            if (is_key) { value *= factor[i].y * exp(max(since[i], -80.0)); }
#for q in 0..$p
            value -= dot(lower[i * 8u + $qu], y$q);
#endfor
            value -= dot(lower[i * 8u + $pu], y$p);
            y$p[$r] = value;
            parts[base + i * width + column] = value;
        }
#endfor
#endfor
    }
#endif
}
