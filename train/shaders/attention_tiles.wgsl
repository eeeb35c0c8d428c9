// Attention of packed sequences and its gradients for a GPU, in tiles of 64 × 64 scores: OUTPUT computes the output of 64
// queries, QUERY the gradient of 64 queries, KEYS the gradients of 64 keys and values. The results are those of
// attention.wgsl, attention_query.wgsl and attention_keys.wgsl.
//
// A workgroup keeps 64 rows ("own") and walks over the rows that they see, or that see them ("other"), 64 at a time. A
// thread has four own rows, and four other rows of the scores or every sixteenth vector of the result's columns.
struct Params {
#import train/attention_params
#ifndef OUTPUT
    dy_offset: u32,
    dy_stride: u32,
#endif
#ifdef KEYS
    dk_stride: u32,
    dv_stride: u32,
#else
    out_offset: u32,
    out_stride: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> spans: array<vec2<u32>>;
#ifdef OUTPUT
@group(0) @binding(5) var<storage, read_write> stats: array<vec2<f32>>;
#else
@group(0) @binding(5) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read> dy: array<f32>;
#endif
#ifdef KEYS
@group(0) @binding(7) var<storage, read_write> dk: array<f32>;
@group(0) @binding(8) var<storage, read_write> dv: array<f32>;
#else
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
#endif
#ifdef SINKS
@group(0) @binding(8) var<storage, read> sinks: array<f32>;
#endif
#import train/attention_mask

// Vectors between two terms of 64 rows, and between two rows of HEAD columns: one more than they are long.
const SPAN = 17u;
const WIDE = HEAD / 4u + 1u;
// Where the other rows' terms begin.
const OTHER = 16u * SPAN;

// Sixteen terms of 64 own and 64 other rows; or sixteen other rows; or a value of each thread.
var<workgroup> slice: array<vec4<f32>, 16u * WIDE + OTHER>;
// A factor of each own and other row, own rows side by side.
var<workgroup> factors: array<vec4<f32>, 64u * SPAN>;

// Four rows of four values.
struct Square {
    r0: vec4<f32>,
    r1: vec4<f32>,
    r2: vec4<f32>,
    r3: vec4<f32>,
}

// Four values of a head's row from column d on; zeros after the last column. Rows after the last are the last.
fn query4(row: u32, head: u32, d: u32) -> vec4<f32> {
    let at = params.q_offset + min(row, params.rows - 1u) * params.q_stride + head * params.head_dim + d;
    if (d + 4u <= params.head_dim) { return vec4<f32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]); }
    var four = vec4<f32>(0.0);
    for (var e = 0u; d + e < params.head_dim; e++) { four[e] = q[at + e]; }
    return four;
}

fn key4(row: u32, head: u32, d: u32) -> vec4<f32> {
    let kv_head = head / (params.heads / params.kv_heads);
    let at = params.k_offset + min(row, params.rows - 1u) * params.k_stride + kv_head * params.head_dim + d;
    if (d + 4u <= params.head_dim) { return vec4<f32>(k[at], k[at + 1u], k[at + 2u], k[at + 3u]); }
    var four = vec4<f32>(0.0);
    for (var e = 0u; d + e < params.head_dim; e++) { four[e] = k[at + e]; }
    return four;
}

fn value4(row: u32, head: u32, d: u32) -> vec4<f32> {
    let kv_head = head / (params.heads / params.kv_heads);
    let at = params.v_offset + min(row, params.rows - 1u) * params.v_stride + kv_head * params.head_dim + d;
    if (d + 4u <= params.head_dim) { return vec4<f32>(v[at], v[at + 1u], v[at + 2u], v[at + 3u]); }
    var four = vec4<f32>(0.0);
    for (var e = 0u; d + e < params.head_dim; e++) { four[e] = v[at + e]; }
    return four;
}

#ifndef OUTPUT
fn upper4(row: u32, head: u32, d: u32) -> vec4<f32> {
    let at = params.dy_offset + min(row, params.rows - 1u) * params.dy_stride + head * params.head_dim + d;
    if (d + 4u <= params.head_dim) { return vec4<f32>(dy[at], dy[at + 1u], dy[at + 2u], dy[at + 3u]); }
    var four = vec4<f32>(0.0);
    for (var e = 0u; d + e < params.head_dim; e++) { four[e] = dy[at + e]; }
    return four;
}
#endif

// Dot products of a thread's four own and four other rows: of queries and keys, or `above` of gradients and values.
fn dots(above: bool, own: u32, other: u32, head: u32, lid: u32) -> Square {
    let tx = lid % 16u;
    let ty = lid / 16u;
    let row = lid / 4u;
    let term = lid % 4u * 4u;
    var sums = Square(vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0));
    for (var d = 0u; d < params.head_dim; d += 16u) {
        var x: vec4<f32>;
        var y: vec4<f32>;
#ifdef KEYS
        if (above) {
            x = value4(own + row, head, d + term);
            y = upper4(other + row, head, d + term);
        } else {
            x = key4(own + row, head, d + term);
            y = query4(other + row, head, d + term);
        }
#else
#ifdef QUERY
        if (above) {
            x = upper4(own + row, head, d + term);
            y = value4(other + row, head, d + term);
        }
#endif
        if (!above) {
            x = query4(own + row, head, d + term);
            y = key4(other + row, head, d + term);
        }
#endif
        workgroupBarrier();
        for (var e = 0u; e < 4u; e++) {
            slice[(term + e) * SPAN + row / 4u][row % 4u] = x[e];
            slice[OTHER + (term + e) * SPAN + row / 4u][row % 4u] = y[e];
        }
        workgroupBarrier();
        for (var r = 0u; r < 16u; r++) {
            let left = slice[r * SPAN + ty];
            let right = slice[OTHER + r * SPAN + tx];
#for i in 0..4
            sums.r$i += left[$i] * right;
#endfor
        }
    }
    return sums;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let tx = lid % 16u;
    let ty = lid / 16u;
    let own = wid.y * 64u;
    let last = min(own + 63u, params.rows - 1u);
#for i in 0..4
    let row$i = own + ty * 4u + $iu;
    var first$i = 0u;
    var end$i = 0u;
#ifdef KEYS
    if (row$i < params.rows) {
        first$i = first_query(row$i);
        end$i = end_query(row$i);
    }
#else
    if (row$i < params.rows) {
        first$i = first_key(row$i);
        end$i = end_key(row$i);
    }
#endif
#endfor
#for t in 0..PASSES
#for i in 0..4
#for c in 0..HEAD/64
    var sum$t_$i_$c = vec4<f32>(0.0);
#endfor
#endfor
#endfor
#ifdef KEYS
    let begin = first_query(own);
    let end = end_query(last);
    let group = params.heads / params.kv_heads;
    for (var head = wid.x * group; head < (wid.x + 1u) * group; head++) {
#else
    let begin = first_key(own);
    let end = end_key(last);
    let head = wid.x;
    {
#endif
#ifdef OUTPUT
        const LOWEST = -3.0e38;
        var most = vec4<f32>(LOWEST);
        var whole = vec4<f32>(0.0);
#ifdef SINKS
        most = vec4<f32>(sinks[head]);
        whole = vec4<f32>(1.0);
#endif
#endif
#ifdef QUERY
#for i in 0..4
        let stat$i = stats[min(row$i, params.rows - 1u) * params.heads + head];
#endfor
#endif
        for (var other = begin; other < end; other += 64u) {
            let products = dots(false, own, other, head, lid);
#ifndef OUTPUT
            let above = dots(true, own, other, head, lid);
#endif
            let at = other + tx * 4u;
#ifdef OUTPUT
            var scores = products;
            var highest = vec4<f32>(LOWEST);
#for i in 0..4
            for (var e = 0u; e < 4u; e++) {
                let score = score_of(products.r$i[e]);
                if (at + e >= first$i && at + e < end$i) {
                    scores.r$i[e] = score;
                    highest[$i] = max(highest[$i], score);
                } else {
                    scores.r$i[e] = LOWEST;
                }
            }
#endfor
            workgroupBarrier();
            slice[lid] = highest;
            workgroupBarrier();
            for (var t = 0u; t < 16u; t++) { highest = max(highest, slice[ty * 16u + t]); }
            let next = max(most, highest);
            let shrink = exp(max(most - next, vec4<f32>(-80.0)));
            var part = vec4<f32>(0.0);
            for (var e = 0u; e < 4u; e++) {
                var column = vec4<f32>(0.0);
#for i in 0..4
                if (at + e >= first$i && at + e < end$i) { column[$i] = exp(max(scores.r$i[e] - next[$i], -80.0)); }
#endfor
                part += column;
                factors[(tx * 4u + e) * SPAN + ty] = column;
            }
            slice[256u + lid] = part;
            workgroupBarrier();
            whole *= shrink;
            for (var t = 0u; t < 16u; t++) { whole += slice[256u + ty * 16u + t]; }
            most = next;
#for i in 0..4
#for c in 0..HEAD/64
            sum0_$i_$c *= shrink[$i];
#endfor
#endfor
#endif
#ifndef OUTPUT
            var weights = Square(vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0));
            var slopes = weights;
            for (var e = 0u; e < 4u; e++) {
#ifdef KEYS
                let stat = stats[min(at + e, params.rows - 1u) * params.heads + head];
#endif
#for i in 0..4
                if (at + e >= first$i && at + e < end$i) {
#ifdef QUERY
                    let stat = stat$i;
#endif
                    let score = score_of(products.r$i[e]);
                    let weight = exp(max(score - stat.x, -80.0));
                    weights.r$i[e] = weight;
                    slopes.r$i[e] = weight * (above.r$i[e] - stat.y) * score_slope(score);
                }
#endfor
            }
#endif
#for t in 0..PASSES
#ifndef OUTPUT
            workgroupBarrier();
            for (var e = 0u; e < 4u; e++) {
#if $t == 0
                factors[(tx * 4u + e) * SPAN + ty] = vec4<f32>(slopes.r0[e], slopes.r1[e], slopes.r2[e], slopes.r3[e]);
#else
                factors[(tx * 4u + e) * SPAN + ty] = vec4<f32>(weights.r0[e], weights.r1[e], weights.r2[e], weights.r3[e]);
#endif
            }
#endif
            for (var step = 0u; step < 64u; step += 16u) {
                workgroupBarrier();
#for c in 0..HEAD/64
                {
                    let place = lid + $cu * 256u;
                    let row = place / (HEAD / 4u);
                    let d = place % (HEAD / 4u) * 4u;
#ifdef OUTPUT
                    slice[row * WIDE + d / 4u] = value4(other + step + row, head, d);
#endif
#ifdef QUERY
                    slice[row * WIDE + d / 4u] = key4(other + step + row, head, d);
#endif
#ifdef KEYS
#if $t == 0
                    slice[row * WIDE + d / 4u] = query4(other + step + row, head, d);
#else
                    slice[row * WIDE + d / 4u] = upper4(other + step + row, head, d);
#endif
#endif
                }
#endfor
                workgroupBarrier();
                for (var r = 0u; r < 16u; r++) {
                    let left = factors[(step + r) * SPAN + ty];
#for c in 0..HEAD/64
                    let right$c = slice[r * WIDE + tx + $cu * 16u];
#for i in 0..4
                    sum$t_$i_$c += left[$i] * right$c;
#endfor
#endfor
                }
            }
#endfor
        }
#ifdef OUTPUT
#for i in 0..4
        if (tx == 0u && row$i < params.rows) {
            stats[row$i * params.heads + head] = vec2<f32>(most[$i] + log(whole[$i]), 0.0);
        }
#for c in 0..HEAD/64
        sum0_$i_$c /= whole[$i];
#endfor
#endfor
#endif
    }
#for i in 0..4
#for c in 0..HEAD/64
    for (var e = 0u; e < 4u; e++) {
        let d = (tx + $cu * 16u) * 4u + e;
        if (row$i < params.rows && d < params.head_dim) {
#ifdef KEYS
            dk[row$i * params.dk_stride + wid.x * params.head_dim + d] = sum0_$i_$c[e];
            dv[row$i * params.dv_stride + wid.x * params.head_dim + d] = sum1_$i_$c[e];
#else
            let to = params.out_offset + row$i * params.out_stride + head * params.head_dim + d;
#ifdef ADD
            out[to] += sum0_$i_$c[e];
#else
            out[to] = sum0_$i_$c[e];
#endif
#endif
        }
    }
#endfor
#endfor
}
