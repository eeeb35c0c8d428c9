// Softmax attention of many rows over the cache (FlashAttention, arXiv 2205.14135). A workgroup of 64 threads takes eight
// rows of one query head and walks over keys 64 at a time with an online softmax: a thread scores one key against the
// eight queries, then owns ITEMS groups of four output columns.
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    out_offset: u32,
    out_stride: u32,
    window: u32,
    scale: f32,
    softcap: f32,
}
#import common/state
#import common/kv
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k_cache: array<Kv4>;
@group(0) @binding(3) var<storage, read> v_cache: array<Kv4>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> state: State;
#ifdef SINKS
@group(0) @binding(7) var<storage, read> sinks: array<f32>;
#endif

const NONE = -1e30;

var<workgroup> queries: array<vec4<f32>, 8u * 8u * ITEMS>;
var<workgroup> scores: array<array<f32, 64>, 8>;
var<workgroup> row_max: array<f32, 8>;
var<workgroup> row_sum: array<f32, 8>;
var<workgroup> row_scale: array<f32, 8>;

// The keys [x, y) that a row sees.
fn visible(row: u32) -> vec2<u32> {
    let end = state.pos + row + 1u;
    if (params.window > 0u) {
        return vec2<u32>(end - min(end, params.window), end);
    }
    return vec2<u32>(0u, end);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let d4 = params.head_dim / 4u;
    let h = wid.z;
    let kv_head = h / (params.heads / params.kv_heads);
    let row0 = wid.y * 8u;
    let count = min(8u, state.rows - min(state.rows, row0));
    let range = vec2<u32>(visible(row0).x, visible(row0 + max(count, 1u) - 1u).y);
    for (var i = lid; i < 8u * d4; i += 64u) {
        let r = i / d4;
        var value = vec4<f32>(0.0);
        if (r < count) {
            value = q[((row0 + r) * params.heads + h) * d4 + i % d4];
        }
        queries[i] = value * params.scale;
    }
    if (lid < 8u) {
        row_max[lid] = NONE;
        row_sum[lid] = 0.0;
#ifdef SINKS
        row_max[lid] = sinks[h];
        row_sum[lid] = 1.0;
#endif
    }
    var acc: array<vec4<f32>, ITEMS>;
    for (var first = range.x; first < range.y; first += 64u) {
        workgroupBarrier();
        let key = first + lid;
        // Not left to the declaration: SwiftShader keeps what the round before left.
        var s: array<f32, 8>;
        for (var r = 0u; r < 8u; r++) { s[r] = 0.0; }
        if (key < range.y) {
            let at = (key * params.kv_heads + kv_head) * d4;
            for (var i = 0u; i < d4; i++) {
                let kv = kv_unpack(k_cache[at + i]);
                for (var r = 0u; r < 8u; r++) {
                    s[r] += dot(kv, queries[r * d4 + i]);
                }
            }
        }
        for (var r = 0u; r < 8u; r++) {
            var score = s[r];
            if (params.softcap > 0.0) { score = params.softcap * safe_tanh(score / params.softcap); }
            let seen = visible(row0 + min(r, max(count, 1u) - 1u));
            if (key < seen.x || key >= seen.y) { score = NONE; }
            scores[r][lid] = score;
        }
        workgroupBarrier();
        // Eight threads a row: the maximum, then the sum, over eight keys each.
        let mine = lid / 8u;
        var best = row_max[mine];
        for (var i = 0u; i < 64u; i++) { best = max(best, scores[mine][i]); }
        workgroupBarrier();
        for (var i = lid % 8u; i < 64u; i += 8u) {
            let score = scores[mine][i];
            var p = 0.0;
            if (score > 0.5 * NONE) { p = exp(max(score - best, -80.0)); }
            scores[mine][i] = p;
        }
        if (lid % 8u == 0u) {
            row_scale[mine] = exp(max(row_max[mine] - best, -80.0));
            row_max[mine] = best;
        }
        workgroupBarrier();
        if (lid % 8u == 0u) {
            var sum = 0.0;
            for (var i = 0u; i < 64u; i++) { sum += scores[mine][i]; }
            row_sum[mine] = row_sum[mine] * row_scale[mine] + sum;
        }
        for (var j = 0u; j < ITEMS; j++) {
            let item = lid + j * 64u;
            if (item < 8u * d4) {
                let r = item / d4;
                let at = (first * params.kv_heads + kv_head) * d4 + item % d4;
                var sum = acc[j] * row_scale[r];
                let keys = min(64u, range.y - first);
                for (var i = 0u; i < keys; i++) {
                    sum += scores[r][i] * kv_unpack(v_cache[at + i * params.kv_heads * d4]);
                }
                acc[j] = sum;
            }
        }
    }
    workgroupBarrier();
    for (var j = 0u; j < ITEMS; j++) {
        let item = lid + j * 64u;
        let r = item / d4;
        if (item < 8u * d4 && r < count) {
            let at = (params.out_offset + (row0 + r) * params.out_stride) / 4u + h * d4 + item % d4;
            out[at] = acc[j] / max(row_sum[r], 1e-30);
        }
    }
}
