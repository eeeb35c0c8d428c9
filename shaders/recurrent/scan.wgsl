// Scans the chunks of a linear recurrence, prepared by recurrent/prepare. A workgroup of 128 threads takes 16 value
// columns of a head and keeps their memory [keys][16] in workgroup memory from the first chunk to the last. Heads with
// too many keys take one launch per range of keys from `first_key` on; all but the first add to `out`. DELTA does not
// support this, since its rows read the whole memory before they write.
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
    out_offset: u32,
    out_stride: u32,
    first_key: u32,
    keys: u32,
}
#import common/state
#import common/kv
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#ifndef DELTA
@group(0) @binding(2) var<storage, read> gains: array<f32>;
#endif
@group(0) @binding(3) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> memory: array<Kv4>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read> state: State;

// [key][four of 16 columns].
var<workgroup> kept: array<vec4<f32>, 512>;
// Values that the chunk's rows write: [row][four of 16 columns].
var<workgroup> fresh: array<vec4<f32>, 128>;
// Of 16 keys: W and queries, [key][four of 32 rows] each; then scores, [earlier row][four of 32 rows]; then of 32 keys:
// [row][four keys].
var<workgroup> tile: array<vec4<f32>, 256>;
// Row factors.
var<workgroup> factors: array<vec4<f32>, 32>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let rows = state.rows;
    if (rows == 0u) {
        return;
    }
    let dk4 = params.keys / 4u;
    let dv4 = params.dv / 4u;
    let blocks = (dv4 + 3u) / 4u;
    let head = wid.x / blocks;
    let key_head = head / params.per_key % params.key_heads;
    let first4 = wid.x % blocks * 4u;
    let memory_at = head * params.dk + params.first_key;
#ifdef DELTA
    let width = dk4 + dv4 + 9u;
    let scores = dk4 + dv4;
#else
    let width = 9u;
    let scores = 0u;
#endif
    // The memory is loaded and stored by four columns of 32 keys at a time.
    let own_key = lid / 4u;
    let own4 = first4 + lid % 4u;
    for (var key = own_key; key < 128u; key += 32u) {
        var value = vec4<f32>(0.0);
        if (state.pos > 0u && key < params.keys && own4 < dv4) {
            value = kv_unpack(memory[(memory_at + key) * dv4 + own4]);
        }
        kept[key * 4u + lid % 4u] = value;
    }
    // Loads per thread: a quarter of 16 columns of a row. Outputs per thread: a column of four rows.
    let own = lid / 4u;
    let quarter = lid % 4u;
    let rg = lid / 16u;
    let column = lid % 16u;
    let within = first4 * 4u + column < params.dv;
    for (var chunk = 0u; chunk * 32u < rows; chunk++) {
        let row0 = chunk * 32u;
        let base = (chunk * params.heads + head) * 32u * width;
        let start = min(row0 + own, rows - 1u) * params.x_stride / 4u + (key_head * params.dk + params.first_key) / 4u;
        workgroupBarrier();
        if (lid < 32u) { factors[lid] = parts[base + lid * width + scores + 8u]; }
        workgroupBarrier();
        let mine = factors[own];
        // Loads for the end start with the first columns; columns load one tile ahead.
        var value = vec4<f32>(0.0);
        if (own4 < dv4) {
#ifdef DELTA
            value = parts[base + own * width + dk4 + own4];
#else
            value = x[(params.v_offset + min(row0 + own, rows - 1u) * params.x_stride) / 4u + head * dv4 + own4] * mine.z;
#endif
        }
#for h in 0..2
        let score$h = parts[base + own * width + scores + quarter + $hu * 4u];
#endfor
        let q_at = params.q_offset / 4u + start + quarter;
        let w_at = base + own * width + quarter;
        var q = vec4<f32>(0.0);
        var w = vec4<f32>(0.0);
        if (quarter < dk4) {
            q = x[q_at];
#ifdef DELTA
            w = parts[w_at];
#endif
        }
        var seen = vec4<f32>(0.0);
        var y = vec4<f32>(0.0);
        for (var k4 = 0u; k4 < dk4; k4 += 4u) {
            workgroupBarrier();
#for e in 0..4
#ifdef DELTA
            tile[(quarter * 4u + $eu) * 8u + own / 4u][own % 4u] = w[$e];
#endif
            tile[128u + (quarter * 4u + $eu) * 8u + own / 4u][own % 4u] = q[$e] * mine.x;
#endfor
            q = vec4<f32>(0.0);
            w = vec4<f32>(0.0);
            if (k4 + 4u + quarter < dk4) {
                q = x[q_at + k4 + 4u];
#ifdef DELTA
                w = parts[w_at + k4 + 4u];
#endif
            }
            workgroupBarrier();
            for (var j = 0u; j < 16u; j++) {
                let held = kept[(k4 * 4u + j) * 4u + column / 4u][column % 4u];
#ifdef DELTA
                seen += tile[j * 8u + rg] * held;
#endif
                y += tile[128u + j * 8u + rg] * held;
            }
        }
        // Each row's new values, minus what the memory already holds for its key.
        fresh[own * 4u + quarter] = value;
        workgroupBarrier();
#ifdef DELTA
#for e in 0..4
        fresh[(rg * 4u + $eu) * 4u + column / 4u][column % 4u] -= seen[$e];
#endfor
#endif
        // The scores, transposed; the tile is no longer read.
#for h in 0..2
#for e in 0..4
        tile[((quarter + $hu * 4u) * 4u + $eu) * 8u + own / 4u][own % 4u] = score$h[$e];
#endfor
#endfor
        // First keys for the memory update.
        let k_at = params.k_offset / 4u + start + quarter;
#for h in 0..2
        var key$h = vec4<f32>(0.0);
        if (quarter + $hu * 4u < dk4) { key$h = x[k_at + $hu * 4u]; }
#endfor
        workgroupBarrier();
        // Scores cover all keys, so only one launch adds them.
        for (var j = 0u; j < 32u && params.first_key == 0u; j++) {
            y += tile[j * 8u + rg] * fresh[j * 4u + column / 4u][column % 4u];
        }
#for e in 0..4
        if (within && row0 + rg * 4u + $eu < rows) {
            let row = row0 + rg * 4u + $eu;
            let at = head * params.dv + first4 * 4u + column;
#ifdef DELTA
            out[params.out_offset + row * params.out_stride + at] = y[$e];
#else
            let given = x[(params.v_offset + row * params.x_stride + at) / 4u][at % 4u];
            let to = params.out_offset + row * params.out_stride + at;
            var besides = given * gains[2u * params.heads + head];
            if (params.first_key > 0u) { besides = out[to]; }
            out[to] = y[$e] + besides;
#endif
        }
#endfor
        // Updates the memory with the rows' values.
        for (var k4 = 0u; k4 < dk4; k4 += 8u) {
            workgroupBarrier();
#for h in 0..2
            tile[own * 8u + quarter + $hu * 4u] = key$h * mine.y;
            key$h = vec4<f32>(0.0);
            if (k4 + 8u + quarter + $hu * 4u < dk4) { key$h = x[k_at + k4 + 8u + $hu * 4u]; }
#endfor
            workgroupBarrier();
            let at = (k4 * 4u + own_key) * 4u + lid % 4u;
            var sum = kept[at] * mine.w;
            for (var j = 0u; j < 32u; j++) {
                sum += tile[j * 8u + own_key / 4u][own_key % 4u] * fresh[j * 4u + lid % 4u];
            }
            kept[at] = sum;
        }
    }
    workgroupBarrier();
    for (var key = own_key; key < params.keys; key += 32u) {
        if (own4 < dv4) { memory[(memory_at + key) * dv4 + own4] = kv_pack(kept[key * 4u + lid % 4u]); }
    }
}
