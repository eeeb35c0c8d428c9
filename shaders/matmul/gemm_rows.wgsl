// GEMM y = x Wᵀ for many rows of x without a GPU, where a core runs the threads of a workgroup together, as the lanes of
// its vectors. A thread computes ROWS rows by COLS columns, THREADS apart, in registers: loads cost most, and no thread
// waits for another. SUBGROUPS: of a batch of rows each lane, of BATCH in a subgroup, loads one for all. BM: rows per
// workgroup. As gemm.wgsl otherwise.
#import matmul/gemm_params

const ROWS: u32 = BATCHES * BATCH;
// Of a thread, before the next rows.
const OUTPUTS: u32 = ROWS * COLS;

// Row of x of a row of the tile, and row of out.
fn input_row(place: u32) -> u32 {
#ifdef EXPERTS
    return pair_row(place);
#else
    return place;
#endif
}

fn result_row(place: u32) -> u32 {
#ifdef EXPERTS
    return buckets[params.order_at + place];
#else
    return place;
#endif
}

// Start of a row of x, in groups of four columns.
fn x_row(place: u32) -> u32 {
    return (params.x_offset + input_row(place) * params.x_stride) / 4u;
}

struct X8U {
    a: vec4<u32>,
    b: vec4<u32>,
}

// Eight columns of a row of x from column k on.
fn x_load8(start: u32, k: u32, mask: X8U) -> X8 {
    let a = bitcast<vec4<u32>>(x[start + k / 4u]) & mask.a;
    let b = bitcast<vec4<u32>>(x[start + min(k + 4u, params.k - 1u) / 4u]) & mask.b;
    return X8(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32,
#ifdef SUBGROUPS
    @builtin(subgroup_invocation_id) lane: u32,
#endif
) {
#ifdef EXPERTS
    let pairs = pairs_of(wid.y);
    let first = pairs.first;
    let end = pairs.end;
    if (first == end) {
        return;
    }
#else
    let first = wid.y * BM;
    let end = min(first + BM, state.rows);
#endif
#for c in 0..COLS
    let n$c = (wid.x * COLS + $cu) * THREADS + lid;
    let w_row$c = output_row(min(n$c, params.n - 1u));
#endfor
    for (var row = first; row < end; row += ROWS) {
#for b in 0..BATCHES
#ifdef SUBGROUPS
        let x_own$b = x_row(min(row + $bu * BATCH + lane, end - 1u));
#else
#for r in 0..BATCH
        let x_at$b_$r = x_row(min(row + $bu * BATCH + $ru, end - 1u));
#endfor
#endif
#for r in 0..BATCH
#for c in 0..COLS
        var sum$b_$r_$c = 0.0;
        var up$b_$r_$c = 0.0;
#endfor
#endfor
#endfor
        for (var unit = 0u; unit * 8u < params.k; unit++) {
            let k = unit * 8u;
            // Columns of x beyond K count as zero, whatever the buffer holds.
            let mask = X8U(0u - vec4<u32>(vec4(k, k + 1u, k + 2u, k + 3u) < vec4(params.k)),
                0u - vec4<u32>(vec4(k + 4u, k + 5u, k + 6u, k + 7u) < vec4(params.k)));
#for c in 0..COLS
            let w$c = w_load8(w_row$c, unit);
#ifdef GATED
            let v$c = w_load8(w_row$c + params.up_row, unit);
#endif
#endfor
#for b in 0..BATCHES
#ifdef SUBGROUPS
            let own$b = x_load8(x_own$b, k, mask);
#endif
#for r in 0..BATCH
#ifdef SUBGROUPS
            let x$b_$r = X8(subgroupBroadcast(own$b.a, $ru), subgroupBroadcast(own$b.b, $ru));
#else
            let x$b_$r = x_load8(x_at$b_$r, k, mask);
#endif
#for c in 0..COLS
            sum$b_$r_$c += dot(w$c.a, x$b_$r.a) + dot(w$c.b, x$b_$r.b);
#ifdef GATED
            up$b_$r_$c += dot(v$c.a, x$b_$r.a) + dot(v$c.b, x$b_$r.b);
#endif
#endfor
#endfor
#endfor
        }
        // Loops, since the epilogue takes longest to compile.
        var sums: array<f32, OUTPUTS>;
        var ups: array<f32, OUTPUTS>;
#for b in 0..BATCHES
#for r in 0..BATCH
#for c in 0..COLS
        sums[($bu * BATCH + $ru) * COLS + $cu] = sum$b_$r_$c;
        ups[($bu * BATCH + $ru) * COLS + $cu] = up$b_$r_$c;
#endfor
#endfor
#endfor
        for (var i = 0u; i < min(ROWS, end - row) * COLS; i++) {
            let n = (wid.x * COLS + i % COLS) * THREADS + lid;
            if (n < params.n) { finish(result_row(row + i / COLS), n, sums[i], ups[i], params.scale); }
        }
    }
}
