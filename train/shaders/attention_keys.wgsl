// Gradients of attention's keys and values, for one key and KV head a workgroup: sums over the rows that see the key and
// over the query heads that share it, in one fixed order. See attention_query.wgsl.
struct Params {
#import train/attention_params
    dy_offset: u32,
    dy_stride: u32,
    dk_stride: u32,
    dv_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;
@group(0) @binding(5) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(7) var<storage, read_write> dk: array<f32>;
@group(0) @binding(8) var<storage, read_write> dv: array<f32>;
#import train/attention_mask

var<workgroup> key_row: array<f32, HEAD>;
var<workgroup> value_row: array<f32, HEAD>;
var<workgroup> slopes: array<f32, 64>;
var<workgroup> weights: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let key = wid.y;
    let size = params.head_dim;
    let group = params.heads / params.kv_heads;
    let first_head = wid.x * group;
    for (var d = lid; d < size; d += 64u) {
        key_row[d] = k[params.k_offset + key * params.k_stride + wid.x * size + d];
        value_row[d] = v[params.v_offset + key * params.v_stride + wid.x * size + d];
    }
    let end = end_query(key);
#for i in 0..HEAD/64
    var key_sum$i = 0.0;
    var value_sum$i = 0.0;
#endfor
    for (var head = first_head; head < first_head + group; head++) {
        let queries = params.q_offset + head * size;
        let uppers = params.dy_offset + head * size;
        for (var base = first_query(key); base < end; base += 64u) {
            workgroupBarrier();
            let row = base + lid;
            var slope = 0.0;
            var weight = 0.0;
            if (row < end) {
                let query_at = queries + row * params.q_stride;
                let upper_at = uppers + row * params.dy_stride;
                var product = 0.0;
                var above = 0.0;
                for (var d = 0u; d < size; d++) {
                    product += q[query_at + d] * key_row[d];
                    above += dy[upper_at + d] * value_row[d];
                }
                let own = stats[row * params.heads + head];
                let score = score_of(product);
                weight = exp(max(score - own.x, -80.0));
                slope = weight * (above - own.y) * score_slope(score);
            }
            slopes[lid] = slope;
            weights[lid] = weight;
            workgroupBarrier();
            let count = min(64u, end - base);
#for i in 0..HEAD/64
            if (lid + $iu * 64u < size) {
                for (var j = 0u; j < count; j++) {
                    key_sum$i += slopes[j] * q[queries + (base + j) * params.q_stride + lid + $iu * 64u];
                    value_sum$i += weights[j] * dy[uppers + (base + j) * params.dy_stride + lid + $iu * 64u];
                }
            }
#endfor
        }
    }
#for i in 0..HEAD/64
    if (lid + $iu * 64u < size) {
        dk[key * params.dk_stride + wid.x * size + lid + $iu * 64u] = key_sum$i;
        dv[key * params.dv_stride + wid.x * size + lid + $iu * 64u] = value_sum$i;
    }
#endfor
}
