// Decode attention over the cache (FlashDecoding). A workgroup of THREADS threads takes up to HEADS query heads of one
// KV head and one KV split, TILE keys at a time with an online softmax; attention_reduce reduces the splits.
// FUSED takes raw projections q, k and v: head norm and RoPE are applied here, and the workgroup that reaches the new
// key writes it to the cache. It serves rows of different sequences; several rows of one sequence would read each
// other's keys, so rope_kv runs first.
// CROSS attends to rows of another sequence with strides k_stride and v_stride; `memory` gives each row's range.
// SINGLE_PASS takes all keys of a row and writes the final result, without a reduction.
// BATCH takes rows of several sequences. QUANTIZED writes results in 8 bits for the next matmul.
// D is the head width if specialized, else 0; a head has at most WIDE groups of four columns. CUTS is the number of
// parts that the threads split a tile's keys into.
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rope_dim: u32,
    q_offset: u32,
    q_stride: u32,
    k_offset: u32,
    v_offset: u32,
    window: u32,
    splits: u32,
    eps: f32,
    norm_offset: f32,
    scale: f32,
    softcap: f32,
#ifdef RING
    ring: u32,
#endif
#ifdef BATCH
    pages_per_slot: u32,
#endif
#ifdef CROSS
    k_stride: u32,
    v_stride: u32,
#endif
#if SINGLE_PASS == 1
#ifdef QUANTIZED
    units: u32,
#else
    out_offset: u32,
    out_stride: u32,
#endif
#endif
}
#import common/state
#import common/kv
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
#ifdef FUSED
@group(0) @binding(2) var<storage, read_write> k_cache: array<Kv4>;
@group(0) @binding(3) var<storage, read_write> v_cache: array<Kv4>;
#else
@group(0) @binding(2) var<storage, read> k_cache: array<Kv4>;
@group(0) @binding(3) var<storage, read> v_cache: array<Kv4>;
#endif
#if SINGLE_PASS == 1
#ifdef QUANTIZED
@group(0) @binding(4) var<storage, read_write> quantized: array<vec2<u32>>;
#import matmul/quantize_octet
#else
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
#endif
#else
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
#endif
@group(0) @binding(5) var<storage, read> state: State;
#ifdef CROSS
@group(0) @binding(6) var<storage, read> memory: array<vec2<u32>>;
#endif
#import attention/kv_splits
#import attention/ring
#import common/kv_scale

// Start of a position's key and value, in groups of four columns.
#ifdef CROSS
fn key_at(position: u32, kv_head: u32, d4: u32) -> u32 {
    return (params.k_offset + position * params.k_stride) / 4u + kv_head * d4;
}
fn value_at(position: u32, kv_head: u32, d4: u32) -> u32 {
    return (params.v_offset + position * params.v_stride) / 4u + kv_head * d4;
}
#else
fn key_at(position: u32, kv_head: u32, d4: u32) -> u32 {
    return kv_at(place(position) * params.kv_heads + kv_head, d4);
}
fn value_at(position: u32, kv_head: u32, d4: u32) -> u32 {
    return key_at(position, kv_head, d4);
}
#endif

const NONE = -1e30;

// The queries; at the end, sums exchanged between threads.
var<workgroup> pool: array<vec4<f32>, HEADS * WIDE>;
// Per head and key: partial scores, then the score and its weight.
const SHARERS: u32 = THREADS / TILE;
var<workgroup> scores: array<f32, HEADS * THREADS>;
// Sixteen partial sums of squares per head (of q, of the key, with VALUES of the value), then eight partial maxima.
#ifdef VALUES
const NORMED: u32 = HEADS + 2u;
#else
const NORMED: u32 = HEADS + 1u;
#endif
var<workgroup> parts: array<f32, NORMED * 16u>;
// Per head: the maximum so far, and the rescale factor of earlier sums.
var<workgroup> tops: array<vec2<f32>, HEADS>;
var<workgroup> sums: array<f32, HEADS * CUTS>;
#ifdef FUSED
var<workgroup> fresh_k: array<vec4<f32>, WIDE>;
var<workgroup> fresh_v: array<vec4<f32>, WIDE>;
#import attention/head

fn component(base: u32, i: u32) -> f32 {
    return q[base + i];
}

fn factor(head: u32) -> f32 {
#ifdef HEAD_NORM
    var sum = 0.0;
#for i in 0..16
    sum += parts[head * 16u + $iu];
#endfor
    return inverseSqrt(sum / f32(params.head_dim) + params.eps);
#else
    return 1.0;
#endif
}

// Four elements of the new value.
fn fresh_value(at: u32) -> vec4<f32> {
    return vec4<f32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u])
#ifdef VALUES
        * factor(HEADS + 1u)
#endif
    ;
}
#endif

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
#if D == 0
    let d4 = params.head_dim / 4u;
#else
    const d4 = D / 4u;
#endif
    let d = d4 * 4u;
    let group = params.heads / params.kv_heads;
    let tiles = (group + HEADS - 1u) / HEADS;
    let kv_head = wid.x / tiles;
    let head0 = kv_head * group + (wid.x % tiles) * HEADS;
    let count = min(HEADS, (kv_head + 1u) * group - head0);
    let splits = splits_of(wid.z);
    // A step may have fewer rows than its plan, and none once generation has stopped.
    if (wid.y >= splits.count || !row_runs(wid.z)) {
        return;
    }
#ifdef BATCH
    sequence = state.sequences[wid.z].slot;
#endif
    let begin = splits.first + wid.y * splits.length;
    let end = min(begin + splits.length, splits.end);
    let pos = splits.end - 1u;
#ifdef FUSED
    // Of the row in the projections, and of its head in keys and values.
    let start = wid.z * params.q_stride;
    let kv = start + kv_head * d;
    let turn = row_rope_position(wid.z);
#ifdef HEAD_NORM
    for (var item = lid; item < NORMED * 16u; item += THREADS) {
        let h = item / 16u;
        var base = start + params.q_offset + (head0 + min(h, count - 1u)) * d + item % 16u;
        if (h == HEADS) { base = kv + params.k_offset + item % 16u; }
#ifdef VALUES
        if (h == HEADS + 1u) { base = kv + params.v_offset + item % 16u; }
#endif
        var sum = 0.0;
#if D == 0
        for (var i = item % 16u; i < d; i += 16u) {
            sum += q[base] * q[base];
            base += 16u;
        }
#else
        // All loads start before the first is used.
#for i in 0..D/16
        let x$i = q[base + $iu * 16u];
#endfor
#for i in 0..D/16
        sum += x$i * x$i;
#endfor
#endif
        parts[item] = sum;
    }
    workgroupBarrier();
#endif
    let fresh = end == splits.end;
    for (var item = lid; item < (HEADS + 1u) * d4; item += THREADS) {
        let h = item / d4;
        let i = item % d4;
        if (h < HEADS) {
            var value = vec4<f32>(0.0);
            if (h < count) {
                value = rotated4(start + params.q_offset + (head0 + h) * d, 4u * i, turn, factor(h), 0u) * params.scale;
            }
            pool[item] = value;
        } else if (fresh) {
            let turned = rotated4(kv + params.k_offset, 4u * i, turn, factor(h), d);
            let given = fresh_value(kv + params.v_offset + 4u * i);
#ifdef KV_INT8
            fresh_k[i] = turned;
            fresh_v[i] = given;
#else
            let key = kv_pack(turned);
            let value = kv_pack(given);
            fresh_k[i] = kv_unpack(key);
            fresh_v[i] = kv_unpack(value);
            if (wid.x % tiles == 0u) {
                let cache = key_at(pos, kv_head, d4) + i;
                k_cache[cache] = key;
                v_cache[cache] = value;
            }
#endif
        }
    }
#ifdef KV_INT8
    workgroupBarrier();
    var key_most = 0.0;
    var value_most = 0.0;
    for (var i = 0u; i < d4; i++) {
        key_most = max(key_most, kv_most(fresh_k[i]));
        value_most = max(value_most, kv_most(fresh_v[i]));
    }
    workgroupBarrier();
    if (fresh) {
        let at = key_at(pos, kv_head, d4);
        let writes = wid.x % tiles == 0u;
        for (var i = lid; i < d4; i += THREADS) {
            let key = kv_write(fresh_k[i], key_most);
            let value = kv_write(fresh_v[i], value_most);
            fresh_k[i] = kv_read(key, key_most);
            fresh_v[i] = kv_read(value, value_most);
            if (writes) {
                k_cache[at + i] = key;
                v_cache[at + i] = value;
            }
        }
        if (writes && lid == 0u) {
            k_cache[at - 1u] = bitcast<u32>(key_most);
            v_cache[at - 1u] = bitcast<u32>(value_most);
        }
    }
#endif
#else
    for (var item = lid; item < HEADS * d4; item += THREADS) {
        let at = params.q_offset + wid.z * params.q_stride + (head0 + min(item / d4, count - 1u)) * d + item % d4 * 4u;
        pool[item] = vec4<f32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
#endif
    if (lid < HEADS) { tops[lid] = vec2<f32>(NONE, 0.0); }
    workgroupBarrier();

    let cut = lid / d4;
    let column = lid % d4;
#for r in 0..HEADS
    var acc$r: vec4<f32>;
    var sum$r = 0.0;
#endfor
    for (var first = begin; first < end; first += TILE) {
        // Loads of the values start with those of the keys, since they do not depend on them.
#for j in 0..TILE/CUTS
        let v_at$j = value_at(min(first + $ju * CUTS + cut, end - 1u), kv_head, d4);
        let v$j = v_cache[v_at$j + column];
        let v_most$j = v_most(v_at$j);
#endfor
        // Several threads score a key, each with some of its columns.
        let key = first + lid / SHARERS;
        let sharer = lid % SHARERS;
#for r in 0..HEADS
        var s$r = 0.0;
#endfor
        let row = key_at(min(key, end - 1u), kv_head, d4);
        let row_most = k_most(row);
#ifdef FUSED
        let newest = fresh && key == pos;
#endif
#if D == 0
        for (var i = sharer; i < d4; i += SHARERS) {
            var k = kv_read(k_cache[row + i], row_most);
#ifdef FUSED
            if (newest) { k = fresh_k[i]; }
#endif
#for r in 0..HEADS
            s$r += dot(k, pool[$ru * d4 + i]);
#endfor
        }
#else
#for j in 0..D*TILE/4/THREADS
        let k$j = k_cache[row + $ju * SHARERS + sharer];
#endfor
#for j in 0..D*TILE/4/THREADS
        {
            let i = $ju * SHARERS + sharer;
            var k = kv_read(k$j, row_most);
#ifdef FUSED
            if (newest) { k = fresh_k[i]; }
#endif
#for r in 0..HEADS
            s$r += dot(k, pool[$ru * d4 + i]);
#endfor
        }
#endfor
#endif
#for r in 0..HEADS
        scores[($ru * SHARERS + sharer) * TILE + lid / SHARERS] = s$r;
#endfor
        workgroupBarrier();
        if (lid < HEADS * 8u) {
            let r = lid / 8u;
            var best = NONE;
            for (var i = lid % 8u; i < TILE; i += 8u) {
                var s = 0.0;
                for (var j = 0u; j < SHARERS; j++) { s += scores[r * THREADS + j * TILE + i]; }
                if (params.softcap > 0.0) { s = params.softcap * safe_tanh(s / params.softcap); }
                if (first + i >= end) { s = NONE; }
                scores[r * THREADS + i] = s;
                best = max(best, s);
            }
            parts[lid] = best;
        }
        workgroupBarrier();
        if (lid < HEADS) {
            let before = tops[lid].x;
            var best = before;
            for (var i = 0u; i < 8u; i++) { best = max(best, parts[lid * 8u + i]); }
            tops[lid] = vec2<f32>(best, exp(max(before - best, -80.0)));
        }
        workgroupBarrier();
        for (var item = lid; item < HEADS * TILE; item += THREADS) {
            let r = item / TILE;
            let s = scores[r * THREADS + item % TILE];
            var weight = exp(max(s - tops[r].x, -80.0));
            if (!(s > 0.5 * NONE)) { weight = 0.0; }
            scores[r * THREADS + TILE + item % TILE] = weight;
        }
        workgroupBarrier();
        if (cut < CUTS) {
#for r in 0..HEADS
            let keep$r = tops[$r].y;
            acc$r *= keep$r;
            sum$r *= keep$r;
#endfor
#for j in 0..TILE/CUTS
            {
                let i = $ju * CUTS + cut;
                var v = kv_read(v$j, v_most$j);
#ifdef FUSED
                if (fresh && min(first + i, end - 1u) == pos) { v = fresh_v[column]; }
#endif
#for r in 0..HEADS
                let p$r = scores[$ru * THREADS + TILE + i];
                acc$r += p$r * v;
                sum$r += p$r;
#endfor
            }
#endfor
        }
        workgroupBarrier();
    }
    if (cut < CUTS && column == 0u) {
#for r in 0..HEADS
        sums[cut * HEADS + $ru] = sum$r;
#endfor
    }
    for (var half = CUTS / 2u; half > 0u; half /= 2u) {
        if (cut >= half && cut < 2u * half) {
#for r in 0..HEADS
            pool[((cut - half) * HEADS + $ru) * d4 + column] = acc$r;
#endfor
        }
        workgroupBarrier();
        if (cut < half) {
#for r in 0..HEADS
            acc$r += pool[(cut * HEADS + $ru) * d4 + column];
#endfor
        }
        workgroupBarrier();
    }
#if SINGLE_PASS == 1
#if CUTS == 1
    // No exchange of columns has waited for the sums.
    workgroupBarrier();
#endif
    if (cut == 0u) {
#for r in 0..HEADS
        if ($ru < count) {
            var sum = 0.0;
            for (var i = 0u; i < CUTS; i++) { sum += sums[i * HEADS + $ru]; }
            let result = acc$r / max(sum, 1e-30);
#ifdef QUANTIZED
            pool[$ru * d4 + column] = result;
#else
            out[(params.out_offset + wid.z * params.out_stride) / 4u + (head0 + $ru) * d4 + column] = result;
#endif
        }
#endfor
    }
#ifdef QUANTIZED
    workgroupBarrier();
    let octets = count * d4 / 2u;
    let octet = min(lid, octets - 1u);
    var units = params.units;
    if (lid >= octets) { units = 0u; }
    quantize_octet(lid, wid.z, units, head0 * d4 / 2u + octet, pool[2u * octet], pool[2u * octet + 1u], 1.0);
#endif
#else
    if (cut == 0u) {
#for r in 0..HEADS
        if ($ru < count) {
            let part = ((wid.z * params.heads + head0 + $ru) * params.splits + wid.y) * (d4 + 1u);
            out[part + column] = acc$r;
            if (column == 0u) {
                var sum = 0.0;
                for (var i = 0u; i < CUTS; i++) { sum += sums[i * HEADS + $ru]; }
                out[part + d4] = vec4<f32>(tops[$r].x, sum, 0.0, 0.0);
            }
        }
#endfor
    }
#endif
}
