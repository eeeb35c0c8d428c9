// Inputs and mask of prefill attention; the kernel binds `out` (4) itself. VIEWS: keys and values are f32 rows like the
// queries, within packed sequences, without a cache. A row attends to its own sequence, from `before` rows before it to
// `after` rows after it. BIAS adds T5's relative position bias to each score (32 bidirectional buckets up to distance
// 128).
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    out_offset: u32,
    out_stride: u32,
    scale: f32,
    softcap: f32,
#ifdef VIEWS
    q_offset: u32,
    q_stride: u32,
    k_offset: u32,
    k_stride: u32,
    v_offset: u32,
    v_stride: u32,
    before: u32,
    after: u32,
#else
    window: u32,
#endif
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
@group(0) @binding(5) var<storage, read> state: State;
#ifdef VIEWS
@group(0) @binding(6) var<storage, read> segments: array<vec2<u32>>;
#endif
#ifdef ENDS
@group(0) @binding(6) var<storage, read> ends: array<u32>;
#endif
#ifdef SINKS
@group(0) @binding(7) var<storage, read> sinks: array<f32>;
#endif
#ifdef BIAS
@group(0) @binding(7) var<storage, read> relative: array<f32>;
#endif
#import common/kv_scale

const NONE = -1e30;

#ifdef RING
// Position of the first slot. The keys that a workgroup sees are fewer than the slots, so that they wrap at most once.
var<private> turn: u32;
#endif

// Prepares the slots of keys from `first` on.
fn start_keys(first: u32) {
#ifdef RING
    turn = first / params.ring * params.ring;
#endif
}

// The visible keys [x, y) of a row. Neither bound decreases from row to row.
fn visible(row: u32) -> vec2<u32> {
#ifdef VIEWS
    let own = segments[row];
    // Another sequence may have fewer rows than the queries.
    return vec2<u32>(max(own.x, row - min(row, params.before)), min(own.y, row + 1u + min(params.after, own.y)));
#else
    var end = state.pos + row + 1u;
    var first = 0u;
    if (params.window > 0u) { first = end - min(end, params.window); }
#ifdef ENDS
    end = max(end, ends[row]);
#endif
    return vec2<u32>(first, end);
#endif
}

// Start of a head of a query, and of the key and value at a position.
#ifdef VIEWS
fn query_at(row: u32, head: u32, d4: u32) -> u32 { return (params.q_offset + row * params.q_stride) / 4u + head * d4; }
fn key_at(row: u32, head: u32, d4: u32) -> u32 { return (params.k_offset + row * params.k_stride) / 4u + head * d4; }
fn value_at(row: u32, head: u32, d4: u32) -> u32 { return (params.v_offset + row * params.v_stride) / 4u + head * d4; }
#else
fn query_at(row: u32, head: u32, d4: u32) -> u32 { return (row * params.heads + head) * d4; }
fn key_at(position: u32, head: u32, d4: u32) -> u32 {
#ifdef RING
    let slot = position - turn;
    // The difference is huge before the end of the ring.
    return kv_at(min(slot, slot - params.ring) * params.kv_heads + head, d4);
#else
    return kv_at(position * params.kv_heads + head, d4);
#endif
}
fn value_at(position: u32, head: u32, d4: u32) -> u32 { return key_at(position, head, d4); }
#endif

// Score of a query and a key, before masking.
fn scored(dots: f32, row: u32, key: u32, head: u32) -> f32 {
    var score = dots;
#ifdef SOFTCAP
    score = params.softcap * safe_tanh(score / params.softcap);
#endif
#ifdef BIAS
    score += relative[bucket(row, key) * params.heads + head];
#endif
    return score;
}

// Score of a row and a key, NONE outside the keys that the row sees.
fn masked(dots: f32, row: u32, key: u32, seen: vec2<u32>, head: u32) -> f32 {
    let score = scored(dots, row, key, head);
    if (key < seen.x || key >= seen.y) { return NONE; }
    return score;
}

// Weight of a key by its score, relative to the best one.
fn weight(score: f32, best: f32) -> f32 {
    if (!(score > 0.5 * NONE)) { return 0.0; }
    return exp(max(score - best, -80.0));
}

#ifdef BIAS
fn bucket(query: u32, key: u32) -> u32 {
    var side = 0u;
    var far = query - min(query, key);
    if (key > query) { side = 16u; far = key - query; }
    if (far < 8u) { return side + far; }
    // Half octaves from 8 to 128.
    var b = 8u;
    if (far >= 12u) { b++; }
    if (far >= 16u) { b++; }
    if (far >= 23u) { b++; }
    if (far >= 32u) { b++; }
    if (far >= 46u) { b++; }
    if (far >= 64u) { b++; }
    if (far >= 91u) { b++; }
    return side + b;
}
#endif
