// Optional RMSNorm and RoPE of the heads of q, k and v. Writes q to its own buffer, and k and v to the cache. A
// workgroup of WG threads takes one head of one row. ALL reads q, k and v from one buffer, queries first. QUERIES and
// KEYS read them separately, since all bindings together would exceed eight.
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rope_dim: u32,
    q_offset: u32,
    k_offset: u32,
    k_stride: u32,
    v_offset: u32,
    v_stride: u32,
    eps: f32,
    norm_offset: f32,
#ifdef RING
    ring: u32,
#endif
#ifdef BATCH
    pages_per_slot: u32,
#endif
}
#import common/state
#import common/kv
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> k: array<f32>;
#ifdef KEYS
@group(0) @binding(2) var<storage, read> v: array<f32>;
#endif
#ifndef KEYS
@group(0) @binding(3) var<storage, read_write> q_out: array<vec4<f32>>;
#endif
#ifndef QUERIES
@group(0) @binding(4) var<storage, read_write> k_cache: array<Kv4>;
@group(0) @binding(5) var<storage, read_write> v_cache: array<Kv4>;
#endif
@group(0) @binding(6) var<storage, read> state: State;
#import common/rows
#import attention/staged_head
#ifndef QUERIES
#import attention/ring
#ifdef KV_INT8
var<workgroup> largest: array<f32, WG>;
#endif

// Four elements as stored in the cache: of a value unchanged, or normed with VALUES; of a key normed and rotated.
fn kept(is_v: bool, i: u32, pos: u32, factor: f32) -> vec4<f32> {
#ifdef VALUES
    if (is_v) { return vec4<f32>(head[4u * i], head[4u * i + 1u], head[4u * i + 2u], head[4u * i + 3u]) * factor; }
#else
    if (is_v) { return vec4<f32>(head[4u * i], head[4u * i + 1u], head[4u * i + 2u], head[4u * i + 3u]); }
#endif
    return rotated4(0u, 4u * i, pos, factor, params.head_dim);
}
#endif

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    // A decode plan dispatches its maximum rows; rows beyond the step's must not write the cache.
    if (!row_runs(row)) {
        return;
    }
    let pos = row_rope_position(row);
    let d = params.head_dim;
    // Head index over queries, keys, values.
    var index = wid.x;
#ifdef KEYS
    index += params.heads;
#endif
    let is_q = index < params.heads;
    let is_v = index >= params.heads + params.kv_heads;
    var h = index;
    var base = params.q_offset + row * params.k_stride;
    if (!is_q) {
        h -= params.heads;
        base = params.k_offset + row * params.k_stride;
        if (is_v) {
            h -= params.kv_heads;
            base = params.v_offset + row * params.v_stride;
        }
    }
    base += h * d;
    for (var i = lid; i < d; i += WG) {
#ifdef KEYS
        if (is_v) { head[i] = v[base + i]; } else { head[i] = k[base + i]; }
#else
        head[i] = k[base + i];
#endif
    }
    let factor = staged_factor(lid);
#ifndef QUERIES
    var most = 1.0;
#ifdef KV_INT8
    var own = 0.0;
    for (var i = lid; i < d / 4u; i += WG) { own = max(own, kv_most(kept(is_v, i, pos, factor))); }
    largest[lid] = own;
    workgroupBarrier();
    most = 0.0;
    for (var i = 0u; i < WG; i++) { most = max(most, largest[i]); }
#endif
#ifdef BATCH
    sequence = state.sequences[row].slot;
#endif
    let cache = kv_at(place(row_position(row)) * params.kv_heads + h, d / 4u);
#ifdef KV_INT8
    if (lid == 0u && is_v) { v_cache[cache - 1u] = bitcast<u32>(most); }
    if (lid == 0u && !is_v && !is_q) { k_cache[cache - 1u] = bitcast<u32>(most); }
#endif
#endif
    for (var i = lid; i < d / 4u; i += WG) {
#ifndef KEYS
        if (is_q) { q_out[((row * params.heads + h) * d) / 4u + i] = rotated4(0u, 4u * i, pos, factor, 0u); }
#endif
#ifndef QUERIES
        if (is_v) {
            v_cache[cache + i] = kv_write(kept(true, i, pos, factor), most);
        } else if (!is_q) {
            k_cache[cache + i] = kv_write(kept(false, i, pos, factor), most);
        }
#endif
    }
}
