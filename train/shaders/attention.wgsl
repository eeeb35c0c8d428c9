// Scaled dot-product attention of packed sequences, for one row and head a workgroup. Stores the logarithm of each sum of
// exponentials in `stats`, from which the gradients recompute the probabilities. With SINKS a logit per head joins the softmax.
struct Params {
#import train/attention_params
    out_offset: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> stats: array<vec2<f32>>;
#ifdef SINKS
@group(0) @binding(7) var<storage, read> sinks: array<f32>;
#endif
#import train/attention_mask
#import train/total

var<workgroup> query: array<f32, HEAD>;
var<workgroup> scores: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let head = wid.x;
    let row = wid.y;
    let size = params.head_dim;
    let shared_head = head / (params.heads / params.kv_heads) * size;
    let query_at = params.q_offset + row * params.q_stride + head * size;
    for (var d = lid; d < size; d += 64u) { query[d] = q[query_at + d]; }
    workgroupBarrier();
    let first = first_key(row);
    let end = end_key(row);
    let keys = params.k_offset + shared_head;
    let values = params.v_offset + shared_head;
    const LOWEST = -3.0e38;
    var most = LOWEST;
    var sum = 0.0;
#ifdef SINKS
    most = sinks[head];
    sum = 1.0;
#endif
#for i in 0..HEAD/64
    var acc$i = 0.0;
#endfor
    for (var base = first; base < end; base += 64u) {
        let key = base + lid;
        var score = LOWEST;
        if (key < end) {
            let at = keys + key * params.k_stride;
            var product = 0.0;
            for (var d = 0u; d < size; d++) { product += query[d] * k[at + d]; }
            score = score_of(product);
        }
        let next = max(most, highest(lid, score));
        let shrink = exp(max(most - next, -80.0));
        var weight = 0.0;
        if (key < end) { weight = exp(max(score - next, -80.0)); }
        sum = sum * shrink + total(lid, weight);
        scores[lid] = weight;
        workgroupBarrier();
        let count = min(64u, end - base);
#for i in 0..HEAD/64
        acc$i *= shrink;
        if (lid + $iu * 64u < size) {
            for (var j = 0u; j < count; j++) {
                acc$i += scores[j] * v[values + (base + j) * params.v_stride + lid + $iu * 64u];
            }
        }
#endfor
        most = next;
    }
    let to = params.out_offset + row * params.out_stride + head * size;
#for i in 0..HEAD/64
    if (lid + $iu * 64u < size) { out[to + lid + $iu * 64u] = acc$i / sum; }
#endfor
    if (lid == 0u) { stats[row * params.heads + head] = vec2<f32>(most + log(sum), 0.0); }
}
