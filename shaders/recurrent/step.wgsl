// Decode step of a linear recurrence, row by row. A workgroup takes a head, whose memory [dk][dv] its threads hold in
// registers, EACH key rows by four values each. DELTA is the gated delta rule (arXiv 2412.06464) with the gated norm of
// its output; without it, Mamba-2's state update (arXiv 2405.21060). The memory is read as zeros at position 0. With
// BATCH, a workgroup takes one row, whose sequence has a memory of its own. VERIFY leaves the memory as it was; once the
// accepted rows are known, ACCEPTED updates it with them and has no output.
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
#ifndef ACCEPTED
    z_offset: u32,
    z_stride: u32,
    out_offset: u32,
    out_stride: u32,
#endif
    raw: u32,
    dt_scale: f32,
    dt_low: f32,
    dt_high: f32,
#ifndef ACCEPTED
    eps: f32,
#endif
}
#import common/state
#import common/kv
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> gains: array<f32>;
@group(0) @binding(4) var<storage, read_write> memory: array<Kv4>;
#ifndef ACCEPTED
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
#endif
@group(0) @binding(6) var<storage, read> state: State;
#import common/rows
#ifdef DELTA
@group(0) @binding(7) var<storage, read> b: array<f32>;
#ifndef ACCEPTED
@group(0) @binding(8) var<storage, read> z: array<f32>;
#endif
#endif
#import recurrent/rates

// The row's query, then its key, zero-padded to the slices of all threads.
var<workgroup> qk: array<f32, 512>;
// Eight partial sums of q·k, q·q and k·k.
var<workgroup> parts: array<f32, 24>;
// Memory reads of the slices, by key and by query.
var<workgroup> reads: array<vec4<f32>, 512>;
// Zero-padded.
var<workgroup> squares: array<f32, 72>;

fn dot_of(which: u32) -> f32 {
    var sum = 0.0;
#for i in 0..8
    sum += parts[which * 8u + $iu];
#endfor
    return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let head = wid.x;
    let key_head = head / params.per_key % params.key_heads;
    let dk = params.dk;
    let dv4 = params.dv / 4u;
    let slices = (dk + EACH - 1u) / EACH;
    let padded = slices * EACH;
    let column = lid % dv4;
    let slice = lid / dv4;
    let busy = slice < slices;
    let first = slice * EACH;
    // Loaded before the row count is known; threads without a slice load the last one's.
#ifdef BATCH
    let base = (state.sequences[wid.y].slot * params.heads + head) * dk * dv4 + column;
    let is_first = row_position(wid.y) == 0u;
#else
    let base = head * dk * dv4 + column;
    let is_first = state.pos == 0u;
#endif
#for i in 0..EACH
    let held$i = memory[base + min(first + $iu, dk - 1u) * dv4];
#endfor
#ifdef BATCH
    let row0 = wid.y;
    let rows = wid.y + 1u;
    if (!row_runs(row0)) {
        return;
    }
#else
    let row0 = 0u;
#ifdef ACCEPTED
    let rows = state.accepted;
#else
    let rows = state.rows;
#endif
    if (rows == 0u) {
        return;
    }
#endif
#for i in 0..EACH
    var s$i = vec4<f32>(0.0);
    if (busy && first + $iu < dk && !is_first) { s$i = kv_unpack(held$i); }
#endfor
#ifdef DELTA
    let own = 2u * params.heads + column * 4u;
    let gain = vec4<f32>(gains[own], gains[own + 1u], gains[own + 2u], gains[own + 3u]);
#endif
    for (var row = row0; row < rows; row++) {
        let at = row * params.x_stride;
        // Later inputs are loaded before the first barrier.
        let rate = rates(row, head);
        let start = params.v_offset + at + head * params.dv + column * 4u;
        let value = vec4<f32>(x[start], x[start + 1u], x[start + 2u], x[start + 3u]);
#ifdef DELTA
#ifndef ACCEPTED
        let gate = params.z_offset + row * params.z_stride + head * params.dv + column * 4u;
#for e in 0..4
        let z$e = z[gate + $eu];
#endfor
#endif
#endif
        for (var i = lid; i < 2u * padded; i += 256u) {
            let j = i % padded;
            var value = 0.0;
            if (j < dk) {
                var offset = params.q_offset;
                if (i >= padded) { offset = params.k_offset; }
                value = x[offset + at + key_head * dk + j];
            }
            qk[i] = value;
        }
        workgroupBarrier();
        if (lid < 24u) {
            let which = lid / 8u;
            var left = 0u;
            var right = padded;
            if (which == 1u) { right = 0u; }
            if (which == 2u) { left = padded; }
            var sum = 0.0;
            for (var i = lid % 8u; i < padded; i += EACH * 8u) {
#for j in 0..EACH
                if (i + $ju * 8u < padded) { sum += qk[left + i + $ju * 8u] * qk[right + i + $ju * 8u]; }
#endfor
            }
            parts[lid] = sum;
        }
        var by_key = vec4<f32>(0.0);
        var by_query = vec4<f32>(0.0);
        if (busy) {
#for i in 0..EACH
            by_key += qk[padded + first + $iu] * s$i;
            by_query += qk[first + $iu] * s$i;
#endfor
            reads[lid] = by_key;
            reads[256u + lid] = by_query;
        }
        workgroupBarrier();
        by_key = vec4<f32>(0.0);
        by_query = vec4<f32>(0.0);
        for (var i = 0u; i < slices; i++) {
            by_key += reads[i * dv4 + column];
            by_query += reads[256u + i * dv4 + column];
        }
        let decay = exp(max(rate.x, -80.0));
        var key_factor = 1.0;
#ifdef DELTA
        key_factor = inverseSqrt(dot_of(2u) + 1e-6);
        let query_factor = inverseSqrt(dot_of(1u) + 1e-6) * inverseSqrt(f32(dk));
        let fresh = (value - by_key * (key_factor * decay)) * rate.y;
        var y = (by_query * decay + fresh * (dot_of(0u) * key_factor)) * query_factor;
#else
        let fresh = value * rate.y;
        let y = by_query * decay + fresh * dot_of(0u) + value * gains[2u * params.heads + head];
#endif
#for i in 0..EACH
        s$i = s$i * decay + qk[padded + min(first + $iu, padded - 1u)] * key_factor * fresh;
#endfor
#ifdef DELTA
        if (slice == 0u) { squares[column] = dot(y, y); }
        if (lid < 8u) { squares[dv4 + lid] = 0.0; }
#endif
        workgroupBarrier();
#ifndef ACCEPTED
        let to = params.out_offset + row * params.out_stride + head * params.dv + column * 4u;
        if (slice == 0u) {
#ifdef DELTA
            var sum = 0.0;
            for (var i = 0u; i < dv4; i += 8u) {
#for j in 0..8
                sum += squares[i + $ju];
#endfor
            }
            y *= inverseSqrt(sum / f32(params.dv) + params.eps);
#for e in 0..4
            y[$e] *= gain[$e] * z$e / (1.0 + exp(-clamp(z$e, -80.0, 80.0)));
#endfor
#endif
#for e in 0..4
            out[to + $eu] = y[$e];
#endfor
        }
#endif
    }
#ifndef VERIFY
#for i in 0..EACH
    if (busy && first + $iu < dk) { memory[base + (first + $iu) * dv4] = kv_pack(s$i); }
#endfor
#endif
}
