// Gradient of attention's queries, for one row and head a workgroup. Probabilities are recomputed from `stats`: the
// logarithm of the sum of exponentials, and the dot product of output and gradient. ADD adds to out.
struct Params {
#import train/attention_params
    dy_offset: u32,
    dy_stride: u32,
    out_offset: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;
@group(0) @binding(5) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
#import train/attention_mask

var<workgroup> query: array<f32, HEAD>;
var<workgroup> upper: array<f32, HEAD>;
var<workgroup> slopes: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let head = wid.x;
    let row = wid.y;
    let size = params.head_dim;
    let shared_head = head / (params.heads / params.kv_heads) * size;
    let query_at = params.q_offset + row * params.q_stride + head * size;
    let upper_at = params.dy_offset + row * params.dy_stride + head * size;
    for (var d = lid; d < size; d += 64u) {
        query[d] = q[query_at + d];
        upper[d] = dy[upper_at + d];
    }
    let own = stats[row * params.heads + head];
    let end = end_key(row);
    let keys = params.k_offset + shared_head;
    let values = params.v_offset + shared_head;
#for i in 0..HEAD/64
    var acc$i = 0.0;
#endfor
    for (var base = first_key(row); base < end; base += 64u) {
        workgroupBarrier();
        let key = base + lid;
        var slope = 0.0;
        if (key < end) {
            let key_at = keys + key * params.k_stride;
            let value_at = values + key * params.v_stride;
            var product = 0.0;
            var above = 0.0;
            for (var d = 0u; d < size; d++) {
                product += query[d] * k[key_at + d];
                above += upper[d] * v[value_at + d];
            }
            let score = score_of(product);
            slope = exp(max(score - own.x, -80.0)) * (above - own.y) * score_slope(score);
        }
        slopes[lid] = slope;
        workgroupBarrier();
        let count = min(64u, end - base);
#for i in 0..HEAD/64
        if (lid + $iu * 64u < size) {
            for (var j = 0u; j < count; j++) {
                acc$i += slopes[j] * k[keys + (base + j) * params.k_stride + lid + $iu * 64u];
            }
        }
#endfor
    }
    let to = params.out_offset + row * params.out_stride + head * size;
#for i in 0..HEAD/64
    if (lid + $iu * 64u < size) {
#ifdef ADD
        acc$i += out[to + lid + $iu * 64u];
#endif
        out[to + lid + $iu * 64u] = acc$i;
    }
#endfor
}
